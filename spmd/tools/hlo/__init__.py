"""The optimised program read back."""
