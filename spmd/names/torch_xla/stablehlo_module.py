"""`torch_xla.stablehlo`: exported programs as StableHLO, over `spmd.export` and
`spmd.load_exported`."""

import re
import types
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from jax import export as jax_export
from torch import nn
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.utils._pytree import tree_leaves, tree_map_only

from ...core import ends_at_user_line
from ...loops.interop.custom_call import stablehlo_custom_call
from ...steps.exporting import (
    Exported,
    LoadedProgram,
    OpenProgram,
    export,
    has_open_dims,
    has_weights,
    load_exported,
    read_exported,
)
from .mlir_debuginfo import with_node_metadata


@ends_at_user_line
@dataclass
class StableHLOExportOptions:
    """Options of an export, by PyTorch/XLA's names.

    override_tracing_arguments, override_tracing_kwargs: arguments in place of the program's example
    inputs. custom_ops_allowed_in_graph: namespaces of torch's ops; each of their ops becomes the
    custom call of its name, such as "my_library.my_op.default". export_weights: False makes a
    module without weights, save_weights: False a folder without them: `_bundle.state_dict` of the
    module takes them, by name, before its first call. export_node_metadata: the location of each op
    is JSON of its stack trace and modules. The others are taken and change nothing: text and the
    lines of ops are always there, constants are part of the program.

    >>> import spmd
    >>> spmd.torch_xla.StableHLOExportOptions().save_weights
    True
    """

    include_human_readable_text: bool = True
    override_tracing_arguments: tuple[Any, ...] | None = None
    override_tracing_kwargs: Mapping[str, Any] | None = None
    save_weights: bool = True
    inline_all_constant: bool = True
    export_weights: bool = True
    custom_ops_allowed_in_graph: set[str] = field(default_factory=set)
    export_node_metadata: bool = False


# The line of a location that is a text alone, which an argument has, too.
_DEBUG_TEXT = re.compile(r'^(#loc\d*) = (loc\("(?:[^"\\]|\\.)*"\))$', re.MULTILINE)


@ends_at_user_line
class StableHLOGraphModule:
    """A program of StableHLO with its weights, callable on xla.

    Source: `torch_xla.stablehlo.StableHLOGraphModule`. The folder that `save` writes is
    `spmd.load_exported`'s.

    >>> import torch, spmd
    >>> program = torch.export.export(torch.nn.Linear(4, 2), (torch.ones(3, 4),))
    >>> module = spmd.torch_xla.exported_program_to_stablehlo(program)
    >>> "stablehlo.dot_general" in module.get_stablehlo_text(), module(torch.ones(3, 4)).shape
    (True, torch.Size([3, 2]))
    """

    def __init__(
        self, exported: Exported | LoadedProgram | OpenProgram, *, keeps_weights: bool = True
    ):
        self._program = exported
        state = exported.state() if isinstance(exported, Exported) else exported.state
        if not keeps_weights:
            state.clear()
        self._bundle = types.SimpleNamespace(state_dict=state)

    def __call__(self, *args: Any, method_name: str | None = None, **kwargs: Any) -> Any:
        """Runs the program; tensors on the CPU go to xla first."""
        return self.evaluate(method_name or "forward", args, kwargs)

    def evaluate(self, method_name: str, args: Any, kwargs: Mapping[str, Any] | None = None) -> Any:
        """Runs the method, which is "forward" here."""
        _only_forward(method_name)
        program = self._with_weights()
        self._program = load_exported(program) if isinstance(program, Exported) else program
        moved, by_name = tree_map_only(
            torch.Tensor, lambda tensor: tensor.to("xla"), (tuple(args), dict(kwargs or {}))
        )
        return self._program(*moved, **by_name)

    def get_stablehlo_text(self, method_name: str | None = None) -> str:
        """The program as text. Texts of `torch.ops.xla.write_mlir_debuginfo` stand on their ops'
        lines."""
        _only_forward(method_name)
        text = self._program.stablehlo()
        locations = dict(_DEBUG_TEXT.findall(text))
        return re.sub(r"loc\((#loc\d*)\)", lambda use: locations.get(use[1], use[0]), text)

    def get_stablehlo_bytecode(self, method_name: str | None = None) -> bytes:
        """The program as bytecode of a stable version of StableHLO."""
        _only_forward(method_name)
        return bytes(
            jax_export.deserialize(bytearray(self._program.serialized)).mlir_module_serialized
        )

    def save(
        self, directory_path: str | Path, options: StableHLOExportOptions | None = None
    ) -> None:
        """Writes the program into a folder, with its weights unless `save_weights=False`."""
        keeps = options is None or options.save_weights
        self._with_weights().save(directory_path, weights=keeps and bool(self._bundle.state_dict))

    def _with_weights(self) -> Exported | LoadedProgram | OpenProgram:
        """The program, before its first call with the weights of `_bundle`."""
        program = self._program
        if not isinstance(program, Exported):
            return program
        weights = self._bundle.state_dict.items()
        return Exported(
            program.serialized,
            program.manifest,
            {name: torch.as_tensor(weight) for name, weight in weights},
        )

    @classmethod
    def load(cls, directory_path: str | Path) -> "StableHLOGraphModule":
        """Reads what `save` wrote."""
        exported = read_exported(directory_path)
        return cls(load_exported(directory_path) if has_weights(exported.manifest) else exported)


def run_decompositions(
    exported_model: ExportedProgram,
) -> torch.export.ExportedProgram:
    """Returns a program in torch's core ops. Source: `torch_xla.stablehlo._run_decompositions`.

    >>> import torch, spmd
    >>> program = torch.export.export(torch.nn.ReLU(), (torch.ones(2),))
    >>> spmd.torch_xla.stablehlo_module.run_decompositions(program).module()(torch.ones(2)).tolist()
    [1.0, 1.0]
    """
    return exported_model.run_decompositions()


class _Wrapped(nn.Module):
    def __init__(self, function: Callable[..., Any]):
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


def wrapped(f: Callable[..., Any]) -> nn.Module:
    """Returns a function as a module.

    Source: `torch_xla.utils.stablehlo_test_utils.wrap_func_as_nn_module`.

    >>> import torch, spmd
    >>> spmd.torch_xla.stablehlo_module.wrapped(torch.relu)(torch.ones(2)).tolist()
    [1.0, 1.0]
    """
    return _Wrapped(f).eval()


def _only_forward(method_name: str | None) -> None:
    if method_name not in (None, "forward"):
        raise ValueError(
            f"StableHLOGraphModule: a program has the method 'forward', got {method_name!r}"
        )


@ends_at_user_line
def exported_program_to_stablehlo(
    exported_model: ExportedProgram, options: StableHLOExportOptions | None = None
) -> StableHLOGraphModule:
    """Returns a program of `torch.export` as StableHLO, of the shapes of its example inputs; sizes
    that `dynamic_shapes` leaves open are open in it, too.

    Raises ValueError for a program without example inputs where the options have none. Source:
    `torch_xla.stablehlo.exported_program_to_stablehlo`.

    >>> import torch, spmd
    >>> program = torch.export.export(torch.nn.ReLU(), (torch.ones(2),))
    >>> spmd.torch_xla.exported_program_to_stablehlo(program)(torch.tensor([-1.0, 2.0])).tolist()
    [0.0, 2.0]
    """
    if options is not None and options.export_node_metadata:
        exported_model = with_node_metadata(exported_model)
    if has_open_dims(exported_model):
        return StableHLOGraphModule(
            OpenProgram(exported_model), keeps_weights=options is None or options.export_weights
        )
    exported = _exported(exported_model, exported_model.example_inputs or (None, None), options)
    return StableHLOGraphModule(exported, keeps_weights=options is None or options.export_weights)


def _exported(model: Any, inputs: Any, options: StableHLOExportOptions | None) -> Exported:
    """The export of a model for (arguments, keywords), or those of the options."""
    how = options or StableHLOExportOptions()
    args = inputs[0] if how.override_tracing_arguments is None else how.override_tracing_arguments
    kwargs = inputs[1] if how.override_tracing_kwargs is None else how.override_tracing_kwargs
    if args is None:
        raise ValueError(
            "exported_program_to_stablehlo: the program has no example inputs; pass "
            "StableHLOExportOptions(override_tracing_arguments=...)"
        )
    if how.custom_ops_allowed_in_graph and isinstance(model, ExportedProgram):
        model = _with_custom_calls(model, how.custom_ops_allowed_in_graph)
    return export(model, args, dict(kwargs or {}), custom_calls=None)


def _with_custom_calls(program: ExportedProgram, namespaces: Set[str]) -> nn.Module:
    """A program whose ops of these namespaces are custom calls of their names."""
    module: Any = program.module()
    for node in module.graph.nodes:
        if isinstance(node.target, OpOverload) and node.target.namespace in namespaces:
            results = tree_leaves(node.meta["val"])
            shapes, dtypes = [one.shape for one in results], [one.dtype for one in results]
            node.args = (node.all_input_nodes, str(node.target), shapes, dtypes)
            node.kwargs, node.target = {}, stablehlo_custom_call
    module.recompile()
    return module


@ends_at_user_line
def save_as_stablehlo(
    exported_model: ExportedProgram,
    stablehlo_dir: str | Path,
    options: StableHLOExportOptions | None = None,
) -> None:
    """Writes a program of `torch.export` as StableHLO, with its weights, into a folder.

    Source: `torch_xla.stablehlo.save_as_stablehlo`.

    >>> import tempfile, torch, spmd
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     spmd.torch_xla.save_as_stablehlo(
    ...         torch.export.export(torch.nn.ReLU(), (torch.ones(2),)), folder
    ...     )
    ...     spmd.torch_xla.StableHLOGraphModule.load(folder)(torch.tensor([-1.0, 2.0])).tolist()
    [0.0, 2.0]
    """
    exported_program_to_stablehlo(exported_model, options).save(stablehlo_dir, options)


@ends_at_user_line
def save_torch_model_as_stablehlo(
    torchmodel: nn.Module,
    args: tuple[Any, ...],
    path: str | Path,
    options: StableHLOExportOptions | None = None,
) -> None:
    """Exports a module with these arguments, and writes it as StableHLO, with its weights, into a
    folder.

    Source: `torch_xla.stablehlo.save_torch_model_as_stablehlo`.

    >>> import tempfile, torch, spmd
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     spmd.torch_xla.save_torch_model_as_stablehlo(torch.nn.ReLU(), (torch.ones(2),), folder)
    ...     spmd.load_exported(folder)(torch.ones(2, device="xla")).tolist()
    [1.0, 1.0]
    """
    if options is not None and options.export_node_metadata:
        save_as_stablehlo(torch.export.export(torchmodel, args), path, options)
    else:
        exported = _exported(torchmodel, (args, None), options)
        exported.save(path, weights=options is None or options.save_weights)
