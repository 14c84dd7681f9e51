"""Every code block of the README and the docs runs, and so does every example in a public
docstring."""

import doctest
import gc
import importlib
import re
from pathlib import Path

import pytest

import spmd

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/**/*.md")])
# Every file with an example in it.
MODULES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in sorted([*ROOT.glob("spmd/**/*.py"), *ROOT.glob("fsdp/**/*.py")])
    if "\n    >>> " in path.read_text()
]


def blocks(page: Path) -> list[str]:
    """A page's blocks, each at its own lines, so that errors and the ledger name those of the
    page."""
    text = page.read_text()
    found = re.finditer(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return ["\n" * text.count("\n", 0, match.start(1)) + match[1] for match in found]


@pytest.mark.parametrize(
    "page", [page for page in PAGES if blocks(page)], ids=lambda page: page.name
)
class TestPages:
    """A page's blocks run top to bottom, as a reader would run them."""

    # peft's use of transformers 5
    @pytest.mark.filterwarnings("ignore:.*gradient_checkpointing:FutureWarning")
    def test_runs(self, page, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)  # for the files that a page writes
        namespace: dict[str, object] = {"__name__": "__main__"}
        for block in blocks(page):
            exec(compile(block, str(page), "exec"), namespace)
        spmd.torch_xla.set_global_mesh(None)  # a Trainer sets one for its process
        namespace.clear()
        gc.collect()  # a page's functions hold each other, and what they have recorded


@pytest.mark.parametrize(
    "page", [page for page in PAGES if blocks(page)], ids=lambda page: page.name
)
def test_a_reader_has_the_devices(page: Path) -> None:
    """A page that numbers the devices of its meshes simulates them before: a reader's machine has
    one."""
    code = "".join(blocks(page))
    numbered = re.search(r"\bMesh\((range\(|\[|np\.)|\binit_device_mesh\(", code)
    assert numbered is None or "spmd.simulate(" in code[: numbered.start()]


def test_examples_need_no_compiler_of_chips() -> None:
    """What runs here plans for simulated devices alone: libtpu and CUDA's plugin are extras."""
    codes = {page: "".join(blocks(page)) for page in PAGES}
    parser = doctest.DocTestParser()
    for name in MODULES:
        text = ROOT.joinpath(*name.split(".")).with_suffix(".py").read_text()
        codes[name] = "".join(example.source for example in parser.get_examples(text))
    chips = {
        where: re.findall(r"""["']((?:\d+x)?(?:v\d\w*|[abhl]\d+\w*):\d[\dx]*)["']""", code)
        for where, code in codes.items()
    }
    assert {where: found for where, found in chips.items() if found} == {}


@pytest.mark.parametrize("name", MODULES)
class TestDocstrings:
    """The examples give what they show."""

    def test_examples(self, name):
        result = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
        assert result.attempted > 0
        assert result.failed == 0
