"""Train, or plan, a language model of transformers from a file in recipes/configs.

    python recipes/pretrain.py recipes/configs/llama-70b.toml --plan
    python recipes/pretrain.py recipes/configs/llama-8b.toml --small --text my.txt
    python recipes/pretrain.py recipes/configs/mixtral-8x7b.toml --small --steps 20

A file names the model's class and sizes, the mesh, the batch, and the chips that it is planned for.
Weights are laid out by the model's own plan (`spmd.ShardingRules.of`). `--small` keeps the mesh
and the class and narrows all else, for simulated devices; `--set model.num_hidden_layers=4` sets
one value. `--text` is read line by line in `datasets`' streaming form, its bytes are the tokens;
without it the text is that of the other recipes. `--log` writes TensorBoard's scalars by torch's
writer. The file's own sizes train with a vocabulary of bytes as well: hand `labels` of your own
tokenizer for a real run.
"""

import argparse
import itertools
import math
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs without being installed, too

import torch
import transformers

import fsdp
import spmd
from recipes import text

_SMALL = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "moe_intermediate_size": 64,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "head_dim": 8,
    "n_routed_experts": 64,
    "n_group": 8,
    "topk_group": 4,
    "q_lora_rank": 32,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
    "sliding_window": 32,
    "vocab_size": 256,
    "max_position_embeddings": 256,
}
_MOST_SIMULATED = 8
_PARALLEL = ("fsdp", "data")  # axes over which a batch is split


def read(file: Path, *, is_small: bool, changes: list[str]) -> dict[str, Any]:
    """The values of a file, narrowed, and with changes such as "model.vocab_size=512"."""
    config = tomllib.loads(file.read_text())
    if is_small:
        model = config["model"]
        model |= {name: value for name, value in _SMALL.items() if name in model}
        config |= {"batch": 16, "length": 64, "mesh": _narrowed(config["mesh"])}
        if "micro_batches" in config:
            config["micro_batches"] = 4
    for change in changes:
        path, _, value = change.partition("=")
        *outer, name = path.split(".")
        place = config
        for key in outer:
            place = place[key]
        if name not in place:
            raise SystemExit(f"--set {change}: {file.name} has no {path}")
        place[name] = tomllib.loads(f"value = {value}")["value"]
    return config


def _narrowed(mesh: dict[str, int]) -> dict[str, int]:
    """A mesh of the same axes over the simulated devices."""
    left, narrowed = _MOST_SIMULATED, dict[str, int]()
    for axis in sorted(mesh, key=lambda axis: axis in _PARALLEL):
        rest = len(mesh) - len(narrowed) - 1
        narrowed[axis] = min(mesh[axis], max(2, left >> rest) if rest else left)
        left //= narrowed[axis]
    return {axis: narrowed[axis] for axis in mesh}


def built(config: dict[str, Any], target: str | None) -> tuple[Any, Any, spmd.Mesh]:
    """The model over its mesh, the optimizer, and the mesh. target: of a plan, whose model has no
    data."""
    sizes = dict(config["model"])
    kind = getattr(transformers, sizes.pop("class"))
    mesh = spmd.Mesh(
        range(math.prod(config["mesh"].values())),
        tuple(config["mesh"].values()),
        tuple(config["mesh"]),
        target=target,
    )
    with torch.device("meta" if target else "xla"):
        model = kind(kind.config_class(**sizes))
    axes = config["mesh"]
    rules = spmd.ShardingRules.of(
        model,
        tensor="tensor" if "tensor" in axes else None,
        expert="expert" if "expert" in axes else None,
        stages="stage" if "stage" in axes else None,
        micro_batches=config.get("micro_batches"),
    )
    if config["checkpoint"]:
        for layer in model.model.layers:
            fsdp.checkpoint_module(layer)
    precision = fsdp.MixedPrecisionPolicy(param_dtype=torch.bfloat16 if target else None)
    rules.apply(model, mesh, mp_policy=precision)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.get("rate", 3e-4))
    return model, optimizer, mesh


def batches(config: dict[str, Any], file: Path | None, mesh: spmd.Mesh) -> Iterator[torch.Tensor]:
    """Batches of tokens, without end."""
    rows = tuple(axis for axis in mesh.axis_names if axis in (*_PARALLEL, "expert"))
    spec = spmd.P(rows, "context" if "context" in mesh.axis_names else None)
    batch, length = config["batch"], config["length"]
    tokens = itertools.chain.from_iterable(_documents(file))
    while True:
        taken = list(itertools.islice(tokens, batch * length))
        yield spmd.mark_sharding(torch.tensor(taken).view(batch, length).to("xla"), mesh, spec)


def _documents(file: Path | None) -> Iterator[list[int]]:
    """The bytes of a text's lines, over and over."""
    if file is None:
        train = text.load().train.tolist()
        while True:
            yield train
    import datasets  # an extra of the recipes, which only a file needs

    while True:
        lines = datasets.load_dataset("text", data_files=str(file), split="train", streaming=True)
        for line in lines:
            yield [*f"{line['text']}\n".encode()]


def step_of(model: Any, optimizer: Any) -> Any:
    def step(tokens: torch.Tensor) -> torch.Tensor:
        loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("config", type=Path, help="a file such as recipes/configs/llama-8b.toml")
    parser.add_argument("--plan", action="store_true", help="plan a step for the target, no run")
    parser.add_argument("--target", help="of the plan (default: the file's)")
    parser.add_argument("--small", action="store_true", help="narrow, on 8 simulated devices")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--text", type=Path, help="a local file of text")
    parser.add_argument("--log", type=Path, help="a folder for TensorBoard")
    given = parser.parse_args()
    config = read(given.config, is_small=given.small, changes=given.set)
    if given.plan:
        target = given.target or ("cpu:8" if given.small else config["target"])
        model, optimizer, mesh = built(config, target)
        shape = (config["batch"], config["length"])
        rows = tuple(axis for axis in mesh.axis_names if axis in (*_PARALLEL, "expert"))
        tokens = spmd.mark_sharding(
            torch.zeros(shape, dtype=torch.long, device="xla"),
            mesh,
            spmd.P(rows, "context" if "context" in mesh.axis_names else None),
        )
        print(spmd.plan(step_of(model, optimizer), tokens))
        return
    if given.small:
        spmd.simulate(_MOST_SIMULATED)
    spmd.config.replay_steps = True
    torch.manual_seed(0)
    model, optimizer, mesh = built(config, None)
    step = step_of(model, optimizer)
    writer = None
    if given.log:
        from torch.utils.tensorboard import SummaryWriter  # needs tensorboard, asked for by --log

        writer = SummaryWriter(given.log)
    for number, tokens in zip(range(given.steps), batches(config, given.text, mesh), strict=False):
        loss = step(tokens)
        spmd.sync()
        if number % 10 == 0 or number == given.steps - 1:
            print(f"step {number}: loss {loss.item():.4f}", flush=True)
            if writer:
                writer.add_scalar("loss", loss.item(), number)


if __name__ == "__main__":
    main()
