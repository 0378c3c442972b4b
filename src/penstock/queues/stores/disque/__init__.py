"""What the store of our broker is made of that neither waits nor connects: options, tokens, and the forms of jobs."""
