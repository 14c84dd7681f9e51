"""The public surface, frozen: names, signatures and flags, as `tests/public_names.txt` has them.

`python tests/test_public_api.py` writes the file again; its difference belongs into the change, and
into CHANGELOG.md.
"""

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs without being installed, too

import fsdp
import fsdp.state_dict
import spmd
import spmd.dtensor
import spmd.tensors.shards
import spmd.tools.show.pictures
from spmd import P
from spmd.packages import PATHS

FILE = Path(__file__).with_name("public_names.txt")
DOORS = (
    spmd,
    spmd.checkpoint,
    spmd.compat,
    spmd.data,
    spmd.dtensor,
    spmd.manual,
    spmd.metrics,
    spmd.profiler,
    spmd.torch_xla,
    fsdp,
)
# Classes that functions return, and functions in the words of torch.distributed.checkpoint.
OTHERS = (
    spmd.tensors.shards.Shard,
    spmd.tools.show.pictures.Picture,
    fsdp.state_dict.get_model_state_dict,
    fsdp.state_dict.get_optimizer_state_dict,
    fsdp.state_dict.get_state_dict,
    fsdp.state_dict.set_model_state_dict,
    fsdp.state_dict.set_optimizer_state_dict,
    fsdp.state_dict.set_state_dict,
)
_SHOWN = {path: name for name, path in PATHS.items()} | {"spmd.tensors.metrics": "spmd.metrics"}


def shown(module: ModuleType) -> str:
    """The name by which scripts import a module."""
    return _SHOWN.get(module.__name__, module.__name__)


def public(module: ModuleType) -> set[str]:
    return {
        name
        for name in dir(module)
        if not name.startswith("_") and not inspect.ismodule(getattr(module, name))
    }


def bare(function: object) -> str:
    """A signature without types."""
    signature = inspect.signature(function)
    parameters = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in signature.parameters.values()
    ]
    return str(signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty))


def signature(name: str, value: Any) -> str:
    """A name with its signature, if Python knows one."""
    try:
        return f"{name}{re.sub(r' at 0x[0-9a-f]+', '', bare(value))}"
    except (TypeError, ValueError):
        return name


def lines_of(name: str, value: Any) -> Iterator[str]:
    """A name, and the public methods and properties of a class of ours."""
    is_ours = str(getattr(value, "__module__", "")).startswith(("spmd", "fsdp"))
    yield signature(name, value) if is_ours and callable(value) else name
    if inspect.isclass(value) and is_ours:
        for key in sorted(key for key in vars(value) if not key.startswith("_")):
            method = getattr(value, key)
            yield (
                signature(f"{name}.{key}", method) if inspect.isroutine(method) else f"{name}.{key}"
            )


def surface() -> list[str]:
    """The lines of the file."""
    names = {
        f"{shown(module)}.{name}": getattr(module, name)
        for module in DOORS
        for name in public(module)
    }
    names |= {f"{value.__module__}.{value.__qualname__}": value for value in OTHERS}
    flags = [f"spmd.config.{line.split(' = ')[0]}" for line in repr(spmd.config).splitlines()]
    return [line for name in sorted(names) for line in lines_of(name, names[name])] + sorted(flags)


class TestPublicApi:
    """The names that a script may use, with their signatures."""

    def test_surface(self) -> None:
        assert surface() == FILE.read_text().splitlines(), (
            "python tests/test_public_api.py writes the file again"
        )

    @pytest.mark.parametrize(
        "module",
        [spmd.checkpoint, spmd.data, spmd.manual, spmd.torch_xla],
        ids=lambda module: module.__name__,
    )
    def test_a_name_at_two_doors_is_one_object(self, module: ModuleType) -> None:
        both = public(module) & public(spmd)
        assert both and all(getattr(module, name) is getattr(spmd, name) for name in both)

    def test_every_public_name_says_what_it_does(self) -> None:
        values = [(name, getattr(module, name)) for module in DOORS for name in public(module)]
        silent = [
            name
            for name, value in values
            if not value.__doc__ and not value.__module__.startswith("torch.")
        ]
        assert not silent


def _linear() -> nn.Linear:
    return nn.Linear(2, 2, bias=False)


def _value() -> torch.Tensor:
    return torch.ones(2, device="xla")


# What takes any keyword: each hands it on to what knows its keywords, or compares it with those
# that there are.
TAKING_KEYWORDS = {
    "spmd.ShardingRules.apply": lambda **given: spmd.ShardingRules({"weight": P()}).apply(
        _linear(), spmd.Mesh([0], (1,), ("fsdp",)), **given
    ),
    "spmd.torch_xla.XLAShardedTensor": lambda **given: spmd.torch_xla.XLAShardedTensor(
        _value(), **given
    ),
    "spmd.torch_xla.wrap_as_sharded_tensor": lambda **given: spmd.torch_xla.wrap_as_sharded_tensor(
        _value(), **given
    ),
    "spmd.call_jax": lambda **given: spmd.call_jax(lambda x: x, _value(), **given),
    "spmd.allow": lambda **given: spmd.allow(**given),
    "spmd.plan": lambda **given: spmd.plan(lambda: None, **given),
    "spmd.warm": lambda **given: spmd.warm(lambda: None, **given),
    "spmd.suggest": lambda **given: spmd.suggest(_linear(), lambda: None, **given),
    "spmd.verify": lambda **given: spmd.verify(
        lambda: None, meshes=[spmd.Mesh([0], (1,), ("data",))], **given
    ),
    "spmd.scan_layers": lambda **given: spmd.scan_layers([_linear().to("xla")], _value(), **given),
    "spmd.dtensor.DTensor": lambda **given: spmd.dtensor.DTensor(_value(), **given),
    **{
        f"spmd.dtensor.{name}": lambda name=name, **given: getattr(spmd.dtensor, name)(2, **given)
        for name in ("empty", "ones", "rand", "randn", "zeros")
    },
    "spmd.dtensor.full": lambda **given: spmd.dtensor.full((2,), 1.0, **given),
    "fsdp.XlaFullyShardedDataParallel": lambda **given: fsdp.XlaFullyShardedDataParallel(
        _linear(), **given
    ),
    "fsdp.ZeroRedundancyOptimizer": lambda **given: fsdp.ZeroRedundancyOptimizer(
        [_value()], torch.optim.SGD, lr=0.1, **given
    ),
    "fsdp.ZeroRedundancyOptimizer.step": lambda **given: fsdp.ZeroRedundancyOptimizer(
        [_value()], torch.optim.SGD, lr=0.1
    ).step(**given),
    "fsdp.recursive_wrap": lambda **given: fsdp.recursive_wrap(
        _linear(), fsdp.always_wrap_policy, fsdp.FullyShardedDataParallel, set(), set(), **given
    ),
}
# A function of autograd's, torch's setters without a meaning here, which warn, and rows of a trace
# with arguments.
TAKING_ALL = {
    "spmd.PureModule.forward",
    "spmd.torch_xla.MarkShardingFunction",
    "fsdp.FSDPModule",
    "fsdp.FullyShardedDataParallel.forward",
    "spmd.profiler.StepTrace",
    "spmd.profiler.Trace",
}


def takes_any_keyword(function: Any) -> bool:
    """True for a callable of ours with `**keywords`."""
    if not callable(function) or not str(getattr(function, "__module__", "")).startswith(
        ("spmd", "fsdp")
    ):
        return False
    # these are raised; some have no signature
    if inspect.isclass(function) and issubclass(function, BaseException):
        return False
    kinds = {parameter.kind for parameter in inspect.signature(function).parameters.values()}
    return inspect.Parameter.VAR_KEYWORD in kinds


class TestKeywords:
    """No public function swallows a keyword that nothing knows."""

    def test_all_are_listed(self) -> None:
        found = set()
        for module in DOORS:
            for name in public(module):
                owner = getattr(module, name)
                methods = vars(owner).items() if inspect.isclass(owner) else ()
                for key, function in [
                    ("", owner),
                    *((f".{key}", value) for key, value in methods if key[0] != "_"),
                ]:
                    if takes_any_keyword(function) and not key.startswith(".set_"):
                        found.add(f"{shown(module)}.{name}{key}")
        assert found == {*TAKING_KEYWORDS, *TAKING_ALL}

    @pytest.mark.parametrize("name", TAKING_KEYWORDS)
    def test_unknown(self, name: str) -> None:
        with pytest.raises(TypeError, match="misspelt"):
            TAKING_KEYWORDS[name](misspelt=1)


if __name__ == "__main__":
    FILE.write_text("".join(f"{line}\n" for line in surface()))
