"""PyTorch/XLA's words for what this library has under its own."""
