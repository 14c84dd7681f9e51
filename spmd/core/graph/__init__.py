"""The lazy graph as data."""
