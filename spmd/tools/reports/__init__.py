"""Plans printed and drawn."""
