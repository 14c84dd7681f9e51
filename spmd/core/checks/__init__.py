"""Checks of programs: known miscompiles, loops that copy their stacks, runs that do not end, and processes that do
not do the same."""

from . import agreement as agreement
from . import loop_copies as loop_copies
from . import miscompiles as miscompiles
from . import watchdog as watchdog
