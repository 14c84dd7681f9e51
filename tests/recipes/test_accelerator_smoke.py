"""`make gpu` on the CPU: each of its checks passes."""

import pytest
from support import run_script

DRY = """
    import sys
    from recipes import accelerator_smoke
    sys.exit(accelerator_smoke.main(["--dry-run"]))
"""


@pytest.mark.long
def test_dry_run() -> None:
    printed = run_script(DRY)
    assert printed.count(" ok ") == 8 and "FAILED" not in printed, printed
