"""An exported program with its manifest and the tensors of its state; written as a folder."""

import contextlib
import hashlib
import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import torch
from jax import export as jax_export

from ...core import Meta, Sharding, XlaTensor, ends_at_user_line, processes, transfer, user_line
from ...jobs.checkpoint.files import SAFETENSORS
from ...jobs.checkpoint.safetensors_layout import file_of
from ...tensors import sealed_json
from ...tensors.launch import full_tensor

FORMAT = "spmd.export"
VERSION = 1
PROGRAM, WEIGHTS, MANIFEST = "program.jax_export", "weights.safetensors", "manifest.json"
WEIGHTS_FACTS = "weights"  # an older manifest has none


@ends_at_user_line
class Exported:
    """A program that `spmd.export` has made.

    Attributes:
        serialized: the program, as `jax.export.Exported.serialize` writes it: StableHLO of a stable
            version with its shardings. Its arguments are the call's tensors in order, the state,
            and where it draws random numbers the vector (seed, draws so far).
        manifest: names, roles, shapes, dtypes and shardings of arguments and results, as JSON.

    >>> import torch, spmd
    >>> exported = spmd.export(torch.nn.Linear(4, 2).to("xla"), (torch.ones(3, 4),))
    >>> sorted(exported.state())
    ['bias', 'weight']
    """

    def __init__(
        self, serialized: bytes, manifest: dict[str, Any], state: Mapping[str, torch.Tensor]
    ):
        self.serialized = serialized
        self.manifest = manifest
        self._state = state

    def state(self) -> dict[str, torch.Tensor]:
        """The tensors that the program reads besides its arguments, by name: the user's own, as
        they are now."""
        return dict(self._state)

    def stablehlo(self) -> str:
        """The program as text."""
        return str(jax_export.deserialize(bytearray(self.serialized)).mlir_module())

    def save(self, path: str | Path, *, weights: bool = True) -> None:
        """Writes the program, the state as it is now and the manifest into a folder, which is made;
        a sync.

        weights: False leaves the values of the state out; `spmd.load_exported(path, state=...)`
        takes them. Files of an earlier export are replaced. The manifest is written last: a folder
        without one is not complete. Of several processes all must call it: the first writes, and
        all return when the folder is complete.
        """
        folder, is_first = Path(path), processes.index() == 0
        if is_first:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / MANIFEST).unlink(missing_ok=True)
            (folder / WEIGHTS).unlink(missing_ok=True)
            (folder / PROGRAM).write_bytes(self.serialized)
        facts = None
        if weights or not state_arguments(self.manifest):
            facts = write_safetensors(folder / WEIGHTS if is_first else None, self.state())
        if is_first:
            (folder / MANIFEST).write_text(
                sealed_json.text({**self.manifest, WEIGHTS_FACTS: facts})
            )
        if processes.several():
            processes.agree("an exported program that is written", b"", user_line())

    def __repr__(self) -> str:
        program = self.manifest["program"]
        roles = [argument["role"] for argument in self.manifest["arguments"]]
        shown = ", ".join(f"{roles.count(role)} x {role}" for role in dict.fromkeys(roles))
        return (
            f"Exported({shown}; {self.manifest['num_devices']} devices, {program['partitioner']})"
        )


def state_arguments(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    """The entries of the state among a manifest's arguments, which follow those of the call."""
    return [entry for entry in manifest["arguments"] if entry["role"] not in ("argument", "random")]


def has_weights(manifest: dict[str, Any]) -> bool:
    """False if the manifest is of a folder without weights."""
    return manifest.get(WEIGHTS_FACTS, {}) is not None


def array_facts(array: Any) -> dict[str, Any]:
    """The dtype and the shape of an array, as JSON."""
    return {"dtype": str(array.dtype).removeprefix("torch."), "shape": list(array.shape)}


def struct(meta: Meta, sharding: Sharding) -> jax.ShapeDtypeStruct:
    """The physical shape, the dtype and the sharding in which a program takes a tensor."""
    return jax.ShapeDtypeStruct(
        sharding.padded_shape(meta.shape), meta.struct.dtype, sharding=sharding.in_program()
    )


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """The full value on the CPU; of several processes all must call it."""
    return full_tensor(tensor) if isinstance(tensor, XlaTensor) else tensor


def write_safetensors(path: Path | None, tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Writes tensors into a file of safetensors, one after another: the host never holds more than
    one of xla's. None: takes part in this only, for the process that writes. Returns the size and
    the SHA-256 of the file."""
    for name, tensor in tensors.items():
        if tensor.dtype not in SAFETENSORS.values():
            raise TypeError(
                f"export: {name} has the dtype {tensor.dtype}, which safetensors does not have"
            )
    layout = file_of(
        WEIGHTS, {name: array_facts(tensor) for name, tensor in tensors.items()}, {"format": "pt"}
    )
    digest, size = hashlib.sha256(), 0
    with contextlib.nullcontext() if path is None else path.open("wb") as file:
        parts: Iterator[Any] = (on_host(tensors[placed.name]) for placed in layout.tensors)
        for part in itertools.chain([layout.header], parts):
            if file is not None:
                content = part if isinstance(part, bytes) else transfer.host_array(part).tobytes()
                digest.update(content)
                size += len(content)
                file.write(content)
    return {"bytes": size, "sha256": digest.hexdigest()}
