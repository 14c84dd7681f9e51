"""Token by token: calls of a module that writes a cache in place are recorded without the user's
word."""
