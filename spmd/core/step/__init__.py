"""The recorded step: the objects that a function reaches, and its programs without data."""
