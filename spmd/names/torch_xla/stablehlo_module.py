"""`torch_xla.stablehlo`: exported programs as StableHLO, over `spmd.export` and
`spmd.load_exported`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from jax import export as jax_export
from torch import nn
from torch.utils._pytree import tree_map_only

from ...core import ends_at_user_line
from ...steps.exporting import Exported, LoadedProgram, export, load_exported


@ends_at_user_line
@dataclass
class StableHLOExportOptions:
    """Options of an export, by PyTorch/XLA's names.

    override_tracing_arguments, override_tracing_kwargs: arguments in place of the program's example
    inputs. custom_ops_allowed_in_graph: targets of custom calls that the StableHLO may have.
    save_weights, export_weights: True; a program here has its weights next to it. The others are
    taken and change nothing: text and the lines of ops are always there, constants are part of the
    program.

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

    def __post_init__(self) -> None:
        for name in ("save_weights", "export_weights"):
            if not getattr(self, name):
                raise NotImplementedError(
                    f"StableHLOExportOptions: {name}=False; a program is saved with its weights"
                )


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

    def __init__(self, exported: Exported | LoadedProgram):
        self._program = exported

    def __call__(self, *args: Any, method_name: str | None = None, **kwargs: Any) -> Any:
        """Runs the program; tensors on the CPU go to xla first."""
        return self.evaluate(method_name or "forward", args, kwargs)

    def evaluate(self, method_name: str, args: Any, kwargs: Mapping[str, Any] | None = None) -> Any:
        """Runs the method, which is "forward" here."""
        _only_forward(method_name)
        if isinstance(self._program, Exported):
            self._program = load_exported(self._program)
        moved, by_name = tree_map_only(
            torch.Tensor, lambda tensor: tensor.to("xla"), (tuple(args), dict(kwargs or {}))
        )
        return self._program(*moved, **by_name)

    def get_stablehlo_text(self, method_name: str | None = None) -> str:
        """The program as text."""
        _only_forward(method_name)
        return self._program.stablehlo()

    def get_stablehlo_bytecode(self, method_name: str | None = None) -> bytes:
        """The program as bytecode of a stable version of StableHLO."""
        _only_forward(method_name)
        return bytes(
            jax_export.deserialize(bytearray(self._program.serialized)).mlir_module_serialized
        )

    def save(
        self, directory_path: str | Path, options: StableHLOExportOptions | None = None
    ) -> None:
        """Writes the program and its weights into a folder. options: have no meaning here; text is
        always there."""
        self._program.save(directory_path)

    @classmethod
    def load(cls, directory_path: str | Path) -> "StableHLOGraphModule":
        """Reads what `save` wrote."""
        return cls(load_exported(directory_path))


def _only_forward(method_name: str | None) -> None:
    if method_name not in (None, "forward"):
        raise ValueError(
            f"StableHLOGraphModule: a program has the method 'forward', got {method_name!r}"
        )


@ends_at_user_line
def exported_program_to_stablehlo(
    exported_model: torch.export.ExportedProgram, options: StableHLOExportOptions | None = None
) -> StableHLOGraphModule:
    """Returns a program of `torch.export` as StableHLO, of the shapes of its example inputs.

    Raises ValueError for a program without example inputs where the options have none. Source:
    `torch_xla.stablehlo.exported_program_to_stablehlo`.

    >>> import torch, spmd
    >>> program = torch.export.export(torch.nn.ReLU(), (torch.ones(2),))
    >>> spmd.torch_xla.exported_program_to_stablehlo(program)(torch.tensor([-1.0, 2.0])).tolist()
    [0.0, 2.0]
    """
    return StableHLOGraphModule(
        _exported(exported_model, exported_model.example_inputs or (None, None), options)
    )


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
    return export(
        model, args, dict(kwargs or {}), custom_calls=tuple(how.custom_ops_allowed_in_graph)
    )


@ends_at_user_line
def save_as_stablehlo(
    exported_model: torch.export.ExportedProgram,
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
    exported_program_to_stablehlo(exported_model, options).save(stablehlo_dir)


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
    _exported(torchmodel, (args, None), options).save(path)
