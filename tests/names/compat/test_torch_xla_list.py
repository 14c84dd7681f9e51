"""Each public name of PyTorch/XLA 2.9 is served with its parameters, or answers with what serves
instead.

`torch_xla_2_9.tsv.gz` is the list (`list_torch_xla.py` makes it).
"""

import gzip
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import MethodType
from typing import Any

import pytest

import spmd
from spmd.core.record.tensor import XlaTensor

_LINES = (
    gzip.decompress(Path(__file__).with_name("torch_xla_2_9.tsv.gz").read_bytes())
    .decode()
    .splitlines()
)
ROWS = [tuple(line.split("\t")) for line in _LINES]
MODULES = [module for module, _, kind, _ in ROWS if kind == "module"]
_UNHELPFUL = "docs/torch-xla-names.md lists names"


@pytest.fixture(autouse=True, scope="module")
def installed() -> Iterator[None]:
    spmd.compat.install()
    yield
    spmd.compat.uninstall()


@pytest.mark.parametrize("module", MODULES)
def test_names(module: str) -> None:
    try:
        served = importlib.import_module(module)
    except ModuleNotFoundError as error:
        assert "of PyTorch/XLA is not in spmd.compat" in str(error) and _UNHELPFUL not in str(
            error
        ), error
        return
    wrong = [
        text for row in ROWS if row[0] == module and row[1] for text in _wrong(served, *row[1:])
    ]
    assert not wrong, "\n".join(wrong)


def _wrong(served: Any, name: str, kind: str, signature: str) -> Iterator[str]:
    """What is wrong with a name of a module that is there."""
    first, _, method = name.partition(".")
    try:
        value = getattr(served, first)
    except AttributeError as error:
        if not method and (_UNHELPFUL in str(error) or "not in spmd.compat" not in str(error)):
            yield f"{name}: {error}"
        return
    if name in _OTHER:
        return
    owner = XlaTensor if first == "XLAShardedTensor" else value  # no tensor is wrapped
    if signature.startswith("ctx"):  # of a torch.autograd.Function
        if not hasattr(owner, "apply"):
            yield f"{name}: no apply"
    elif method and not hasattr(owner, method):
        yield f"{name}({signature}): no such {kind}"
    elif kind in ("function", "method", "static"):
        called = owner if method in ("", "__init__") else getattr(owner, method)
        called = MethodType(called, owner) if owner is XlaTensor and method else called
        yield from (f"{name}: {text}" for text in _differences(_parameters(signature), called))


# Those that differ, and why.
_OTHER = {
    "FlashAttention.prepare_segment_ids": "of their kernel",
    "ParallelLoader.next_item": "of their loader's threads",
    "ParallelLoader.per_device_samples": "of their loader's threads",
    "ParallelLoader.send_cpu_data_to_device": "of their loader's threads",
    "ParallelLoader.batches_per_execution": "of their loader's threads",
    "PerDeviceLoader.next": "of their loader's threads",
    "DataParallel.devices": "an attribute of the object",
    "DataParallel.models": "an attribute of the object",
    "SPMDLoadPlanner.finish_plan": "the parameter has the name of torch's LoadPlanner",
    "SPMDSavePlanner.set_up_planner": "the parameters are those of torch's SavePlanner",
    "SpmdFullyShardedDataParallel.module": "a submodule of the object",
    "StableHLOGraphModule.__init__": "exported_program_to_stablehlo makes it",
    "XLAShard.__init__": "local_shards makes it; shard_device is an attribute",
    "XLAShardedTensor.invalidate_spec_cache": "there is no cache",
    "XlaFullyShardedDataParallel.assert_state": "there are no states",
    "XlaFullyShardedDataParallel.module": "a submodule of the object",
    ("ZeroRedundancyOptimizer.allgather_weights_and_update_full_parameter"): (
        "the program of the step gathers"
    ),
    "ZeroRedundancyOptimizer.get_shape_info": "parameters keep their shapes",
    "ZeroRedundancyOptimizer.grad_norm": "step clips",
    "ZeroRedundancyOptimizer.init_zero": "the constructor does so",
    "ZeroRedundancyOptimizer.remove_hooks": "there are no hooks",
    "ZeroRedundancyOptimizer.sharding_groups": "the axes of the mesh are the groups",
    "to_dlpack": "torch's own",
    # defaults
    "ZeroRedundancyOptimizer.zero_grad": "set_to_none as in torch",
    "autocast.__init__": "None is True, unless autocast is off",
    "checkpoint": "both forms; not reentrant by default",
    "consolidate_sharded_model_checkpoints": "the names that their command line takes",
}


def _differences(theirs: list[inspect.Parameter], called: Any) -> Iterator[str]:
    """Their parameters that ours does not take by name and by position, or takes with another
    default."""
    signature = inspect.signature(called)
    ours = [one for one in signature.parameters.values() if one.name not in ("self", "cls")]
    kinds = {one.kind for one in ours}
    by_name = {
        one.name: one for one in ours if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
    }
    positions = [one.name for one in ours if one.kind is one.POSITIONAL_OR_KEYWORD]
    named = [one for one in theirs if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
    for place, one in enumerate(named):
        if one.name not in by_name and one.VAR_KEYWORD not in kinds:
            yield f"takes no {one.name}="
        elif one.kind is not one.KEYWORD_ONLY and positions[place : place + 1] != [one.name]:
            is_further = one.VAR_POSITIONAL in kinds and place >= len(positions)
            yield from () if is_further else (f"{one.name} is not argument {place}",)
        default = by_name[one.name].default if one.name in by_name else one.default
        if one.default is not one.empty and default is one.empty:
            yield f"{one.name} has no default"
        if one.default not in (one.empty, ...) and (default or None) != (one.default or None):
            yield f"{one.name} is {default!r}, not {one.default!r}"
    # otherwise they go on to another function, of which ours has the parameters
    if named == theirs:
        more = {name for name, one in by_name.items() if one.default is one.empty} - {
            one.name for one in theirs
        }
        yield from (f"needs {name}" for name in sorted(more))


def _parameters(signature: str) -> list[inspect.Parameter]:
    """Their parameters, without that of the object."""
    parameters = [*inspect.signature(eval(f"lambda {signature}: 0")).parameters.values()]
    return parameters[parameters[:1] != [] and parameters[0].name in ("self", "cls", "ctx") :]


def test_no_difference_is_listed_that_is_none() -> None:
    listed = {row[1] for row in ROWS}
    assert not [name for name in _OTHER if name not in listed]


def test_a_missing_parameter_is_seen() -> None:
    theirs = _parameters("self, t, mesh, *, size=2")
    assert [*_differences(theirs, lambda t, mesh, size=2: 0)] == []
    assert [*_differences(theirs, lambda mesh, t, size=3, *, x: 0)] == [
        "t is not argument 0",
        "mesh is not argument 1",
        "size is 3, not 2",
        "needs x",
    ]
    assert "takes no t=" in _differences(theirs, lambda tensor, mesh, size=2: 0)
