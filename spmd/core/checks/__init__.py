"""Checks of programs: known miscompiles, and loops that copy their stacks."""

from . import loop_copies as loop_copies
from . import miscompiles as miscompiles
