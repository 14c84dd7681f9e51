"""spmd.load_exported: a program from its files, called on tensors of xla."""

import contextlib
import functools
import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import torch
from jax import export as jax_export

from ...core import (
    LOCK,
    AbstractError,
    DeviceData,
    Meta,
    ProcessError,
    Sharding,
    Spec,
    Storage,
    XlaTensor,
    buffer_leases,
    compiler_context,
    constraints,
    dense_meta,
    ends_at_user_line,
    extras,
    hardware,
    host_reads,
    in_flight,
    jax_facts,
    options,
    processes,
    recording,
    seed,
    storage_of,
    syncs,
    topology,
    transfer,
    user_frame,
    user_line,
    view_of,
    wrap,
)
from ...core.extend import hide, uneven_writes
from ...jobs.checkpoint.files import open_checkpoint
from ...jobs.checkpoint.plain_values import dtype_of
from ...jobs.checkpoint.streaming import fill_shards
from ...mesh.global_mesh import get_global_mesh
from ...mesh.mesh import Mesh
from ...tensors import sealed_json
from ...tensors.annotate import mark_sharding, reshard
from .exported import (
    FORMAT,
    MANIFEST,
    PROGRAM,
    VERSION,
    WEIGHTS,
    WEIGHTS_FACTS,
    Exported,
    has_weights,
    on_host,
    state_arguments,
    struct,
)
from .nested_values import matched, rebuild


@ends_at_user_line
def load_exported(
    path: str | Path | Exported,
    mesh: Mesh | None = None,
    *,
    state: Mapping[str, torch.Tensor] | None = None,
    custom_calls: Sequence[str] = (),
) -> "LoadedProgram":
    """Returns a program that `spmd.export` has written, compiled and with its state on the devices,
    as a callable.

    Nothing of the Python that made it is needed. It takes what the exported call took and returns
    what that returned; a training step overwrites its own state, and the arguments that the
    exported call overwrote.

    Args:
        path: the folder, or a program that was not saved, which is run on a copy of its state.
        mesh: devices as many as the program was exported for, of any axes: in the mesh's order they
            take the places of the program's. Arguments are resharded to what the program takes.
            None: the mesh of `with mesh:` or `set_global_mesh` if it has as many devices, else the
            devices of the export.
        state: the tensors of `LoadedProgram.state` by name, on the CPU or on xla, in place of those
            of the file: other weights, or those of a program that was saved without.
        custom_calls: targets of custom calls that the program may have, besides those that jax
            keeps stable: native code of this process. As in `spmd.export`.

    Of several processes all must call it, and the program each time; each reads the shards of its
    own devices.

    Raises FileNotFoundError, ValueError for another number of devices, another platform, a newer
    format, or files that do not belong together, a state that lacks a tensor or has one of another
    shape or dtype, an option of XLA that neither this library nor
    `config.compiler_options` sets, and other custom calls. Source: `jax.export.deserialize`.

    >>> import torch, spmd
    >>> x = spmd.mark_sharding(
    ...     torch.ones(8, 4, device="xla"), spmd.Mesh(range(8), (8,), ("data",)), ("data", None)
    ... )
    >>> program = spmd.load_exported(
    ...     spmd.export(torch.cos, (x,)), spmd.Mesh(range(8), (2, 4), ("a", "b"))
    ... )
    >>> program(torch.zeros(8, 4, device="xla")).sum().item()
    32.0
    """
    extras.imported("flatbuffers", "export", "load_exported")  # jax reads programs by it
    if mesh is not None and not isinstance(mesh, Mesh):
        raise TypeError(f"load_exported: expected a spmd.Mesh, got {type(mesh).__name__}")
    exported = path if isinstance(path, Exported) else read_exported(path)
    checked = None if exported is path else custom_calls
    if state is None and not isinstance(path, Exported):
        with _described(Path(path) / MANIFEST):
            stored = _stored_state(Path(path) / WEIGHTS, exported.manifest)
        return LoadedProgram(
            exported.serialized,
            exported.manifest,
            lambda name, indices: stored[name].read(indices),
            mesh,
            checked,
        )
    given = _given_state(exported.state() if state is None else state, exported.manifest)
    return LoadedProgram(
        exported.serialized,
        exported.manifest,
        lambda name, indices: given[name][indices],
        mesh,
        checked,
    )


def read_exported(path: str | Path) -> Exported:
    """The program of a folder without its state; raises as `load_exported` does."""
    folder = Path(path)
    if not (folder / MANIFEST).is_file():
        raise FileNotFoundError(
            f"load_exported: expected a folder that spmd.export wrote, {folder} has no {MANIFEST}"
        )
    with _described(folder / MANIFEST):
        written = sealed_json.content(folder / MANIFEST)
    manifest = sealed_json.parsed(written, f"load_exported: {folder / MANIFEST}")
    if manifest.get("format") != FORMAT or manifest.get("version", 0) > VERSION:
        raise ValueError(
            f"load_exported: expected the format {FORMAT} up to version {VERSION}, got "
            f"{manifest.get('format')} {manifest.get('version')}; a newer release of spmd reads it"
        )
    with _described(folder / MANIFEST):
        serialized = sealed_json.content(folder / PROGRAM, _MOST_BYTES)
        if hashlib.sha256(serialized).hexdigest() != manifest["program"]["sha256"]:
            raise ValueError(
                f"load_exported: {folder / PROGRAM} is not the program of {MANIFEST}; export it "
                "again"
            )
    return Exported(serialized, manifest, {})


@contextlib.contextmanager
def _described(file: object) -> Iterator[None]:
    """Has whatever a manifest lacks or has wrong end in one sentence."""
    try:
        yield
    except (MemoryError, OSError, ProcessError):
        raise
    except Exception as error:  # JSON of a stranger may fail anywhere
        if isinstance(error, ValueError) and str(error).startswith(
            ("load_exported: ", "load_checkpoint: ")
        ):
            raise
        why = f"{type(error).__name__}: {str(error)[:200]}"
        raise ValueError(
            f"load_exported: {file} does not describe its program: {why}; export it again"
        ) from error


_MOST_BYTES = 1 << 31  # of a program


def _given_state(state: Mapping[str, torch.Tensor], manifest: dict[str, Any]) -> dict[str, Any]:
    """A user's tensors for the state that a manifest describes, on the CPU."""
    expected = {
        argument["name"]: (tuple(argument["shape"]), dtype_of(argument["dtype"]))
        for argument in state_arguments(manifest)
    }
    for name, (shape, dtype) in expected.items():
        value = state.get(name)
        if value is None or (tuple(value.shape), value.dtype) != (shape, dtype):
            got = "none" if value is None else f"{value.dtype} of shape {list(value.shape)}"
            raise ValueError(
                f"load_exported: expected {name!r} of {dtype} and shape {list(shape)} in state, "
                f"got {got}"
            )
    return {name: on_host(state[name].detach()) for name in expected}


def _stored_state(file: Path, manifest: dict[str, Any]) -> dict[str, Any]:
    """The tensors of the state in a file, once it is the one that was written, as the manifest
    describes them.

    A manifest without facts of the file is compared with its header alone.
    """
    facts = manifest.get(WEIGHTS_FACTS)
    if not has_weights(manifest):
        names = {argument["name"]: "..." for argument in state_arguments(manifest)}
        raise ValueError(
            f"load_exported: {file.parent} was saved without weights; pass state={names}"
        )
    sealed_json.check_file(file, (1 << 63) if facts is None else facts["bytes"])
    with file.open("rb") as opened:
        if (
            facts is not None
            and hashlib.file_digest(opened, "sha256").hexdigest() != facts["sha256"]
        ):
            raise ValueError(
                f"load_exported: {file} is damaged: {MANIFEST} has another sha256; export it again"
            )
    stored = open_checkpoint(file)
    for argument in state_arguments(manifest):
        name, value = argument["name"], stored.get(argument["name"])
        shape, dtype = tuple(argument["shape"]), dtype_of(argument["dtype"])
        if value is None or (value.shape, value.dtype) != (shape, dtype):
            raise ValueError(
                f"load_exported: expected {name!r} of shape {argument['shape']} and dtype "
                f"{argument['dtype']} in {file}, as {MANIFEST} says, got {value}; export it again"
            )
    return stored


@ends_at_user_line
class LoadedProgram:
    """A program of files as a callable (see `load_exported`).

    Attributes:
        manifest, serialized: see `Exported`.
        state: the tensors on xla that it reads besides its arguments, by name; those that a
            training step overwrites change at each call, and may be written to.

    >>> import torch, spmd
    >>> program = spmd.load_exported(
    ...     spmd.export(torch.nn.Linear(4, 2).to("xla"), (torch.ones(3, 4),))
    ... )
    >>> program(torch.ones(3, 4, device="xla")).shape
    torch.Size([3, 2])
    """

    def __init__(
        self,
        serialized: bytes,
        manifest: dict[str, Any],
        read: Any,
        mesh: Mesh | None,
        custom_calls: Sequence[str] | None,
    ):
        self.manifest, self.serialized = manifest, serialized
        # Jit places arguments and results: the shardings of the file name a mesh of its own.
        with _described(MANIFEST):
            self._exported = jax_facts.without_shardings(
                jax_export.deserialize(bytearray(serialized))
            )
            self._shardy = manifest["program"]["partitioner"] == "shardy"
            self._order = _devices(manifest, mesh)
            self._check(custom_calls)
        if jax_facts.use_shardy_partitioner is None and not self._shardy:
            raise ValueError(
                f"load_exported: exported for GSPMD, which jax {jax.__version__} has no more; "
                "export it again"
            )
        self._mark: bytes = manifest["program"]["sha256"].encode()
        if processes.several():
            words = (
                f"load_exported on the devices {self._order}, its "
                f"{processes.digest('program', self._mark)}"
            )
            processes.agree(words, self._mark + repr(self._order).encode(), user_line())
        platform = hardware.devices()[self._order[0]].platform
        if platform not in manifest["program"]["platforms"]:
            raise ValueError(
                "load_exported: the program was exported for "
                f"{', '.join(manifest['program']['platforms'])}, and the devices here are of "
                f"{platform}; export it with platforms=({platform!r},)"
            )
        with _described(MANIFEST):
            self._read_manifest()
            self.state = {}
            for index, argument in enumerate(state_arguments(manifest), self._num_passed):
                empty = torch.empty(argument["shape"], dtype=self._metas[index].dtype, device="xla")
                target = mark_sharding(empty, self._shardings[index])
                self.state[argument["name"]] = fill_shards(
                    target, functools.partial(read, argument["name"])
                )
        self._program = self._compiled(platform, custom_calls)

    def _check(self, custom_calls: Sequence[str] | None) -> None:
        """Raises ValueError for devices and options that a manifest must not name; None: it is of
        this process."""
        manifest = self.manifest
        for mesh in manifest["meshes"]:
            order, sizes = mesh["device_order"], mesh["axes"].values()
            if len({*order} & {*range(len(self._order))}) != len(order) or math.prod(sizes) != len(
                order
            ):
                raise ValueError(
                    f"load_exported: expected in {MANIFEST} a mesh of {dict(mesh['axes'])} over "
                    f"different ones of {len(self._order)} devices, got device_order={order}; "
                    "export it again"
                )
        for compiled in (
            manifest["program"]["compiler_options"].values() if custom_calls is not None else ()
        ):
            if unknown := options.unknown_options(compiled):
                words = " ".join(f"{name}={value}" for name, value in unknown.items())
                raise ValueError(
                    f"load_exported: the program is to be compiled with {words}, which this "
                    "library does not set: such options write and run files. If you trust it, set "
                    f"spmd.config.compiler_options = 'auto {words}'"
                )

    def _read_manifest(self) -> None:
        """Reads arguments, results and what overwrites what; raises ValueError where they do not
        fit the program."""
        manifest = self.manifest
        arguments, results = manifest["arguments"], manifest["results"]
        self._shardings = [self._sharding(entry["sharding"]) for entry in arguments]
        self._metas = list(map(_meta, arguments))
        self._results = list(map(_meta, results))
        self._pinned = [
            None if entry["sharding"] is None else self._sharding(entry["sharding"])
            for entry in results
        ]
        self._num_passed = sum(entry["role"] == "argument" for entry in arguments)
        self._num_draws: int = manifest["program"]["num_draws"]
        self._overwrites = {
            result: entry["overwrites"]
            for result, entry in enumerate(results)
            if "overwrites" in entry
        }
        self._donated = sorted(
            {index for index in self._overwrites.values() if index >= self._num_passed}
        )
        self._meshes = list(dict.fromkeys(sharding.replicated() for sharding in self._shardings))
        for meta, pin, aval in zip(
            self._results, self._pinned, self._exported.out_avals, strict=True
        ):
            shape = meta.shape if pin is None else pin.padded_shape(meta.shape)
            if (tuple(shape), meta.struct.dtype) != (aval.shape, aval.dtype):
                raise ValueError(
                    f"load_exported: expected in {MANIFEST} a result {aval.str_short()}, got "
                    f"{meta!r}; export it again"
                )
        for result, index in self._overwrites.items():
            if index >= self._num_passed and self._metas[index] != self._results[result]:
                raise ValueError(
                    f"load_exported: in {MANIFEST} result {result} cannot overwrite "
                    f"{arguments[index]['name']!r}"
                )
        passed, returned = list[int](), list[int]()
        for part in manifest["inputs"].values():
            rebuild(part, passed.append)
        rebuild(manifest["outputs"], lambda number: returned.append(manifest["returned"][number]))
        if sorted(passed) != [*range(self._num_passed)] or not all(
            -len(arguments) <= number < len(results) for number in returned
        ):
            raise ValueError(
                f"load_exported: arguments and results of {MANIFEST} are not those of the "
                "program; export it again"
            )

    def _sharding(self, text: dict[str, Any] | None) -> Sharding:
        mesh = self.manifest["meshes"][0 if text is None else text["mesh"]]
        ids = tuple(self._order[index] for index in mesh["device_order"])
        whole = Sharding.of(ids, tuple(mesh["axes"].values()), tuple(mesh["axes"]))
        if text is None:
            return whole
        return whole.with_spec(Spec.of(*(tuple(axes) for axes in text["spec"])), text["memory"])

    @contextlib.contextmanager
    def _context(self) -> Iterator[None]:
        several = len(self.manifest["meshes"]) > 1
        partitioner = (
            contextlib.nullcontext
            if jax_facts.use_shardy_partitioner is None
            else jax_facts.use_shardy_partitioner
        )
        with (
            topology.program_devices(self._order if several else None),
            compiler_context(),
            partitioner(self._shardy),
        ):
            yield

    def _compiled(self, platform: str, custom_calls: Sequence[str] | None) -> Any:
        """The compiled program.

        Arguments that a result of the same layout replaces are donated, if they are state.
        """
        with self._context():
            with _described(MANIFEST):
                lowered = self._lowered()
            targets = jax_facts.custom_calls(lowered.compiler_ir()) - jax_facts.stable_custom_calls
            if custom_calls is not None and (unstable := sorted(targets.difference(custom_calls))):
                raise ValueError(
                    f"load_exported: the program calls {', '.join(unstable)}: native code of this "
                    "process that jax does not keep stable. If you trust it, pass "
                    f"custom_calls={unstable}"
                )
            if self.manifest["program"]["has_complex"]:
                hide(lowered.compiler_ir())
            uneven_writes.pad_scatters(lowered.compiler_ir(), len(self._order))
            options = self.manifest["program"]["compiler_options"].get(platform, {})
            return jax_facts.compile_lowered(lowered, options)

    def _lowered(self) -> Any:
        """The program for its arguments and results, in the manifest's shapes and shardings."""
        self._structs = list(map(struct, self._metas, self._shardings))
        out = [None if sharding is None else sharding.in_program() for sharding in self._pinned]
        whole = self._sharding(None)
        for index, meta in enumerate(self._results):
            if out[index] is None and any(dim % len(self._order) for dim in meta.shape):
                # jax accepts no sharded array that the devices do not divide
                out[index] = whole.in_program()
        jitted = jax.jit(
            self._exported.call,
            out_shardings=tuple(out),
            donate_argnums=self._donated,
            keep_unused=True,
        )
        return jitted.lower(*self._structs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the program on these arguments; a sync. Results have no gradient."""
        if recording.value is not None:
            raise AbstractError(
                f"a loaded program is called at {user_line()}, in a step that is recorded and not "
                "run"
            )
        inputs = self.manifest["inputs"]
        passed = [
            *matched(inputs["args"], args, "args"),
            *matched(inputs["kwargs"], kwargs, "kwargs"),
        ]
        with torch.no_grad():
            tensors = [self._laid_out(index, tensor) for index, tensor in enumerate(passed)]
        tensors += self.state.values()
        syncs.sync()
        with contextlib.ExitStack() as leases:
            reads = [
                host_reads.leased(storage_of(tensor), "a loaded program", on_device=True)
                for tensor in tensors
            ]
            buffers = [leases.enter_context(lease).placed()[0] for lease in reads]
        buffer_leases.spare(buffers, self._donated)
        arrays: list[Any] = [
            _spelled(buffer, struct.sharding)
            for buffer, struct in zip(buffers, self._structs, strict=False)
        ]
        # The position in the stream of draws of this call, which takes as many as the exported one.
        draw = [seed.next_draw() for _ in range(self._num_draws)][:1]
        arrays += [*np.array(draw, np.int64)]
        if processes.several():
            words = (
                f"a run of a loaded program, its draws {draw}, "
                f"{processes.digest('program', self._mark)}"
            )
            processes.note(words, self._mark + repr(draw).encode(), user_line())
        in_flight.make_room(len(self._order))
        with self._context():
            results = self._program(*arrays)
        in_flight.note_run(results[0], lambda: None)
        values = [self._result(index, array) for index, array in enumerate(results)]
        operands = [*passed, *self.state.values()]
        for result, index in self._overwrites.items():
            _overwrite(operands[index], values[result], is_ours=index >= len(passed))
        operands = [*passed, *(tensor.detach() for tensor in self.state.values())]
        for result, index in self._overwrites.items():
            values[result] = operands[index]
        # an operand returned unchanged has the number ~index
        outcomes = [*values, *reversed(operands)]
        return rebuild(
            self.manifest["outputs"], lambda index: outcomes[self.manifest["returned"][index]]
        )

    def _laid_out(self, index: int, tensor: Any) -> Any:
        """The argument in the layout of the program."""
        name, meta, layout = (
            self.manifest["arguments"][index]["name"],
            self._metas[index],
            self._shardings[index],
        )
        if type(tensor) is not XlaTensor:
            raise TypeError(
                f"a loaded program: expected {name} on xla, got a tensor on {tensor.device}; move "
                "it with "
                '.to("xla") first'
            )
        if tuple(tensor.shape) != meta.shape or tensor.dtype is not meta.dtype:
            raise ValueError(
                f"a loaded program: {name} was exported as {meta.dtype} of shape "
                f"{list(meta.shape)}, got {tensor.dtype} of shape {list(tensor.shape)}; export "
                "the call with these shapes, too"
            )
        is_laid_out = view_of(tensor) is None and constraints.effective_sharding(tensor) is layout
        return tensor if is_laid_out else reshard(tensor.detach(), layout)

    def _result(self, index: int, array: jax.Array) -> torch.Tensor:
        """A result as a tensor, in its logical shape."""
        meta, pinned = self._results[index], self._pinned[index]
        sharding = pinned or Sharding.from_jax(array.sharding, len(meta.shape), self._meshes)
        data = DeviceData(
            meta, buffer=_spelled(array, sharding.jax), sharding=sharding, source=user_frame()
        )
        return wrap(meta, Storage(data, meta, pinned))

    def save(self, path: str | Path, *, weights: bool = True) -> None:
        """Writes the program with its state as it is now, as `Exported.save` does."""
        exported = Exported(self.serialized, self.manifest, self.state)
        exported.save(path, weights=weights)

    def stablehlo(self) -> str:
        """The program as text."""
        return str(self._exported.mlir_module())

    def __repr__(self) -> str:
        names = ", ".join(
            argument["name"] for argument in self.manifest["arguments"][: self._num_passed]
        )
        return (
            f"LoadedProgram({names}; {len(self.state)} tensors of state, {len(self._order)} "
            "devices)"
        )


def _meta(entry: dict[str, Any]) -> Meta:
    return dense_meta(tuple(entry["shape"]), dtype_of(entry["dtype"]))


def _overwrite(target: Any, result: Any, *, is_ours: bool) -> None:
    """Writes a result over state, whose memory it has, or over an argument."""
    if is_ours and view_of(target) is None:
        torch.autograd.graph.increment_version(target)
        with LOCK:
            value: Any = storage_of(result).value
            storage_of(target).write(value)
            storage_of(target).home = value.sharding
        return
    with torch.no_grad():
        target.copy_(result)


def _spelled(array: jax.Array, sharding: Any) -> jax.Array:
    """The same shards under an equal sharding."""
    return array if array.sharding == sharding else transfer.respelled(array, sharding)


def _devices(manifest: dict[str, Any], mesh: Mesh | None) -> tuple[int, ...]:
    """The devices of the program, in its order."""
    count: int = manifest["num_devices"]
    num_here = len(hardware.devices())
    default = get_global_mesh()
    if mesh is None and default is not None and default.size() == count:
        mesh = default
    device_ids: Sequence[int] = manifest["device_ids"] if mesh is None else mesh.device_ids
    if mesh is None and max(device_ids) >= num_here:
        device_ids = range(num_here)
    if len(device_ids) != count:
        raise ValueError(
            f"load_exported: the program was exported for {count} device{'s' * (count > 1)}, and "
            f"{'this process sees' if mesh is None else 'the mesh has'} {len(device_ids)}; export "
            f"it again on a mesh of {len(device_ids)}"
        )
    return tuple(device_ids)
