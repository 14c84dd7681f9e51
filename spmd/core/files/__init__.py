"""Compiled programs as files, for later processes."""
