"""Client commands: each parses its arguments, calls the core, and shapes the RESP reply.

What exists is `table.COMMANDS` (facts) and `handlers.HANDLERS` (code), with the same names. A handler takes the broker,
the client and the request's words, and returns the bytes of its reply, or None if there is none or it comes later. To
refuse a request it raises `Refused`.
"""
