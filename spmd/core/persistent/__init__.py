"""Compiled programs on disk, for later processes."""

from . import small as small
from . import stored as stored
