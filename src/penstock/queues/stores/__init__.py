"""Jobs in SQLite, Redis, PostgreSQL, directories, memory and our broker: a folder for each, or a file."""
