"""Shardings as text and pictures."""
