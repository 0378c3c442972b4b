"""What both forms of the PostgreSQL store share: names, elements as Keuss stores them, SQL, and what errors mean."""
