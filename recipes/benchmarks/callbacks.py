"""Time torch's own CPU kernels, called back by XLA, next to torch eager and XLA's kernels.

    OMP_NUM_THREADS=1 python recipes/benchmarks/callbacks.py              # one device
    OMP_NUM_THREADS=1 python recipes/benchmarks/callbacks.py --devices 8  # a part of the batch on
                                                                          # each of 8

Sixteen convolutions one after the other and all their gradients, in one program. "handler" is a
function of XLA's FFI, written with ctypes: it makes tensors of the buffers without a copy, and
takes Python's lock. The decision that this led to is docs/decisions/callbacks.md; nothing here
asserts a time.
"""

import argparse
import ctypes
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # runs without being installed, too

# isort: off
import spmd  # before jax: it sets environment variables that XLA reads when jax is imported
import jax

# isort: on
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from recipes.benchmarks.cpu_options import row

aten = torch.ops.aten
CHAIN, BATCH = 16, 16
POINTER, SIZE, INT, LONG = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int64


def structure(name: str, **fields: Any) -> Any:
    """A struct of XLA's FFI (xla/ffi/api/c_api.h), which begins with its size and a pointer to
    extensions."""
    head = [("struct_size", SIZE), ("extension", fields.pop("extension", POINTER))]
    return type(name, (ctypes.Structure,), {"_fields_": [*head, *fields.items()]})


Version = structure("Version", major=INT, minor=INT)
Metadata = type(
    "Metadata", (ctypes.Structure,), {"_fields_": [("struct_size", SIZE), ("version", Version)]}
)
Asked = type(
    "Asked",
    (ctypes.Structure,),
    {
        "_fields_": [
            ("size", SIZE),
            ("type", INT),
            ("next", POINTER),
            ("metadata", ctypes.POINTER(Metadata)),
        ]
    },
)
Buffer = structure("Buffer", dtype=INT, data=POINTER, rank=LONG, dims=ctypes.POINTER(LONG))
Buffers = structure(
    "Buffers", size=LONG, types=POINTER, items=ctypes.POINTER(ctypes.POINTER(Buffer))
)
Text = type("Text", (ctypes.Structure,), {"_fields_": [("data", POINTER), ("size", SIZE)]})
Attributes = structure(
    "Attributes",
    size=LONG,
    types=POINTER,
    names=POINTER,
    items=ctypes.POINTER(ctypes.POINTER(Text)),
)
Frame = structure(
    "Frame",
    extension=ctypes.POINTER(Asked),
    api=POINTER,
    context=POINTER,
    stage=INT,
    arguments=Buffers,
    results=Buffers,
    attributes=Attributes,
)

kernels: dict[bytes, Callable[[list[torch.Tensor], list[torch.Tensor]], None]] = {}


@cache
def memory(size: int) -> Any:
    return ctypes.c_char * size


def tensor(buffer: Any) -> torch.Tensor:
    """A float32 tensor over a buffer of XLA's."""
    shape = buffer.contents.dims[: buffer.contents.rank]
    data = memory(4 * int(np.prod(shape))).from_address(buffer.contents.data)
    return torch.frombuffer(data, dtype=torch.float32).view(shape)


@ctypes.CFUNCTYPE(POINTER, ctypes.POINTER(Frame))
def handler(pointer: Any) -> None:
    frame = pointer.contents
    if frame.extension:  # XLA reads the version, once
        version = frame.extension.contents.metadata.contents.version
        version.major, version.minor = 0, 3
        return
    name = frame.attributes.items[0].contents
    arguments, results = frame.arguments, frame.results
    with torch.no_grad():
        kernels[ctypes.string_at(name.data, name.size)](
            [tensor(arguments.items[i]) for i in range(arguments.size)],
            [tensor(results.items[i]) for i in range(results.size)],
        )


def by_handler(
    name: str, run: Callable[..., tuple[torch.Tensor, ...]], results: list[Any]
) -> Callable[..., Any]:
    def kernel(operands: list[torch.Tensor], buffers: list[torch.Tensor]) -> None:
        for buffer, made in zip(buffers, run(*operands), strict=True):
            buffer.copy_(made)

    kernels[name.encode()] = kernel
    call = jax.ffi.ffi_call("torch_kernel", results)
    return lambda *arrays: call(*arrays, op=name)


def chain(forward: Callable[..., Any], backward: Callable[..., Any], x: Any, kernel: Any) -> Any:
    """The convolutions and their gradients; the output stands for its own gradient."""
    inputs = []
    for _ in range(CHAIN):
        inputs.append(x)
        (x,) = forward(x, kernel)
    for before in reversed(inputs):
        x, gradient = backward(x, before, kernel)
    return x, gradient


def chain_row(
    name: str, channels: int, size: int, window: int, groups: int, devices: int
) -> list[str]:
    torch.manual_seed(0)
    x = torch.randn(BATCH, channels, size, size)
    weight = (
        torch.randn(channels, channels // groups, window, window)
        / window
        / (channels // groups) ** 0.5
    )
    pad, shape = window // 2, (BATCH // devices, channels, size, size)
    how = [1, 1], [pad, pad], [1, 1], False, [0, 0], groups

    def forward(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (aten.convolution(x, weight, None, *how),)

    def backward(
        grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        return tuple(
            aten.convolution_backward(grad, x, weight, None, *how, [True, True, False])[:2]
        )

    def convolution(x: jax.Array, weight: jax.Array) -> tuple[jax.Array, ...]:
        numbers = ("NCHW", "OIHW", "NCHW")
        pads = [(pad, pad)] * 2
        return (jax.lax.conv_general_dilated(x, weight, (1, 1), pads, None, None, numbers, groups),)

    def convolution_backward(grad: jax.Array, x: jax.Array, weight: jax.Array) -> Any:
        return jax.vjp(lambda *both: convolution(*both)[0], x, weight)[1](grad)

    result = [jax.ShapeDtypeStruct(shape, jnp.float32)]
    results = [*result, jax.ShapeDtypeStruct(weight.shape, jnp.float32)]
    ways = {
        "handler": (
            by_handler(f"{name}, forward", forward, result),
            by_handler(f"{name}, back", backward, results),
        ),
        "XLA": (convolution, convolution_backward),
    }
    mesh = jax.make_mesh((devices,), ("data",))
    placed = jax.device_put(jnp.asarray(x.numpy()), NamedSharding(mesh, PartitionSpec("data")))
    copied = jax.device_put(jnp.asarray(weight.numpy()), NamedSharding(mesh, PartitionSpec()))

    def timed(way: tuple[Callable[..., Any], Callable[..., Any]]) -> Callable[[], Any]:
        def part(x: jax.Array, weight: jax.Array) -> Any:
            x, gradient = chain(*way, x, weight)
            return x, jax.lax.psum(gradient, "data")

        specs = PartitionSpec("data"), PartitionSpec()
        program = jax.jit(
            jax.shard_map(part, mesh=mesh, in_specs=specs, out_specs=specs, check_vma=False)
        )
        return lambda: jax.block_until_ready(program(placed, copied))

    sides: dict[str, Callable[[], Any]] = {"torch": lambda: chain(forward, backward, x, weight)}
    return row(name, sides | {side: timed(way) for side, way in ways.items()}, 3)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--devices", type=int, default=1)
    devices = parser.parse_args().devices
    spmd.simulate(devices)
    address = ctypes.cast(handler, POINTER).value
    assert address is not None
    jax.ffi.register_ffi_target(
        "torch_kernel", jax.ffi.pycapsule(address), platform="cpu", api_version=1
    )  # type: ignore[arg-type]
    table = Table("", "torch ms", "handler", "XLA", title=f"over torch's time, {devices} devices")
    for case in (
        ("64 features of 16 x 16, 3 x 3", 64, 16, 3, 1),
        ("256 features of 4 x 4, 3 x 3", 256, 4, 3, 1),
        ("96 features of 32 x 32, 1 x 1", 96, 32, 1, 1),
    ):
        table.add_row(*chain_row(*case, devices))
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
