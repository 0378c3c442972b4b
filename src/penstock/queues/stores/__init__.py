"""Stores that need no server, as plain blocking code: both forms of the library use these through `stores.engine`."""
