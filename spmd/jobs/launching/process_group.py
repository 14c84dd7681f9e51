"""torch.distributed's process group "xla", and its rendezvous xla://: the processes of
`spmd.initialize`."""

import socket
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d
from torch.distributed.rendezvous import register_rendezvous_handler
from torch.futures import Future
from torch.utils._pytree import tree_leaves

from ...core import Patch, XlaTensor, guarded, hardware, processes, variables
from ...tensors.launch import initialize
from . import sealed_objects as objects

_LOOPBACK = "127.0.0.1"
_TIMEOUT = timedelta(minutes=30)  # torch's own for gloo


def rendezvous(url: str, timeout: timedelta = _TIMEOUT, **_: Any) -> Iterator[tuple[Any, int, int]]:
    """Yields a store of all processes, the index of this one, and their number; joins those of a
    launcher first.

    The first process keeps the store at a free port, which the others learn from jax's own. Source:
    `torch.distributed.rendezvous`, `torch_xla.distributed.xla_backend`.
    """
    if (
        not processes.several()
        and (variables.launched().num_processes or 1) > 1
        and not hardware.is_running()
    ):
        initialize()
    rank, size = processes.index(), processes.count()
    if size == 1:
        yield dist.HashStore(), 0, 1
    else:
        if rank == 0:
            host = _LOOPBACK if processes.is_local() else socket.gethostname()
            with socket.create_server((_LOOPBACK if processes.is_local() else "", 0)) as listening:
                port = listening.getsockname()[1]
                store = dist.TCPStore(
                    host,
                    port,
                    size,
                    is_master=True,
                    timeout=timeout,
                    wait_for_workers=False,
                    master_listen_fd=listening.detach(),
                )
            processes.publish("spmd/rendezvous", f"{host}:{port}", allow_overwrite=True)
        else:
            address = processes.polled("spmd/rendezvous", timeout.total_seconds())
            if address is None:
                raise RuntimeError(f"xla://: process 0 did not join within {timeout}")
            host, port_text = address.rsplit(":", 1)
            store = dist.TCPStore(host, int(port_text), size, is_master=False, timeout=timeout)
        yield store, rank, size
    raise RuntimeError("xla:// is one rendezvous: the processes cannot join again")


class XlaProcessGroup(dist.ProcessGroup):
    """The processes as a group. Tensors on the CPU, and objects, are exchanged by gloo, each
    process having its own.

    A tensor on xla is one tensor of all processes, so a collective needs no exchange: the sum of N
    processes' tensors is N times the tensor, a broadcast is the tensor. A collective that would
    give each process another tensor on xla (`scatter`, `reduce_scatter`, `all_to_all`, `send`)
    raises, where there are several processes: `mark_sharding` says where the parts of a tensor are.
    """

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta):
        super().__init__(rank, size)  # type: ignore[call-arg]  # torch's stubs know only its own constructor
        gloo: Any = dist.ProcessGroupGloo  # whose options torch's stubs lack
        options = timeout
        if processes.is_local():
            options = gloo._Options()
            options._timeout, options._devices = timeout, [gloo.create_device(hostname=_LOOPBACK)]
        self._host = gloo(store, rank, size, options)

    def getBackendName(self) -> str:
        """The name "xla"; torch calls it."""
        return "xla"


def _reduced(tensor: torch.Tensor, op: Any, size: int) -> None:
    kind = getattr(op, "op", op)
    if kind == dist.ReduceOp.SUM:
        tensor.mul_(size)
    elif kind == dist.ReduceOp.PRODUCT:
        tensor.pow_(size)
    elif kind == dist.ReduceOp.BXOR:
        tensor.mul_(size % 2)
    elif kind not in (
        dist.ReduceOp.AVG,
        dist.ReduceOp.MAX,
        dist.ReduceOp.MIN,
        dist.ReduceOp.BAND,
        dist.ReduceOp.BOR,
    ):
        raise NotImplementedError(f"a reduction of tensors on xla by {kind}")


def _allreduce(size: int, tensors: list[torch.Tensor], options: Any = None) -> Any:
    for tensor in tensors:
        _reduced(tensor, dist.ReduceOp.SUM if options is None else options.reduceOp, size)
    return tensors


def _gathered(
    size: int, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], options: Any = None
) -> Any:
    # outputs: empty where this process is not the root
    for tensor_list, tensor in zip(outputs, inputs, strict=False):
        for output in tensor_list:
            output.copy_(tensor)
    return outputs


def _gathered_whole(
    size: int, output: torch.Tensor, tensor: torch.Tensor, options: Any = None
) -> Any:
    """Of a tensor that holds all parts, one behind the other or along a new first dim."""
    output.view(size, *tensor.shape).copy_(tensor.unsqueeze(0).expand(size, *tensor.shape))
    return output


def _exchanged(size: int, outputs: Any, inputs: Any, *options: Any) -> Any:
    """Of parts that one process sends to itself."""
    for output, part in zip(tree_leaves(outputs), tree_leaves(inputs), strict=True):
        output.copy_(part)
    return outputs


_ON_DEVICE: dict[str, Callable[..., Any]] = {
    "allreduce": _allreduce,
    "allreduce_coalesced": _allreduce,
    "reduce": _allreduce,
    "broadcast": lambda size, tensors, options=None: tensors,
    "allgather": _gathered,
    "gather": _gathered,
    "_allgather_base": _gathered_whole,
    "all_gather_single": _gathered_whole,
}
_OF_PARTS = (
    "scatter",
    "reduce_scatter",
    "_reduce_scatter_base",
    "reduce_scatter_single",
    "alltoall",
    "alltoall_base",
    "all_to_all_single",
)


def _collective(name: str) -> Callable[..., Any]:
    def call(self: XlaProcessGroup, *args: Any, **kwargs: Any) -> Any:
        if not any(isinstance(leaf, XlaTensor) for leaf in tree_leaves((args, kwargs))):
            return getattr(self._host, name)(*args, **kwargs)
        function = _ON_DEVICE.get(name) or (
            _exchanged if name in _OF_PARTS and self.size() == 1 else None
        )
        if function is None:
            raise NotImplementedError(
                f"{name} of tensors on xla: each is one tensor of all processes, and no process "
                "has a part of its own. spmd.mark_sharding says where its parts are; "
                "spmd.shard_map runs code on one part, with collectives"
            )
        done: Future[Any] = Future()
        done.set_result(function(self.size(), *args, **kwargs))
        return _distributed_c10d._create_work_from_future(done)  # type: ignore[attr-defined]

    return call


for _name in (
    *_ON_DEVICE,
    *_OF_PARTS,
    "barrier",
    "monitored_barrier",
    "send",
    "recv",
    "recv_anysource",
):
    setattr(XlaProcessGroup, _name, _collective(_name))


def register() -> None:
    """Makes the names "xla" and "xla://" known to torch.distributed, the first as the default of
    the device."""
    if "xla" not in dist.Backend.backend_list:
        dist.Backend.register_backend("xla", XlaProcessGroup, devices=["xla"])
        for scheme in ("xla", "pjrt"):  # the second is PyTorch/XLA's before 2.1
            register_rendezvous_handler(scheme, rendezvous)


def _packed(to_tensor: Callable[..., Any], obj: Any, device: Any, group: Any, *options: Any) -> Any:
    """An object of the group "xla", which `objects` reads: torch's own collectives unpickle what
    comes, but with the `weights_only=True` of torch 2.15, which is among the options."""
    if any(options) or dist.get_backend(group) != "xla":
        return to_tensor(obj, device, group, *options)
    content = torch.frombuffer(bytearray(objects.sealed(obj)), dtype=torch.uint8).to(device)
    return content, torch.tensor([content.numel()], device=device)


def _unpacked(
    to_object: Callable[..., Any], tensor: Any, tensor_size: Any, group: Any, *options: Any
) -> Any:
    if any(options) or dist.get_backend(group) != "xla":
        return to_object(tensor, tensor_size, group, *options)
    return objects.opened(tensor.cpu().numpy().tobytes()[:tensor_size])


_C10D = "torch.distributed.distributed_c10d"
Patch(
    f"`{_C10D}._object_to_tensor(obj, device, group, ...)`, "
    f"`{_C10D}._tensor_to_object(tensor, tensor_size, group, ...)`",
    "objects that no other sender can prove",
    None,
    (_packed, _unpacked),
).apply()
_BACKEND = "torch.distributed.Backend"
guarded(
    (f"{_BACKEND}.register_backend", f"{_BACKEND}.default_device_backend_map"),
    "its process group xla",
    register,
)
