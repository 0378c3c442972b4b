"""The `penstock` command: a module a group of commands, loaded when it is called."""
