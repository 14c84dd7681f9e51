"""One of several processes that tests start: `python programs.py NAME PORT INDEX`; PORT "env": as
the launcher says.

Each is a function of what a user would write. What holds in every process is asserted here; what is
printed as JSON is compared by the test.
"""

import dataclasses
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

import fsdp
import spmd
from recipes.gpt import GPT, Block, GPTConfig, cross_entropy
from spmd.steps.replay.compiled_function import CompiledFunction
from tests.alike import WHERE, alike
from tests.processes.keywords import keywords as keywords

CONFIG = GPTConfig(layers=2, width=32, heads=2, sequence=16)
DEEPER = dataclasses.replace(CONFIG, layers=4)
STEPS = 4


def losses(
    between: Callable[[Any], None] = lambda model: None,
    *,
    config: GPTConfig = CONFIG,
    compiled: bool = False,
) -> list[float]:
    """FSDP training of a GPT in which each process has its part of the batch; the loss of each
    step.

    compiled: by `spmd.compile`, the number of replayed steps is printed.
    """
    torch.manual_seed(0)
    mesh = spmd.Mesh(spmd.device_ids(), (8,), ("fsdp",))
    policy = partial(fsdp.transformer_auto_wrap_policy, transformer_layer_cls={Block})
    model = fsdp.FullyShardedDataParallel(GPT(config), mesh, auto_wrap_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    batches = torch.Generator().manual_seed(1)

    def step(inputs: Tensor, targets: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        return loss.detach()

    run = spmd.compile(step) if compiled else step
    found = []
    for _ in range(STEPS):
        tokens = torch.randint(CONFIG.vocabulary, (16, CONFIG.sequence + 1), generator=batches)
        part = tokens.chunk(spmd.process_count())[spmd.process_index()]
        inputs, targets = (
            spmd.from_process_local(half.contiguous(), mesh, ("fsdp", None))
            for half in (part[:, :-1], part[:, 1:])
        )
        loss = run(inputs, targets)
        spmd.sync()
        found.append(loss.item())
        between(model)
    if isinstance(run, CompiledFunction):
        print("replayed", run.num_replayed)
    return found


def train() -> Any:
    found = losses()
    return {"losses": found, "programs": [record.name for record in spmd.metrics.compiles()]}


def train_compiled() -> Any:
    """After three steps the second process must record the next one again, which the first one
    replays."""
    done = []

    def between(model: Any) -> None:
        done.append(model)
        if len(done) == 3 and spmd.process_index() == 1:
            model.register_forward_hook(lambda *_: None)

    found = losses(between, compiled=True)
    return {"losses": found, "programs": [record.name for record in spmd.metrics.compiles()]}


def dynamic() -> Any:
    """Training on batches of many lengths, marked as dynamic: losses, and programs after the first
    step."""
    torch.manual_seed(0)
    mesh = spmd.Mesh(spmd.device_ids(), (8,), ("fsdp",))
    model = fsdp.FullyShardedDataParallel(GPT(CONFIG), mesh)
    found, counts = [], []
    for length in (9, 16, 5, 12):
        tokens = torch.randint(
            CONFIG.vocabulary, (8, length), generator=torch.Generator().manual_seed(length)
        )
        inputs = spmd.mark_dynamic(spmd.mark_sharding(tokens.to("xla"), mesh, ("fsdp", None)), 1)
        before = spmd.metrics.num_compiles()
        loss = cross_entropy(model(inputs)[:, :-1], inputs[:, 1:])
        loss.backward()
        model.zero_grad()
        spmd.sync()
        found.append(loss.item())
        counts.append(spmd.metrics.num_compiles() - before)
    return {"losses": found, "later programs": sum(counts[1:])}


def stores() -> Any:
    """The same with all state as rows of stores; between the steps the first process alone reads
    its pieces of one."""
    setattr(*WHERE, alike)

    def read(model: torch.nn.Module) -> None:
        weight = model.blocks[1].mlp.up.weight
        assert weight._storage.value.store is not None
        if spmd.process_index() == 0:
            shards = spmd.local_shards(weight)
            assert len(shards) == 4 and all(shard.data.isfinite().all() for shard in shards)

    return {
        "losses": losses(read),
        "programs": [record.cause for record in spmd.metrics.compiles()],
    }


def rolled() -> Any:
    """With layers in loops; between the steps the first process alone reads its pieces of one
    layer."""
    spmd.config.scan_layers = "always"

    def read(model: torch.nn.Module) -> None:
        weight = model.blocks[1].mlp.up.weight
        assert (
            weight._storage.value.store is not None
            and len(weight._storage.value.store) == DEEPER.layers
        )
        if spmd.process_index() == 0:
            assert len(spmd.local_shards(weight)) == 4

    found = losses(read, config=DEEPER)
    return {"losses": found, "loops": [record.loops for record in spmd.metrics.compiles()]}


class Ring:
    """A cycle of references: only Python's collector frees it, and what it holds."""

    def __init__(self) -> None:
        self.me, self.held = self, None


def die_in_a_cycle(ring: Ring, plain: torch.Tensor) -> None:
    """Leaves a recorded value in a cycle of which nobody knows any more, and has one process make
    much garbage."""
    ring.held = plain * 3
    del ring
    if spmd.process_index() == 1:
        junk = [[] for _ in range(1_000_000)]
        del junk


def raised(function: Any) -> str:
    """The error of a call."""
    try:
        function()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    raise AssertionError("nothing was raised")


def use() -> Any:
    """Meshes, uploads, reads and saves."""
    torch.manual_seed(0)
    mesh = spmd.Mesh(range(8), (2, 4), ("a", "b"))
    whole = torch.arange(24.0).reshape(8, 3)
    split = spmd.mark_sharding(whole.to("xla"), mesh, (("a", "b"), None))
    plain = torch.ones(3, device="xla") * 2
    total = (split * plain).sum()
    assert (
        total.item() == (split * plain).max().item() * 12 == 552
        and (split + 1).tolist() == (whole + 1).tolist()
    )
    said = {}
    spmd.sync()
    assert total.item() == 552 and plain.tolist() == [2, 2, 2] and "552" in repr(total)
    assert (
        torch.equal(split.cpu(), whole)
        and torch.equal(split.T.cpu(), whole.T)
        and "23." in repr(split)
    )
    file = io.BytesIO()
    torch.save({"split": split, "total": total}, file)
    file.seek(0)
    assert torch.equal(torch.load(file, map_location="cpu")["split"], whole)
    assert torch.equal(spmd.full_tensor(split), whole) and torch.equal(
        spmd.full_tensor(split.T), whole.T
    )
    assert torch.equal(spmd.full_tensor(split + 1), whole + 1)
    mine = [shard.device for shard in spmd.local_shards(split)]
    assert mine == [4 * spmd.process_index() + i for i in range(4)], mine

    uneven = spmd.mark_sharding(torch.arange(6.0, device="xla") + 0, mesh, (("a", "b"),))
    spmd.sync()
    spmd.mark_sharding(uneven, mesh, ("a",))
    spmd.sync()
    assert spmd.full_tensor(uneven).tolist() == [0, 1, 2, 3, 4, 5]
    assert next(shard.unpadded_data.tolist() for shard in spmd.local_shards(uneven)) == (
        [3, 4, 5] if spmd.process_index() else [0, 1, 2]
    )

    rings = [Ring()]
    spmd.sync()
    die_in_a_cycle(rings.pop(), plain)
    spmd.sync()

    part = torch.full((2, 3), float(spmd.process_index()))
    joined = spmd.from_process_local(part, mesh, ("a", None))
    assert joined.shape == (4, 3) and spmd.full_tensor(joined)[:, 0].tolist() == [0, 0, 1, 1]
    said["uneven part"] = raised(
        lambda: spmd.from_process_local(torch.ones(3, 2), mesh, (("a", "b"), None))
    )

    mine = [torch.full((1, 3), float(shard.device)) for shard in spmd.local_shards(split)]
    pieces = spmd.from_local_shards(mine, mesh, (("a", "b"), None), (7, 3))
    assert spmd.full_tensor(pieces)[:, 0].tolist() == [0, 1, 2, 3, 4, 5, 6]
    spmd.load_local_shards_(pieces, [piece + 1 for piece in mine])
    columns = spmd.reshard(pieces, (None, "a"))
    assert spmd.full_tensor(columns)[:, 2].tolist() == [1, 2, 3, 4, 5, 6, 7]
    held = {(shard.indices[1].start, shard.indices[1].stop) for shard in spmd.local_shards(columns)}
    assert held == {(2, 3) if spmd.process_index() else (0, 2)}
    spmd.mark_sharding(columns, mesh, ("b", None))
    assert spmd.full_tensor(columns)[:, 2].tolist() == [1, 2, 3, 4, 5, 6, 7]
    said["pieces"] = raised(lambda: spmd.load_local_shards_(pieces, mine[1:]))

    module = torch.nn.Linear(4, 8, device="xla")
    spmd.mark_sharding(module.weight, mesh, ("a", "b"))
    state = spmd.full_state_dict(module)
    assert state["weight"].shape == (8, 4) and all(
        value.device.type == "cpu" for value in state.values()
    )
    module.load_state_dict({name: value + 1 for name, value in state.items()})
    assert torch.equal(spmd.full_tensor(module.weight), state["weight"] + 1)

    xm = spmd.torch_xla.xla_model
    file = io.BytesIO()
    xm.save({"weight": module.weight}, file, global_master=True)
    assert xm.is_master_ordinal(local=False) == bool(file.getvalue()) == (spmd.process_index() == 0)
    if spmd.process_index() == 0:
        assert torch.equal(torch.load(io.BytesIO(file.getvalue()))["weight"], state["weight"] + 1)
        time.sleep(0.3)
    times = [time.time()]
    assert xm.rendezvous("saved", b"here") == [b"here"]
    times.append(time.time())
    came, left = spmd.full_tensor(
        spmd.from_process_local(torch.tensor([times], dtype=torch.float64), mesh, ("a", None))
    ).T
    assert came.max() <= left.min()

    said["part of the devices"] = raised(lambda: spmd.Mesh(range(4), (4,)))
    spmd.initialize(num_processes=2)
    said["again"] = raised(lambda: spmd.initialize(num_processes=3))
    return said


def see() -> Any:
    """Each process asks how a value will lie, and refuses to compile; nothing of it reaches the
    others."""
    mesh = spmd.Mesh(spmd.device_ids(), (8,), ("fsdp",))
    x = spmd.from_process_local(torch.ones(4, 8), mesh, ("fsdp", None))
    y = x.cos() * 2
    found = spmd.inspect(y, y.t())
    with spmd.no_recompile():
        text = raised(spmd.sync)
    assert "RecompileError" in text or "no_recompile" in text
    spmd.sync()
    sharding = spmd.get_sharding(y)
    assert (
        sharding is not None
        and found[0].text == sharding.text(2)
        and found[0].decided_by == "compiler"
    )
    assert [shard.device for shard in spmd.local_shards(y)] == [
        4 * spmd.process_index() + i for i in range(4)
    ]
    return {"told": [one.text for one in found], "raised": "first program of this sync" in text}


def loading() -> Any:
    """Loaders in which each process has a part, of other lengths: what all give out; and
    resuming."""
    mesh, index = spmd.Mesh(spmd.device_ids(), (8,), ("data",)), spmd.process_index()

    def loader(rows: int, last: str) -> spmd.DataLoader:
        part = TensorDataset(torch.arange(float(rows)) + 100 * index)
        return spmd.DataLoader(DataLoader(part, batch_size=4), mesh, ("data",), last=last)

    def full(batches: Any) -> Any:
        return [[spmd.full_tensor(value).tolist() for value in batch] for batch in batches]

    found = {
        "drop": full(loader((12, 11)[index], "drop")),
        "ended": full(loader((16, 8)[index], "drop")),
    }
    found["pad"] = full(loader((12, 7)[index], "pad"))
    for _ in loader((16, 40)[index], "drop"):
        break
    first = loader(12, "keep")
    batches = iter(first)
    next(batches)
    state = first.state_dict()
    batches.close()
    second = loader(12, "keep")
    second.load_state_dict(state)
    return {**found, "rest": full(second), "left": full(batches)}


def step(factor: float = 2) -> None:
    mesh = spmd.Mesh(range(8), (8,), ("a",))
    x = spmd.mark_sharding(torch.arange(8.0, device="xla"), mesh, ("a",))
    for _ in range(3):
        total = (x * factor).sum()
        spmd.sync()
        total.item()


def other_program() -> None:
    step()
    x = torch.arange(8.0, device="xla")
    y = x.sin() if spmd.process_index() else x.cos()
    spmd.sync()
    y.tolist()


def other_number() -> None:
    step()
    step(2 + spmd.process_index())
    while True:
        step()


def other_seed() -> None:
    """Without a seed each process draws its own, as torch does; what is drawn would be other
    weights in each."""
    weights = torch.rand(2, device="xla")
    while True:
        weights = weights * 2
        spmd.sync()


def one_more_run() -> None:
    step()
    if spmd.process_index() == 1:
        step()
    time.sleep(1)


def alone() -> None:
    spmd.config.process_timeout_seconds = 2
    step()
    if spmd.process_index() == 1:
        spmd.full_tensor(torch.ones(2, device="xla"))
    time.sleep(30)


def read_in_one() -> None:
    """The first process reads a value that has not been synced, in a branch of its own."""
    step()
    x = torch.ones(8, device="xla") * 3
    if spmd.process_index() == 0:
        print(x.sum().item())
    step()


def split_in_one() -> None:
    """The first process prints a value whose parts other processes have."""
    mesh = spmd.Mesh(range(8), (8,), ("a",))
    x = spmd.mark_sharding(torch.arange(8.0, device="xla"), mesh, ("a",))
    spmd.sync()
    if spmd.process_index() == 0:
        print(x)
    step()


def other_data() -> None:
    """Each process loads a batch of its own as if it were that of all."""
    x = torch.full((8,), 1.0 + spmd.process_index()).to("xla")
    x.sum().item()


def other_shape() -> None:
    mesh = spmd.Mesh(range(8), (8,), ("a",))
    spmd.from_process_local(torch.ones(8 + 4 * spmd.process_index()), mesh, ("a",))


def failing() -> None:
    for i in range(1000):
        step()
        if spmd.process_index() == 1 and i == 2:
            raise ValueError("a fault of this process alone")


def killed() -> None:
    for i in range(100_000):
        step()
        if spmd.process_index() == int(os.environ.get("KILLED", "1")) and i == 2:
            os.kill(os.getpid(), signal.SIGKILL)


def listening() -> dict[str, Any]:
    """The ports at which this process listens, and their addresses, as Linux writes them."""
    torch.distributed.init_process_group("xla", init_method="xla://")
    step()
    own = {
        os.readlink(file)
        for file in Path("/proc/self/fd").iterdir()
        if file.exists() or file.is_symlink()
    }
    rows = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
    ]
    places = [row[1].split(":") for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in own]
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    return {
        "addresses": [address for address, _ in places],
        "listening": [int(port, 16) for _, port in places],
        "coordinator": int(sys.argv[2]),
    }


def late() -> None:
    """The second process comes to the second step five seconds after the first, which waits in its
    program."""
    step()
    if spmd.process_index() == 1:
        time.sleep(5)
    step()
    spmd.sync(wait=True)


def stopped() -> None:
    """The second process is stopped for eleven seconds; the first one waits for it in a program."""
    step()
    if spmd.process_index() == int(os.environ["STOPPED"]):
        with subprocess.Popen(["sh", "-c", f"sleep 11; kill -CONT {os.getpid()}"]):
            os.kill(os.getpid(), signal.SIGSTOP)
    step()
    spmd.sync(wait=True)


def _job() -> tuple[Callable[[Tensor], Tensor], Tensor]:
    """A training step of a small GPT under FSDP, nothing of it run, and this process's part of a
    batch."""
    torch.manual_seed(0)
    mesh = spmd.Mesh(spmd.device_ids(), (8,), ("fsdp",))
    with torch.device("xla"):
        model = fsdp.FullyShardedDataParallel(GPT(CONFIG), mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def step(part: Tensor) -> Tensor:
        tokens = spmd.from_process_local(part, mesh, ("fsdp", None))
        loss = cross_entropy(model(tokens)[:, :-1], tokens[:, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    tokens = torch.randint(
        CONFIG.vocabulary, (16, CONFIG.sequence), generator=torch.Generator().manual_seed(1)
    )
    return step, tokens.chunk(spmd.process_count())[spmd.process_index()].contiguous()


def write_programs() -> Any:
    """Each process writes the programs of the step, which none runs."""
    step, part = _job()
    return spmd.warm(step, part, folder=os.environ["FOLDER"])


def take_programs() -> Any:
    """Training with programs that other processes have written, or, without a folder, compiled
    here."""
    folder = os.environ.get("FOLDER")
    count = 0 if folder is None else spmd.load_programs(folder)
    step, part = _job()
    found = []
    for _ in range(2):
        loss = step(part)
        spmd.sync()
        found.append(loss.item())
    return {"losses": found, "given": count, "compiled": spmd.metrics.num_compiles()}


def exported_job() -> tuple[Any, list[Tensor]]:
    """A step of a sharded network with dropout, whose state it exports, and its batch."""
    torch.manual_seed(0)
    mesh = spmd.Mesh(spmd.device_ids(), (8,), ("fsdp",))
    layers = torch.nn.Linear(12, 24), torch.nn.Dropout(0.1), torch.nn.Linear(24, 4)
    model = fsdp.FullyShardedDataParallel(torch.nn.Sequential(*layers), mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)

    def step(x: Tensor, y: Tensor) -> Tensor:
        loss = (model(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    torch.manual_seed(1)
    whole = torch.randn(16, 12), torch.randn(16, 4)
    parts = [one.chunk(spmd.process_count())[spmd.process_index()].contiguous() for one in whole]
    return step, [spmd.from_process_local(part, mesh, ("fsdp", None)) for part in parts]


def _losses(step: Any, batch: list[Tensor]) -> list[float]:
    torch.manual_seed(2)
    found = []
    for _ in range(3):
        loss = step(*batch)
        spmd.sync()
        found.append(loss.item())
    return found


def export_step() -> Any:
    """Exports a step of both processes and loads it in both; the first alone writes."""
    step, batch = exported_job()
    spmd.export(step, batch).save(os.environ["FOLDER"])
    program = spmd.load_exported(os.environ["FOLDER"])
    weight = program.state["0.weight"]
    pieces = [list(shard.data.shape) for shard in spmd.local_shards(weight)]
    return {"losses": _losses(program, batch), "pieces": pieces, "expected": _losses(step, batch)}


def export_different_steps() -> Any:
    step, batch = exported_job()
    steps = step, lambda x, y: step(x, y) * 2
    return raised(
        lambda: spmd.export(steps[spmd.process_index()], batch).save(os.environ["FOLDER"])
    )


def load_step() -> Any:
    """Loads a program that one process has written."""
    _, batch = exported_job()
    return _losses(spmd.load_exported(os.environ["FOLDER"]), batch)


if __name__ == "__main__":
    name, port = sys.argv[1:3]
    if port == "env":
        spmd.initialize(local_device_count=4)
    else:
        address = f"127.0.0.1:{port}"
        heartbeat = int(os.environ.get("HEARTBEAT", "10"))
        index, count = map(int, sys.argv[3:])
        spmd.initialize(
            address,
            count,
            index,
            local_device_count=8 // count,
            heartbeat_timeout_seconds=heartbeat,
        )
    result = globals()[name]()
    if result is not None:
        print(json.dumps(result))
