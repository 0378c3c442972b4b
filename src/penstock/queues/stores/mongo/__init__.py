"""What both forms of the MongoDB stores share: addresses, documents as Keuss has them, time, and errors."""
