"""The memory maps of this process, the number of which Linux limits (`vm.max_map_count`, 65,530 by default).

XLA's CPU compiler takes some fifty for each program, more for a large one, and ends the process by SIGSEGV if it gets
none; they are free again when the program is dropped.
"""

from pathlib import Path

_MAPS, _LIMIT = Path("/proc/self/maps"), Path("/proc/sys/vm/max_map_count")
_SHARE = 0.75


def are_scarce() -> bool:
    """True if three quarters of the maps that this process may have are taken; never outside of Linux."""
    if not (_MAPS.exists() and _LIMIT.exists()):
        return False
    return _MAPS.read_bytes().count(b"\n") > _SHARE * int(_LIMIT.read_text())
