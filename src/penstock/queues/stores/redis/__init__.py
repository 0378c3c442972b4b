"""What both forms of the Redis stores share: addresses, errors, elements as Keuss stores them, and the Lua scripts."""
