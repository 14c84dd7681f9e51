"""The notebooks of docs/notebooks: each runs, gives the outputs that it keeps, and can be read on a
code host."""

import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from support import ROOT, own_environment

SCRIPT = ROOT / "docs/site/notebooks.py"
PATHS = sorted((ROOT / "docs/notebooks").glob("*.ipynb"))
# A path of a machine, a terminal's codes, a line that is drawn over, a warning.
UNWANTED = re.compile(r"/tmp/|/home/|/root/|site-packages|\x1b|\r|Warning")

KERNEL = """
import time, torch, spmd
from spmd.core.programs import cache
spmd.config.slow_compile_seconds = 1
compile_graph = cache.compile_graph
def slowly(*args, **how):
    time.sleep(2.5)
    return compile_graph(*args, **how)
cache.compile_graph = slowly
x = torch.ones(3).to("xla")
print((x + 1).sum().item())
"""


def test_all_are_here() -> None:
    assert [path.stem for path in PATHS] == ["plan", "tour", "verify"]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
class TestKept:
    """A notebook as it is in the tree."""

    def test_cells(self, path: Path) -> None:
        """The first code cell installs the library; each has a sentence above it, and an id that
        stays."""
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
        assert (notebook.nbformat, notebook.nbformat_minor) == (4, 5)
        code = [cell for cell in notebook.cells if cell.cell_type == "code"]
        assert code[0].metadata == {"tags": ["install"]} and code[0].source.startswith(
            "%pip install --quiet "
        )
        above = dict(zip([cell.id for cell in notebook.cells[1:]], notebook.cells, strict=False))
        assert [cell.id for cell in code if above[cell.id].cell_type != "markdown"] == []
        assert [
            cell.id for cell in notebook.cells if not re.fullmatch(r"[a-z]+(-[a-z]+)*", cell.id)
        ] == []

    def test_outputs(self, path: Path) -> None:
        """They are there, and show nothing of the machine that made them."""
        notebook = nbformat.read(path, as_version=4)
        assert set(notebook.metadata) == {"kernelspec"}
        outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
        assert len(outputs) > 3 and {output.output_type for output in outputs} <= {
            "stream",
            "execute_result",
        }
        assert {output.name for output in outputs if output.output_type == "stream"} <= {"stdout"}
        found = UNWANTED.search(path.read_text().replace("\\u001b", "\x1b").replace("\\r", "\r"))
        assert found is None, found
        for cell in notebook.cells:
            if cell.cell_type == "code" and "install" not in cell.metadata.get("tags", ()):
                assert set(cell.metadata) <= {"tags"} and cell.execution_count is not None

    @pytest.mark.long
    def test_runs(self, path: Path) -> None:
        """In a kernel, with the outputs that the tree has."""
        command = [sys.executable, str(SCRIPT), "--check", path.stem]
        done = subprocess.run(
            command, capture_output=True, text=True, env=own_environment(), timeout=1500, cwd=ROOT
        )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-8000:]}"


class TestInAKernel:
    """The outputs of a notebook's cell."""

    @pytest.mark.long
    def test_a_status_is_gone_in_the_end(self) -> None:
        ran = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(KERNEL)])
        NotebookClient(ran, kernel_name="python3", timeout=300).execute(env=own_environment())
        status, printed = ran.cells[0].outputs
        assert (status.output_type, status.data) == ("display_data", {})
        assert (printed.name, printed.text) == ("stdout", "6.0\n")
