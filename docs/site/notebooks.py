"""The notebooks of docs/notebooks, with their outputs: run and written, or run and compared.

    python docs/site/notebooks.py               # runs all, writes their outputs
    python docs/site/notebooks.py tour verify   # these
    python docs/site/notebooks.py --check tour  # runs it, writes nothing; an error where an output
                                                # differs

Tags of a cell: `install` does not run. `tpu` and `gpu` run where these compilers are installed, and
elsewhere the cell keeps its outputs. Outputs of `varies` are not compared: its asserts state what
holds.
"""

import argparse
import difflib
import importlib.util
import os
import re
import sys
import tempfile
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode
from traitlets.config import Config

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs/notebooks"
LONGEST = 600  # seconds of a cell
NEEDS = {"tpu": "libtpu", "gpu": "jax_plugins.xla_cuda12"}  # the module by tag

_STYLES = re.compile(r"\x1b\[[\d;]*m")  # of a terminal
_MEASURED = re.compile(
    r"compiled in [\d.]+ s, planned in [\d.]+ s with [\d.]+ \w+ of the host's memory"
)
_METADATA = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}


def read(path: Path) -> NotebookNode:
    """A notebook as it is in the tree."""
    return nbformat.read(path, as_version=4)


def tags(cell: NotebookNode) -> list[str]:
    """The tags of a cell."""
    return list(cell.metadata.get("tags", []))


def runs(cell: NotebookNode) -> bool:
    """True for a cell that runs in this environment."""
    missing = {tag for tag, module in NEEDS.items() if not is_installed(module)}
    return cell.cell_type == "code" and {"install", *missing}.isdisjoint(tags(cell))


def is_installed(module: str) -> bool:
    """True for a module that can be imported, which a parent that is missing can not."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def execute(notebook: NotebookNode) -> None:
    """Runs a notebook's cells in a kernel of this Python, in an empty folder; raises
    CellExecutionError."""
    ran = nbformat.v4.new_notebook(cells=[cell for cell in notebook.cells if runs(cell)])
    # The settings of the process that starts it are not the reader's.
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("XLA_", "SPMD_", "JAX_"))
    }
    settings = {**kept, "SPMD_PROGRAM_CACHE": "0", "PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(
            ran,
            config=Config({"KernelManager": {"transport": "ipc", "ip": f"{folder}/kernel"}}),
            resources={"metadata": {"path": folder}},
            kernel_name="python3",
            timeout=LONGEST,
            record_timing=False,
            coalesce_streams=True,
        ).execute(env=settings)


def cleaned(notebook: NotebookNode) -> NotebookNode:
    """Takes away what differs from run to run or says where it ran; returns the notebook."""
    notebook.metadata = nbformat.from_dict(_METADATA)
    for cell in notebook.cells:
        cell.metadata = {"tags": tags(cell)} if tags(cell) else {}
        if cell.cell_type == "code":
            cell.outputs = [
                output for output in map(_cleaned_output, cell.outputs) if output is not None
            ]
    return notebook


def _cleaned_output(output: NotebookNode) -> NotebookNode | None:
    """An output without a terminal's styles; None for stderr, which has the plugin's notices, and
    for an empty one."""
    if output.output_type == "stream":
        output.text = _STYLES.sub("", output.text)
        return None if output.name == "stderr" else output
    output.metadata = {}
    return output if output.data else None


def texts(cell: NotebookNode) -> list[str]:
    """The outputs of a cell as text, without what it measured."""
    parts = (
        [output.text]
        if output.output_type == "stream"
        else [output.data[kind] for kind in sorted(output.data)]
        for output in cell.outputs
    )
    return [_MEASURED.sub("compiled", text) for part in parts for text in part]


def differences(kept: NotebookNode, ran: NotebookNode) -> list[str]:
    """The lines of outputs that differ."""
    found: list[str] = []
    for number, (before, after) in enumerate(zip(kept.cells, ran.cells, strict=True), 1):
        if runs(before) and "varies" not in tags(before) and texts(before) != texts(after):
            lines = [
                text.splitlines() for text in ("\n".join(texts(before)), "\n".join(texts(after)))
            ]
            found += difflib.unified_diff(
                *lines, f"cell {number}", "the same, run now", n=0, lineterm=""
            )
    return found


def main() -> int:
    """Runs the notebooks that are named; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--check", action="store_true", help="compare with the outputs in the tree, write nothing"
    )
    parser.add_argument(
        "names", nargs="*", default=sorted(path.stem for path in FOLDER.glob("*.ipynb"))
    )
    args = parser.parse_args()
    failed = False
    for name in args.names:
        path, started = FOLDER / f"{name}.ipynb", time.monotonic()
        kept, ran = read(path), read(path)
        execute(ran)
        changed = differences(kept, cleaned(ran))
        print(
            f"{name}: {time.monotonic() - started:.0f} s, "
            f"{'outputs differ' if changed else 'the same outputs'}"
        )
        print(*changed, sep="\n", end="\n" if changed else "")
        failed = failed or (args.check and bool(changed))
        if not args.check and (changed or kept != ran):
            nbformat.write(ran, path)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
