"""The functions of `torch_xla.core.xla_model` (xm) that are not this library's own: one logical
device has one replica, so that what reduces over replicas returns its argument."""

import contextlib
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from ...core import XlaTensor, device_memory, hardware, processes, user_line
from ...core import seed as seeds
from ...jobs.data.trees import Path, leaves, mapped, moves
from ...tensors.launch import full_tensor
from ...tensors.runtime import device, get_stablehlo, sync
from . import data_parallel
from .script_tools import DataWrapper
from .sharding_spec import ShardingSpec, sent
from .xla_collectives import all_reduce


def xla_device(n: int | None = None, devkind: str | None = None) -> torch.device:
    """The logical device, `xla:0`. Raises ValueError for another index; `devkind` must be that of
    the hardware.

    >>> import spmd
    >>> spmd.torch_xla.xla_model.xla_device()
    device(type='xla', index=0)
    """
    _check_kind(devkind)
    return device(n)


def xla_device_hw(device: Any) -> str:
    """The kind of the hardware: "CPU", "TPU", "CUDA".

    >>> import spmd
    >>> spmd.torch_xla.xla_model.xla_device_hw("xla:0")
    'CPU'
    """
    return "CPU" if torch.device(device).type == "cpu" else device_type()


def device_type() -> str:
    """The kind of the hardware: "CPU", "TPU", "CUDA". Source: `torch_xla.runtime.device_type`.

    >>> import spmd
    >>> spmd.torch_xla.xla_model.device_type()
    'CPU'
    """
    return hardware.devices()[0].platform.upper().replace("GPU", "CUDA")


def get_xla_supported_devices(
    max_devices: int | None = None, devkind: str | None = None
) -> list[str]:
    """The logical devices as texts: ["xla:0"].

    >>> import spmd
    >>> spmd.torch_xla.xla_model.get_xla_supported_devices()
    ['xla:0']
    """
    _check_kind(devkind)
    return ["xla:0"][:max_devices]


def xla_real_devices(devices: Iterable[Any] | None = None) -> list[str]:
    """The physical devices as texts; the first, "CPU:0", for each logical device that is named.

    >>> import spmd
    >>> spmd.torch_xla.xla_model.xla_real_devices(["xla:0"])
    ['CPU:0']
    """
    return real_devices() if devices is None else [real_devices()[0] for _ in devices]


def xla_replication_devices(local_devices: Iterable[Any] | None = None) -> list[str]:
    """The physical devices as texts, whatever logical devices are named.

    >>> import spmd
    >>> spmd.torch_xla.xla_model.xla_replication_devices(["xla:0"])[0]
    'CPU:0'
    """
    return real_devices()


def xla_device_kind(device: Any = None) -> str:
    """The hardware in its maker's words: "cpu", "TPU v5p".

    >>> import spmd
    >>> spmd.torch_xla.xla_model.xla_device_kind("xla:0")
    'cpu'
    """
    return str(hardware.devices()[0].device_kind)


def is_xla_tensor(tensor: torch.Tensor) -> bool:
    """True for a tensor on xla.

    >>> import torch, spmd
    >>> spmd.torch_xla.xla_model.is_xla_tensor(torch.ones(2, device="xla"))
    True
    """
    return tensor.device.type == "xla"


def check_view_sharing(obj: Any) -> None:
    """Raises RuntimeError where two tensors of a structure share their memory.

    >>> import torch, spmd
    >>> x = torch.ones(2, 2, device="xla")
    >>> spmd.torch_xla.xla_model.check_view_sharing([x, x[0]])
    Traceback (most recent call last):
    RuntimeError: check_view_sharing: float32 [2] is a view of the memory of float32 [2, 2]
    """
    owners: dict[int, torch.Tensor] = {}
    for _, tensor in leaves(obj, lambda value: isinstance(value, torch.Tensor)):
        owner = owners.setdefault(tensor.untyped_storage().data_ptr(), tensor)
        if owner is not tensor:
            view, base = (
                f"{str(t.dtype).removeprefix('torch.')} {list(t.shape)}" for t in (tensor, owner)
            )
            raise RuntimeError(f"check_view_sharing: {view} is a view of the memory of {base}")


def logical_devices() -> list[torch.device]:
    """The logical devices: [xla:0]. Source: `torch_xla.devices`.

    >>> import spmd
    >>> spmd.torch_xla.xla_model.logical_devices()
    [device(type='xla', index=0)]
    """
    return [device()]


def real_devices() -> list[str]:
    """The physical devices of all processes as texts: "CPU:0", "TPU:1". Source:
    `torch_xla.real_devices`.

    >>> import spmd
    >>> spmd.torch_xla.xla_model.real_devices()[0]
    'CPU:0'
    """
    kind = device_type()
    return [f"{kind}:{i}" for i in range(len(hardware.devices()))]


def _check_kind(devkind: str | None) -> None:
    if devkind is not None and devkind != device_type():
        raise RuntimeError(
            f"expected devkind {device_type()!r} or None, the hardware that is here, got "
            f"{devkind!r}"
        )


def is_master_ordinal(local: bool = True) -> bool:
    """True in the process that writes: each for files of its own machine (`local`), else the first.

    >>> import spmd
    >>> spmd.torch_xla.xla_model.is_master_ordinal()
    True
    """
    return local or processes.index() == 0


def master_print(*args: Any, fd: Any = None, local: bool = False, flush: bool = False) -> None:
    """Prints in the first process (`local`: in each).

    >>> import spmd
    >>> spmd.torch_xla.xla_model.master_print("step", 1)
    step 1
    """
    if is_master_ordinal(local=local):
        print(*args, file=sys.stdout if fd is None else fd, flush=flush)


def optimizer_step(
    optimizer: torch.optim.Optimizer, barrier: bool = False, optimizer_args: Any = None
) -> Any:
    """Calls `optimizer.step(**optimizer_args)` and returns its result.

    Gradients are those of the full batch already. barrier: a sync follows.

    >>> import torch, spmd
    >>> layer = torch.nn.Linear(2, 1, device="xla")
    >>> layer(torch.ones(1, 2, device="xla")).sum().backward()
    >>> spmd.torch_xla.xla_model.optimizer_step(
    ...     torch.optim.SGD(layer.parameters(), lr=0.1), barrier=True
    ... )
    """
    data_parallel.check_loader("xm.optimizer_step")
    loss: Any = optimizer.step(**optimizer_args or {})
    if barrier:
        sync()
    return loss


def reduce_gradients(optimizer: torch.optim.Optimizer) -> None:
    """Leaves the gradients as they are: with one logical device they are those of the full batch.

    Warns in a function of `torch_xla.launch` whose batches came by no loader that joins those of
    all devices.

    >>> import torch, spmd
    >>> spmd.torch_xla.xla_model.reduce_gradients(
    ...     torch.optim.SGD([torch.ones(1, device="xla")], lr=0.1)
    ... )
    """
    data_parallel.check_loader("xm.reduce_gradients")
    all_reduce("sum", fetch_gradients(optimizer))


def fetch_gradients(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """The gradients of an optimizer's parameters, without those that have none. Source:
    `xm._fetch_gradients`.

    >>> import torch, spmd
    >>> spmd.torch_xla.xla_model.fetch_gradients(
    ...     torch.optim.SGD([torch.ones(1, device="xla")], lr=0.1)
    ... )
    []
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def send_cpu_data_to_device(
    datas: Any, device: Any = "xla", input_sharding: ShardingSpec | None = None
) -> Any:
    """Returns a structure with its CPU tensors on the device, sharded by a spec where there is one.

    A tensor alone comes back as a list of one, as in PyTorch/XLA, and a `script_tools.DataWrapper`
    as what its `from_tensors` returns.

    >>> import torch, spmd
    >>> batch = {"x": torch.ones(2), "name": "first"}
    >>> spmd.torch_xla.xla_model.send_cpu_data_to_device(batch, "xla")["x"].device
    device(type='xla', index=0)
    """

    def send(_: Path, value: Any) -> Any:
        if not isinstance(value, DataWrapper):
            return sent(value, device, input_sharding)
        tensors = value.get_tensors()
        return value.from_tensors(
            [x if x is None else sent(x, device, input_sharding) for x in tensors]
        )

    data = [datas] if isinstance(datas, torch.Tensor) else datas
    return mapped(data, lambda x: moves(x) or isinstance(x, DataWrapper), send)


def to_cpu(data: Any, convert: bool = True) -> Any:
    """Returns a structure with its tensors on the CPU (`convert=False`: as they are); every process
    must call it.

    Source: `xm._maybe_convert_to_cpu`.

    >>> import torch, spmd
    >>> spmd.torch_xla.xla_model.to_cpu([torch.ones(2, device="xla"), 3])
    [tensor([1., 1.]), 3]
    """

    def on_cpu(_: Path, value: Any) -> Any:
        return full_tensor(value) if isinstance(value, XlaTensor) else value.to("cpu")

    return mapped(data, moves, on_cpu) if convert else data


def save(
    data: Any, file_or_path: Any, master_only: bool = True, global_master: bool = False
) -> None:
    """`torch.save` of a structure with its tensors on the CPU, by the process that writes; all of
    them must call it.

    master_only, global_master: by the first process of each machine, or of all
    (`is_master_ordinal`).

    >>> import io, torch, spmd
    >>> file = io.BytesIO()
    >>> spmd.torch_xla.xla_model.save({"weight": torch.ones(2, device="xla")}, file)
    >>> torch.load(io.BytesIO(file.getvalue()))["weight"]
    tensor([1., 1.])
    """
    host_data = to_cpu(data)
    if not master_only or is_master_ordinal(local=not global_master):
        torch.save(host_data, file_or_path)


def get_rng_state(device: Any = None) -> int:
    """The state of the device's random stream as one number of 63 bits: the seed, and above it the
    number of draws.

    A seed of more than 32 bits, as a program without a seed has, is replaced by a shorter one of it
    at this call.

    >>> import spmd
    >>> spmd.torch_xla.xla_model.set_rng_state(7)
    >>> spmd.torch_xla.xla_model.get_rng_state()
    7
    """
    seed, draws = state = seeds.get_state()
    if not (0 <= seed < _SEEDS and draws < _SEEDS // 2):
        seed, draws = seeds.loop_seed(state) % _SEEDS, 0
        seeds.set_state((seed, draws))
    return seed + draws * _SEEDS


_SEEDS = 1 << 32  # of these is a seed; scripts put the state into an int64 tensor


def set_rng_state(seed: int, device: Any = None) -> None:
    """Seeds the device's random stream, or restores the state that `get_rng_state` returned.

    >>> import torch, spmd
    >>> spmd.torch_xla.xla_model.set_rng_state(3)
    >>> first, state = (
    ...     torch.rand(2, device="xla").tolist(),
    ...     spmd.torch_xla.xla_model.get_rng_state(),
    ... )
    >>> second = torch.rand(2, device="xla").tolist()
    >>> spmd.torch_xla.xla_model.set_rng_state(state)
    >>> torch.rand(2, device="xla").tolist() == second
    True
    """
    if seed < 0:
        seeds.manual_seed(seed)
    else:
        seeds.set_state((seed % _SEEDS, seed // _SEEDS))


def fork_rng(device: Any = None, enabled: bool = True) -> contextlib.AbstractContextManager[None]:
    """Restores the state of the device's random stream at the end of the block.

    >>> import torch, spmd
    >>> with spmd.torch_xla.xla_model.fork_rng():
    ...     x = torch.rand(2, device="xla")
    """
    return seeds.fork() if enabled else contextlib.nullcontext()


def get_memory_info(device: Any = None) -> dict[str, int]:
    """The memory of all physical devices together, in bytes: {"bytes_used", "bytes_limit"}.

    >>> import spmd
    >>> sorted(spmd.torch_xla.xla_model.get_memory_info())
    ['bytes_limit', 'bytes_used']
    """
    return {
        "bytes_used": device_memory.memory_allocated(),
        "bytes_limit": device_memory.mem_get_info()[1],
    }


def get_stablehlo_bytecode(tensors: Sequence[torch.Tensor] | None = None) -> bytes:
    """The text of `spmd.get_stablehlo` as bytes, which tools of StableHLO read as they do bytecode.

    >>> import torch, spmd
    >>> b"stablehlo.add" in spmd.torch_xla.xla_model.get_stablehlo_bytecode(
    ...     [torch.ones(2, device="xla") + 1]
    ... )
    True
    """
    return get_stablehlo(tensors).encode()


def rendezvous(tag: str, payload: bytes = b"", replicas: Sequence[int] = ()) -> list[bytes]:
    """Waits until every process has come here; returns the payloads of all replicas, of the one
    logical device: [payload].

    Raises `ProcessError` where another process does something else.

    >>> import spmd
    >>> spmd.torch_xla.xla_model.rendezvous("saved", b"yes")
    [b'yes']
    """
    if processes.several():
        call = f"rendezvous {tag!r}"
        processes.agree(call, call.encode(), user_line())
    return [payload]


def mesh_reduce(tag: str, data: Any, reduce_fn: Callable[[list[Any]], Any]) -> Any:
    """Calls `reduce_fn` with the values of all replicas, that is, of the one logical device:
    reduce_fn([data]).

    >>> import spmd
    >>> spmd.torch_xla.xla_model.mesh_reduce(
    ...     "accuracy", 3.0, lambda values: sum(values) / len(values)
    ... )
    3.0
    """
    return reduce_fn([to_cpu(data)])
