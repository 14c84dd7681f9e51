"""Compiled programs as files, for later processes."""

from . import stored as stored
