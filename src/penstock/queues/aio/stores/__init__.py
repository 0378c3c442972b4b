"""The stores, one module each; each opens with a table of all that it touches."""
