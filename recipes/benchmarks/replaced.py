"""Time one GPT training step of this library, of the systems that it replaces, and of JAX by hand:
a process a side.

    python3.11 -m venv .venv-torch-xla  # PyTorch/XLA has an environment of its own
    .venv-torch-xla/bin/python -m pip install torch==2.9.0 torch_xla==2.9.0 numpy
    python recipes/benchmarks/replaced.py
    python recipes/benchmarks/replaced.py --torch-xla elsewhere/bin/python --rounds 3
    python recipes/benchmarks/replaced.py --sides torch.compile "torch-spmd, spmd.compile, 1 device"

Every side trains the GPT of `recipes/gpt.py` (JAX: of `jax_gpt.py`) from equal weights on the same
batches by AdamW with clipping, in float32 on this machine's CPU. Torch has all threads and the
fused AdamW; with `torch.compile` model and loss are one function, in its default mode. PyTorch/XLA
has one device, or eight by SPMD under FSDPv2, and its persistent cache; this library and JAX have
one device, or eight under FSDP, and their caches. `--xla-options` gives JAX and PyTorch/XLA on
eight devices the compiler options that this library gives its programs of FSDP: PyTorch/XLA 2.9 has
none for a program, so its process gets those that its XLA knows in XLA_FLAGS, and a line says
which. PyTorch/XLA's processes import nothing of this library.

A start is a process from its beginning to the end of its first and of its third step; from the
fourth on no side compiles. The first start finds an empty cache, the second one what the first has
left. The last processes stay, and run a step each in turn, so that other load of the machine falls
on all: medians are of these rounds. A step is timed from the batch in host memory to the new state
being ready. "peak" is the resident memory beyond that after the imports, of all devices together:
in the rounds, and until the first start's third step, compilers included. Losses that differ end
the program with an error; no time does.
"""

import argparse
import ctypes
import functools
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # runs without being installed, too

LEARNING_RATE = 3e-4
HEADS = 8
UNTIMED = 3  # steps: compiles, and the two calls that spmd.compile records
Arrays = Mapping[str, np.ndarray]
Facts = dict[str, Any]


class Program(NamedTuple):
    """A side in its process: a step on a batch to its end, the last loss, and what is to be said of
    its cache."""

    step: Callable[[np.ndarray, np.ndarray], None]
    loss: Callable[[], float]
    note: Callable[[], str] = lambda: ""


# --- the sides: each runs in a process that has imported its modules alone ------------------------


def _gpt(options: argparse.Namespace, weights: Arrays) -> Any:
    torch, gpt = import_module("torch"), import_module("recipes.gpt")
    model = gpt.GPT(gpt.GPTConfig(options.layers, options.width, HEADS, options.sequence))
    model.load_state_dict({name: torch.from_numpy(value) for name, value in weights.items()})
    return model


def _torch_program(
    model: Any,
    loss_of: Callable[[Any, Any], Any],
    *,
    put: Callable[[Any], Any] = lambda values: values,
    end: Callable[[], object] = lambda: None,
    compiled: Callable[[Any], Any] = lambda update: update,
    note: Callable[[], str] = lambda: "",
    **of_adam: bool,
) -> Program:
    """The usual step in PyTorch. put: a batch to the device. end: waits for the device. compiled:
    of the update."""
    torch = import_module("torch")
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=LEARNING_RATE, weight_decay=0.01, **of_adam
    )
    losses = []

    def update(tokens: Any, targets: Any) -> Any:
        loss = loss_of(tokens, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    update = compiled(update)

    def step(tokens: np.ndarray, targets: np.ndarray) -> None:
        losses[:] = [update(*(put(torch.from_numpy(values)) for values in (tokens, targets)))]
        end()

    return Program(step, lambda: losses[0].item(), note)


def _loss_of(model: Any) -> Callable[[Any, Any], Any]:
    cross_entropy = import_module("recipes.gpt").cross_entropy
    return lambda tokens, targets: cross_entropy(model(tokens), targets)


def torch_side(
    options: argparse.Namespace, weights: Arrays, devices: int, *, compiles: bool
) -> Program:
    torch = import_module("torch")
    torch.set_num_threads(os.cpu_count() or 1)
    model = _gpt(options, weights)
    loss_of = _loss_of(model)
    return _torch_program(model, torch.compile(loss_of) if compiles else loss_of, fused=True)


def torch_xla_side(options: argparse.Namespace, weights: Arrays, devices: int) -> Program:
    torch_xla, runtime = import_module("torch_xla"), import_module("torch_xla.runtime")
    metrics, xla_model = (
        import_module("torch_xla.debug.metrics"),
        import_module("torch_xla.core.xla_model"),
    )
    runtime.initialize_cache(options.cache, readonly=False)
    if devices > 1:
        runtime.use_spmd()
    model, put = _gpt(options, weights).to("xla"), lambda values: values.to("xla")
    if devices > 1:
        spmd = import_module("torch_xla.distributed.spmd")
        mesh = spmd.Mesh(np.arange(devices), (devices, 1), ("fsdp", "model"))
        wrapped = import_module("torch_xla.experimental.spmd_fully_sharded_data_parallel")
        policy = functools.partial(
            import_module("torch_xla.distributed.fsdp.wrap").transformer_auto_wrap_policy,
            transformer_layer_cls={import_module("recipes.gpt").Block},
        )
        model = wrapped.SpmdFullyShardedDataParallel(model, mesh=mesh, auto_wrap_policy=policy)

        def put(values: Any) -> Any:
            values = values.to("xla")
            spmd.mark_sharding(values, mesh, ("fsdp", None))
            return values

    def end() -> None:
        torch_xla.sync()
        xla_model.wait_device_ops()

    def note() -> str:
        counts = {
            name: metrics.counter_value(name)
            for name in metrics.counter_names()
            if "PersistentCache" in name
        }
        facts = {
            "torch": import_module("torch").__version__,
            "torch_xla": torch_xla.__version__,
            **counts,
        }
        return ", ".join(f"{name} {fact}" for name, fact in facts.items())

    return _torch_program(model, _loss_of(model), put=put, end=end, note=note)


def our_side(
    options: argparse.Namespace, weights: Arrays, devices: int, *, compiles: bool
) -> Program:
    spmd, layouts = import_module("spmd"), import_module("recipes.benchmarks.layouts")
    model, put = _gpt(options, weights).to("xla"), lambda values: values.to("xla")
    if devices > 1:
        spmd.simulate(devices)
        mesh = spmd.Mesh(range(devices), (devices,), ("fsdp",))
        model = layouts.sharded(model, "fsdp", mesh)

        def put(values: Any) -> Any:
            return spmd.mark_sharding(values.to("xla"), mesh, layouts.batch_spec("fsdp"))

    compiled = spmd.compile if compiles else lambda update: update
    end = functools.partial(spmd.sync, wait=True)
    return _torch_program(model, _loss_of(model), put=put, end=end, compiled=compiled)


def jax_side(options: argparse.Namespace, weights: Arrays, devices: int) -> Program:
    jax = import_module("jax")
    jax.config.update("jax_num_cpu_devices", devices)
    jax.config.update("jax_compilation_cache_dir", options.cache)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    program = import_module("recipes.benchmarks.jax_gpt").build(
        {name: value.shape for name, value in weights.items()},
        batch=options.batch,
        sequence=options.sequence,
        heads=HEADS,
        devices=devices,
        compiler_options=dict(option.split("=", 1) for option in options.xla_options.split())
        if devices > 1
        else {},
    )
    latest = [program.initialise(weights), None]

    def step(tokens: np.ndarray, targets: np.ndarray) -> None:
        batch = program.put_batch(tokens), program.put_batch(targets)
        latest[:] = jax.block_until_ready(
            program.step(latest[0], *batch, np.float32(LEARNING_RATE))
        )

    return Program(step, lambda: float(latest[1]))


class Side(NamedTuple):
    """One row: the program, what its process imports, and on how many devices it runs."""

    make: Callable[[argparse.Namespace, Arrays, int], Program]
    modules: tuple[str, ...]
    devices: int = 1

    @property
    def is_torch_xla(self) -> bool:
        return "torch_xla" in self.modules


_LAZY, _COMPILED = (
    functools.partial(our_side, compiles=False),
    functools.partial(our_side, compiles=True),
)
_OURS = ("torch", "spmd", "fsdp")
SIDES = {
    "torch, eager": Side(functools.partial(torch_side, compiles=False), ("torch",)),
    "torch.compile": Side(functools.partial(torch_side, compiles=True), ("torch",)),
    "PyTorch/XLA 2.9, 1 device": Side(torch_xla_side, ("torch", "torch_xla")),
    "torch-spmd, lazily, 1 device": Side(_LAZY, _OURS),
    "torch-spmd, spmd.compile, 1 device": Side(_COMPILED, _OURS),
    "JAX by hand, 1 device": Side(jax_side, ("jax",)),
    "PyTorch/XLA 2.9, FSDPv2, 8 devices": Side(torch_xla_side, ("torch", "torch_xla"), 8),
    "torch-spmd, lazily, 8 devices": Side(_LAZY, _OURS, 8),
    "torch-spmd, spmd.compile, 8 devices": Side(_COMPILED, _OURS, 8),
    "JAX by hand, 8 devices": Side(jax_side, ("jax",), 8),
}


# --- a side's process -----------------------------------------------------------------------------


def resident(name: str) -> int:
    """Bytes of this process by their name in /proc: VmRSS, now; VmHWM, the most."""
    line = next(
        line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name)
    )
    return int(line.split()[1]) * 1024


def child(options: argparse.Namespace) -> None:
    """Runs a side: its first steps at once, another for each line of the input; answers in lines of
    JSON."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what the systems print goes to the log

    def answer(**facts: object) -> None:
        print(json.dumps(facts), file=answers)

    side = SIDES[options.child]
    for module in side.modules:
        import_module(module)
    # what imports and compilers have freed goes back to the system
    trim = ctypes.CDLL(None).malloc_trim
    trim(0)
    before, batches = resident("VmRSS"), np.load(options.data / "batches.npy")
    with np.load(options.data / "weights.npz") as weights:
        program = side.make(options, dict(weights), side.devices)
    ends = []
    for batch in batches[:UNTIMED]:
        program.step(*batch)
        ends.append(time.time() - options.started)
    answer(first=ends[0], third=ends[-1], peak=resident("VmHWM") - before)
    trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins anew
    for batch in batches[UNTIMED:]:
        if not sys.stdin.readline():
            return
        start = time.perf_counter()
        program.step(*batch)
        answer(seconds=time.perf_counter() - start)
    answer(loss=program.loss(), peak=resident("VmHWM") - before, note=program.note())


class Process:
    """The process of a side, with a cache in a folder."""

    def __init__(self, name: str, options: argparse.Namespace, data: Path, cache: Path) -> None:
        caches = {
            "SPMD_PROGRAM_CACHE": "1",
            "SPMD_PROGRAM_CACHE_DIR": str(cache / "spmd"),  # its own: only its owner may enter it
            "TORCHINDUCTOR_CACHE_DIR": str(cache),
            "TRITON_CACHE_DIR": str(cache / "triton"),
        }
        xla = (
            {"PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": str(SIDES[name].devices)}
            if SIDES[name].is_torch_xla
            else {}
        )
        if xla and SIDES[name].devices > 1:
            xla["XLA_FLAGS"] = " ".join(
                f"--{option}"
                for option in known_options(python_of(name, options), options.xla_options)
            )
        usual = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("XLA_", "JAX_", "PJRT_"))
        }
        keys = ("layers", "width", "sequence", "batch", "xla_options")
        sizes = [f"--{key.replace('_', '-')}={getattr(options, key)}" for key in keys]
        self.name, self.log = name, data / "log"
        command = [python_of(name, options), __file__, *sizes, "--child", name, "--data", str(data)]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [*command, "--cache", str(cache), "--started", str(time.time())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**usual, **caches, **xla},
            )
        self.start = self.answer()

    def answer(self) -> Facts:
        """The next line of the side; raises SystemExit with the end of its log where it has ended
        instead."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.end()
            raise SystemExit(
                f"{self.name}: exit status {self.process.returncode} instead of a step\n"
                f"{self.log.read_text()[-3000:]}"
            )
        facts: Facts = json.loads(line)
        return facts

    def step(self) -> float:
        """Runs a step; returns its seconds."""
        assert self.process.stdin is not None
        print(file=self.process.stdin, flush=True)
        return float(self.answer()["seconds"])

    def end(self) -> None:
        self.process.communicate()


# --- the comparison -------------------------------------------------------------------------------


def python_of(name: str, options: argparse.Namespace) -> str:
    return str(options.torch_xla) if SIDES[name].is_torch_xla else sys.executable


@functools.cache
def known_options(python: str, options: str) -> tuple[str, ...]:
    """Options NAME=VALUE that the XLA of an interpreter's PyTorch/XLA knows; it aborts at
    others."""
    script = "import torch, torch_xla; torch.ones(1, device='xla').cpu()"
    known = []
    for option in options.split():
        settings = {**os.environ, "PJRT_DEVICE": "CPU", "XLA_FLAGS": f"--{option}"}
        done = subprocess.run([python, "-c", script], env=settings, capture_output=True, text=True)
        if done.returncode == 0:
            known.append(option)
        elif "Unknown flag" not in done.stderr:
            raise SystemExit(
                f"XLA_FLAGS=--{option} {python}: exit status {done.returncode}\n"
                f"{done.stderr[-3000:]}"
            )
    return tuple(known)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--sequence", type=int, default=128)
    parser.add_argument(
        "--batch", type=int, default=16, help="sequences per step, over all devices (default 16)"
    )
    parser.add_argument(
        "--rounds", type=int, default=9, help="timed steps of each side, in turn (default 9)"
    )
    parser.add_argument(
        "--starts",
        type=int,
        default=3,
        help="second starts, of which the median is shown (default 3)",
    )
    parser.add_argument(
        "--sides", nargs="+", choices=SIDES, default=[*SIDES], metavar="SIDE", help="; ".join(SIDES)
    )
    parser.add_argument(
        "--torch-xla",
        type=Path,
        default=ROOT / ".venv-torch-xla/bin/python",
        metavar="PYTHON",
        help="the interpreter with PyTorch/XLA (default .venv-torch-xla/bin/python)",
    )
    parser.add_argument(
        "--xla-options",
        default="",
        help="for JAX and PyTorch/XLA on several devices: NAME=VALUE, by spaces",
    )
    # a process that another one began at this time
    parser.add_argument("--child", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--started", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--data", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--cache", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if (
        not options.torch_xla.exists()
        and any(SIDES[name].is_torch_xla for name in options.sides)
        and not options.child
    ):
        parser.error(
            f"--torch-xla {options.torch_xla} is not there: see --help, or name other --sides"
        )
    return options


def write_data(options: argparse.Namespace, folder: Path) -> None:
    """Writes the weights and the batches (step, tokens and targets, batch, sequence) that all sides
    read."""
    torch, text, gpt = (import_module(name) for name in ("torch", "recipes.text", "recipes.gpt"))
    torch.manual_seed(0)
    model = gpt.GPT(gpt.GPTConfig(options.layers, options.width, HEADS, options.sequence))
    np.savez(
        folder / "weights.npz",
        **{name: value.numpy() for name, value in model.state_dict().items()},
    )
    drawn = text.batches(text.load().train, batch=options.batch, sequence=options.sequence, seed=0)
    pairs = [np.stack(next(drawn)) for _ in range(UNTIMED + options.rounds)]
    np.save(folder / "batches.npy", np.stack(pairs))


def measured(
    options: argparse.Namespace, folder: Path, say: Callable[[str], object]
) -> dict[str, Facts]:
    """Starts every side, first without a cache and then with it, and runs the rounds; returns the
    figures by side."""
    facts: dict[str, Facts] = {}
    processes: dict[str, Process] = {}
    for number, name in enumerate(options.sides):
        data, cache = folder / str(number), folder / f"cache-{number}"
        data.mkdir()
        for file in ("weights.npz", "batches.npy"):
            (data / file).symlink_to(folder / file)
        say(f"starts: {name}")
        imports = "import " + ", ".join(SIDES[name].modules)  # Python's bytecode is on disk then
        subprocess.run(
            [python_of(name, options), "-c", imports], cwd=ROOT, check=True, capture_output=True
        )
        starts: list[Facts] = []
        for start in range(1 + options.starts):
            process = Process(name, options, data, cache)
            starts.append(process.start)
            if start < options.starts:
                process.end()
        processes[name] = process
        second = {
            key: statistics.median(start[key] for start in starts[1:]) for key in ("first", "third")
        }
        facts[name] = {"cold": starts[0], "second": second}
    seconds: dict[str, list[float]] = {name: [] for name in processes}
    for number in range(options.rounds):
        for name, process in processes.items():
            say(f"round {number + 1} of {options.rounds}: {name}")
            seconds[name].append(process.step())
    for name, process in processes.items():
        facts[name] |= process.answer() | {"seconds": seconds[name]}
        process.end()
    return facts


def compare_losses(facts: Mapping[str, Facts]) -> None:
    """Raises SystemExit where a side's loss is not that of the others: its time would say
    nothing."""
    losses = {name: side["loss"] for name, side in facts.items()}
    first = next(iter(losses.values()))
    if not all(math.isclose(loss, first, rel_tol=1e-4) for loss in losses.values()):
        raise SystemExit(f"expected equal losses up to 1e-4, got {losses}")


def rows(facts: Mapping[str, Facts]) -> list[list[str]]:
    """The rows of the table, a side each."""
    texts = []
    for name, side in facts.items():
        milliseconds = [1e3 * seconds for seconds in side["seconds"]]
        starts = (side[start][step] for start in ("cold", "second") for step in ("first", "third"))
        texts.append(
            [
                name,
                f"{statistics.median(milliseconds):.0f}",
                f"{min(milliseconds):.0f} to {max(milliseconds):.0f}",
                f"{side['peak'] / 1e6:,.0f}",
                f"{side['cold']['peak'] / 1e6:,.0f}",
                *(f"{seconds:.1f}" for seconds in starts),
            ]
        )
    return texts


COLUMNS = (
    "side",
    "step ms",
    "from to",
    "peak MB",
    "with compilers",
    "first start s: 1 step",
    "3 steps",
    "second start s: 1 step",
    "3 steps",
)


def main() -> None:
    options = parse()
    if options.child:
        child(options)
        return
    console = import_module("rich.console").Console(width=170)
    with tempfile.TemporaryDirectory() as parent, console.status("") as status:
        write_data(options, Path(parent))
        facts = measured(options, Path(parent), status.update)
    compare_losses(facts)
    size = (
        f"{options.layers} layers, width {options.width}, {options.batch} x {options.sequence} "
        "tokens"
    )
    title = (
        f"A GPT's training step on {os.cpu_count()} cores: {size}, median of {options.rounds} "
        "rounds"
    )
    table = import_module("rich.table").Table(*COLUMNS, title=title, title_justify="left")
    for row in rows(facts):
        table.add_row(*row)
    console.print(table)
    for name in (name for name in facts if facts[name]["note"]):
        console.print(f"{name}, second start: {facts[name]['note']}", highlight=False)
    for name in (
        name
        for name, side in SIDES.items()
        if name in facts and side.is_torch_xla and side.devices > 1
    ):
        known = known_options(python_of(name, options), options.xla_options)
        console.print(f"{name}: XLA's options {' '.join(known) or 'none'}", highlight=False)


if __name__ == "__main__":
    main()
