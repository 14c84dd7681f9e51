"""Compiled programs as files: between two starts of a process."""
