"""Every code block of the README and the docs runs, and so does every example in a public docstring."""

import doctest
import gc
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/**/*.md")])
MODULES = (
    "spmd.annotate", "spmd.checkpoint.filling", "spmd.checkpoint.loading", "spmd.collectives", "spmd.manual",
    "spmd.mesh", "spmd.partition_spec", "spmd.runtime", "spmd.core.config", "spmd.core.debug.check",
    "spmd.core.control.cond", "spmd.core.control.layers", "spmd.core.control.scan", "spmd.core.control.while_loop",
    "spmd.core.pjrt.host", "spmd.core.interop.call_jax", "spmd.core.metrics", "spmd.core.pjrt.devices",
    "spmd.core.sharding.value", "spmd.planning.planner", "spmd.planning.report", "fsdp.convert", "fsdp.plan",
    "fsdp.policies", "fsdp.state_dict", "fsdp.wrapper", "fsdp.activation", "fsdp.aliases", "fsdp.api",
    "fsdp.fully_shard", "fsdp.shown", "fsdp.whole",
)  # fmt: skip


def blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=lambda page: page.name)
class TestPages:
    """A page's blocks run top to bottom, as a reader would run them."""

    def test_runs(self, page):
        namespace: dict[str, object] = {"__name__": "__main__"}
        for block in blocks(page):
            exec(compile(block, str(page), "exec"), namespace)
        namespace.clear()
        gc.collect()  # a page's functions hold each other, and what they have recorded


@pytest.mark.parametrize("name", MODULES)
class TestDocstrings:
    """The examples give what they show."""

    def test_examples(self, name):
        result = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
        assert result.attempted > 0
        assert result.failed == 0
