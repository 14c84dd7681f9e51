"""Functions of JAX and of XLA in a user's program."""
