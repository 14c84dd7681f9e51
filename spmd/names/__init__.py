"""Other libraries' names for this library: torch_xla's and DTensor's."""
