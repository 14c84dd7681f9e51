"""Checks of programs: known miscompiles, loops that copy their stacks, and runs that do not end."""

from . import loop_copies as loop_copies
from . import miscompiles as miscompiles
from . import watchdog as watchdog
