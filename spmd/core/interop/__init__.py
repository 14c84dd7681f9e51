"""What users bring in JAX."""
