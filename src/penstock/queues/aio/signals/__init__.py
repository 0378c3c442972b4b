"""How waiting consumers hear of new jobs: one module a way."""
