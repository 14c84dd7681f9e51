"""`make gpu` on the CPU: each of its checks passes; and a step that is planned and run."""

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
    assert printed.count(" ok ") == 9 and "FAILED" not in printed, printed


@pytest.mark.long
def test_planned_run() -> None:
    script = "import sys\nfrom recipes.benchmarks import planned_run\n"
    printed = run_script(script + "sys.argv[1:] = ['--tiny', '--sequence', '32', '--steps', '2']\nplanned_run.main()")
    step, peak = (line.split("│")[1:4] for line in printed.splitlines() if "│ step s" in line or "│ peak GiB" in line)
    assert float(step[2]) > 0 and float(peak[1]) > 0 and peak[2].strip() == "not known", printed
