"""Run programs that could take all threads of XLA's CPU client, many times, and report those that
never end.

    python tests/hanging.py                                             # 200 runs of each program,
                                                                        # under both partitioners
    python tests/hanging.py --runs 10000 --programs queue mix           # more of some of them
    python tests/hanging.py --runs 500 --devices 64
    python tests/hanging.py --without queue --programs queue --width 8  # any number of programs in
                                                                        # flight: hangs
    python tests/hanging.py --without width --programs callback         # a thread for each device
                                                                        # and no more: hangs
    python tests/hanging.py --width 12 --programs loops --runs 20       # one and a half for each:
                                                                        # hangs

`queue` launches programs that need no result of each other, none waited for. `callback` is a
program that calls Python on each device with arrays that XLA copies there. `mix` has every kind of
collective, in loops and outside, over the mesh and over each of its axes, not ordered by data.
`loops` are recurrent layers whose time is split over the devices, each a loop with collectives of
its own, and their gradients. `step` trains a transformer whose layers are a loop of the program. A
run that shows no progress for `--patience` seconds is a hang. The exit status is 1 where one hung.
"""

import argparse
import os
import queue
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from time import perf_counter

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # runs without being installed, too


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--programs", nargs="+", choices=tuple(PROGRAMS))
    parser.add_argument(
        "--partitioners", nargs="+", choices=("gspmd", "shardy"), default=["gspmd", "shardy"]
    )
    parser.add_argument(
        "--runs", type=int, default=200, help="of each program under each partitioner (default 200)"
    )
    parser.add_argument(
        "--devices", type=int, default=8, help="simulated devices, an even number (default 8)"
    )
    parser.add_argument(
        "--without", choices=("queue", "width"), help="what to leave out of the library"
    )
    parser.add_argument(
        "--width", type=int, help="threads in XLA's pools, instead of the library's number"
    )
    parser.add_argument(
        "--patience", type=float, default=60, help="seconds without an ended run (default 60)"
    )
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    args.programs = args.programs or list(PROGRAMS)
    return args


def queued(devices: int) -> Callable[[], None]:
    """Each run launches 12 programs, with an array uploaded for each; XLA takes 32 in flight on a
    device."""
    mesh = spmd.Mesh(range(devices), (devices,), ("x",))
    kept: deque[torch.Tensor] = deque(maxlen=1)  # what is dropped before its barrier never runs
    rows = [
        spmd.mark_sharding(torch.zeros(512, 512).to("xla"), mesh, ("x", None)) for _ in range(6)
    ]

    def run() -> None:
        for row in rows * 2:
            kept.append((row @ row.t()).sum() + torch.ones(64, 64).to("xla").sum())
            spmd.sync()

    return run


def calling_python(devices: int) -> Callable[[], None]:
    mesh = spmd.Mesh(range(devices), (devices,), ("x",))
    values = spmd.mark_sharding(torch.ones(512 * devices, 512).to("xla"), mesh, ("x", None))

    def double(array: jax.Array) -> jax.Array:
        return jax.pure_callback(
            lambda value: np.asarray(value) * 2, jax.ShapeDtypeStruct(array.shape, "f4"), array
        )

    def run() -> None:
        assert spmd.call_jax(double, values).sum().item() == 2 * values.numel()

    return run


def mixed(devices: int) -> Callable[[], None]:
    mesh = spmd.Mesh(range(devices), (devices // 2, 2), ("x", "y"))
    jax_mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(devices // 2, 2), ("x", "y"))
    axes = [("x", devices // 2), ("y", 2), (("x", "y"), devices)]

    def exchanged(part: jax.Array, kind: int, axis: str | tuple[str, ...], size: int) -> jax.Array:
        if kind == 0:
            return lax.psum(part, axis) / size
        if kind == 1:
            return lax.all_gather(part, axis)[0]
        if kind == 2:
            return lax.ppermute(part, axis, [(i, (i + 1) % size) for i in range(size)])
        return lax.all_to_all(part, axis, 0, 0, tiled=True)

    def body(part: jax.Array) -> jax.Array:
        total = part
        for number in range(12):
            kind, (axis, size) = number % 4, axes[number % 3]
            start = jnp.tanh(part * number)
            for _ in range(number % 3):  # some are ready before others
                start = jnp.tanh(start @ start.T @ start)
            total += exchanged(start, kind, axis, size)
            total += lax.fori_loop(
                0, 4, lambda _, carry, k=kind, a=axis, s=size: exchanged(carry, k, a, s), start
            )
        return total

    spec = jax.sharding.PartitionSpec(("x", "y"))
    program = jax.shard_map(body, mesh=jax_mesh, in_specs=spec, out_specs=spec, check_vma=False)
    values = spmd.mark_sharding(
        torch.rand(devices * devices, 64).to("xla"), mesh, (("x", "y"), None)
    )

    def run() -> None:
        assert spmd.call_jax(program, values).isfinite().all()

    return run


def recurrent(devices: int) -> Callable[[], None]:
    """Train recurrent layers: 18 loops with collectives, twelve of them not ordered by data, and as
    many for gradients.

    XLA's executor starts the op behind a loop while an iteration still runs, so that a device waits
    in two collectives.
    """
    mesh = spmd.Mesh(range(devices), (devices,), ("x",))
    torch.manual_seed(0)
    layers: list[nn.RNNBase] = []
    for cls in (nn.LSTM, nn.GRU, nn.RNN):
        for settings in (
            {},
            {"num_layers": 2, "bidirectional": True},
            {"bias": False, "batch_first": True},
        ):
            layers.append(cls(4, 6, dtype=torch.float64, **settings).to("xla"))
    for parameter in chain.from_iterable(layer.parameters() for layer in layers):
        if parameter.shape[0] % devices == 0:
            spmd.mark_sharding(parameter, mesh, ("x", *[None] * (parameter.ndim - 1)))
    values = spmd.mark_sharding(
        torch.rand(devices, 3, 4, dtype=torch.float64).to("xla"), mesh, ("x", None, None)
    )

    def run() -> None:
        made = []
        for layer in layers:
            inputs = values.clone().requires_grad_()
            output, _ = layer(inputs)
            made += [output, *torch.autograd.grad(output.sum(), [inputs, *layer.parameters()])]
        spmd.sync(wait=True)

    return run


def training(devices: int) -> Callable[[], None]:
    spmd.config.scan_layers = "always"
    mesh = spmd.Mesh(range(devices), (devices // 2, 2), ("fsdp", "tensor"))
    policy = partial(fsdp.transformer_auto_wrap_policy, transformer_layer_cls={Block})
    config = GPTConfig(layers=4, width=64, heads=4, sequence=16)
    model = fsdp.FullyShardedDataParallel(GPT(config).to("xla"), mesh=mesh, auto_wrap_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens = spmd.mark_sharding(
        torch.ones(devices, 16, dtype=torch.long).to("xla"), mesh, ("fsdp", None)
    )

    def run() -> None:
        cross_entropy(model(tokens), tokens).backward()
        optimizer.step()
        optimizer.zero_grad()
        spmd.sync()

    return run


PROGRAMS = {
    "queue": queued,
    "callback": calling_python,
    "mix": mixed,
    "loops": recurrent,
    "step": training,
}


def child(args: argparse.Namespace) -> None:
    """Make the runs of one program, and print a line for each that has ended."""
    if args.without == "queue":
        assert in_flight._MOST_OVER_SEVERAL, "the bound that this takes away"
        in_flight._MOST_OVER_SEVERAL = args.runs * 100
    spmd.config.partitioner = args.partitioners[0]
    spmd.config.program_cache = False
    spmd.simulate(args.devices)
    run = PROGRAMS[args.programs[0]](args.devices)
    if not args.without and not args.width:
        run()  # what it compiles takes a while on a busy machine, and is no hang
    print("ready", flush=True)
    for _ in range(args.runs):
        run()
        print("run", flush=True)
    spmd.sync(wait=True)
    print("end", flush=True)


def watch(program: str, partitioner: str, args: argparse.Namespace) -> str:
    """Return how the runs of a program ended, in a process of their own: "ended", "HUNG" or
    "FAILED"."""
    flags = ["--child", "--programs", program, "--partitioners", partitioner]
    flags += ["--runs", str(args.runs), "--devices", str(args.devices)]
    flags += ["--without", args.without] if args.without else []
    environment = {name: value for name, value in os.environ.items() if name != "PJRT_NPROC"}
    if args.without == "width" or args.width:
        environment["PJRT_NPROC"] = str(args.width or args.devices)
    process = subprocess.Popen(
        [sys.executable, __file__, *flags], stdout=subprocess.PIPE, text=True, env=environment
    )
    lines: queue.Queue[str] = queue.Queue()
    threading.Thread(
        target=lambda: [lines.put(line) for line in chain(process.stdout, [""])], daemon=True
    ).start()
    started, count, verdict = perf_counter(), 0, "HUNG"
    try:
        lines.get(timeout=600)  # imports, and what is on the devices before the first run
        while line := lines.get(timeout=args.patience):
            count += line == "run\n"
            verdict = "ended" if line == "end\n" else verdict
        verdict = "FAILED" if process.wait() or verdict != "ended" else verdict
    except queue.Empty:
        process.kill()
        process.wait()
    seconds = perf_counter() - started
    print(
        f"{program:9}{partitioner:7}{args.devices:4} devices {count:7} runs {seconds:8.1f} s  "
        f"{verdict}",
        flush=True,
    )
    return verdict


def main() -> None:
    args = parse()
    if args.child:
        child(args)
        return
    found = [watch(program, name, args) for name in args.partitioners for program in args.programs]
    sys.exit(any(verdict != "ended" for verdict in found))


if "--child" in sys.argv:  # the process that watches needs no device
    from functools import partial

    import numpy as np
    import torch

    # isort: off
    import spmd  # before jax: it sets what XLA reads from the environment
    import jax

    # isort: on
    import jax.numpy as jnp
    from jax import lax
    from torch import nn

    import fsdp
    from recipes.gpt import GPT, Block, GPTConfig, cross_entropy
    from spmd.core.base import in_flight

if __name__ == "__main__":
    main()
