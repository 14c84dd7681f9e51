"""Compile a training step with its layers scanned and not, for several depths.

    python recipes/benchmarks/scanned_layers.py                         # the recipes' GPT under
                                                                        # FSDP, 4, 12 and 64 layers
    python recipes/benchmarks/scanned_layers.py --model llama --layers 4 64
    python recipes/benchmarks/scanned_layers.py --devices 1 --steps 20  # one device, with the times
                                                                        # of the steps

Compiling is timed from the end of recording to the executable: finding the layers, lowering, XLA;
as wall time and as processor time, which a busy machine does not change as much. Benchmarks report;
nothing here asserts a time.
"""

import argparse
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import perf_counter, process_time
from typing import Any
from unittest import mock

import torch
import transformers
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # runs without being installed, too

import fsdp
import spmd
from recipes.gpt import GPT, Block, GPTConfig, cross_entropy
from spmd.core.run import executables

MODELS = ("gpt", "llama", "gpt2", "mixtral")


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=MODELS, default="gpt")
    parser.add_argument(
        "--router-loss", action="store_true", help="Mixtral with the loss that balances its experts"
    )
    parser.add_argument("--layers", type=int, nargs="+", default=[4, 12, 64])
    parser.add_argument(
        "--modes", choices=("always", "auto", "never"), nargs="+", default=["auto", "never"]
    )
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--sequence", type=int, default=128)
    parser.add_argument(
        "--batch", type=int, default=16, help="sequences per step, over all devices (default 16)"
    )
    parser.add_argument("--devices", type=int, default=8, help="simulated devices (default 8)")
    parser.add_argument(
        "--steps",
        type=int,
        default=0,
        help="timed steps, after two untimed (default 0: only compile)",
    )
    return parser.parse_args(arguments)


def model_of(
    args: argparse.Namespace, layers: int
) -> tuple[nn.Module, set[type[nn.Module]], Callable[..., Tensor]]:
    """Returns a model, the classes of its layers, and its loss, a function of (model, tokens,
    targets)."""
    sizes = {"vocab_size": 256, "num_attention_heads": args.heads, "num_hidden_layers": layers}
    llama = {
        **sizes,
        "hidden_size": args.width,
        "intermediate_size": 3 * args.width,
        "num_key_value_heads": args.heads,
    }
    if args.model == "gpt":
        config = GPTConfig(
            layers=layers, width=args.width, heads=args.heads, sequence=args.sequence
        )
        return (
            GPT(config),
            {Block},
            lambda model, tokens, targets: cross_entropy(model(tokens), targets),
        )
    if args.model == "gpt2":
        made = transformers.GPT2LMHeadModel(
            transformers.GPT2Config(
                vocab_size=256,
                n_embd=args.width,
                n_layer=layers,
                n_head=args.heads,
                n_positions=args.sequence,
                resid_pdrop=0.0,
                embd_pdrop=0.0,
                attn_pdrop=0.0,
                use_cache=False,
            )
        )
    elif args.model == "llama":
        made = transformers.LlamaForCausalLM(transformers.LlamaConfig(**llama, use_cache=False))
    else:
        made = transformers.MixtralForCausalLM(
            transformers.MixtralConfig(
                **llama, num_local_experts=4, use_cache=False, output_router_logits=args.router_loss
            )
        )
    layer = type((made.transformer.h if args.model == "gpt2" else made.model.layers)[0])
    return (
        made,
        {layer},
        lambda model, tokens, targets: model(input_ids=tokens, labels=targets).loss,
    )


class Step:
    """One training step: forward, backward, clipping, AdamW."""

    def __init__(self, args: argparse.Namespace, layers: int) -> None:
        torch.manual_seed(0)
        model, classes, self.loss = model_of(args, layers)
        self.args, self.mesh = args, spmd.Mesh(range(args.devices), (args.devices,), ("fsdp",))
        model = model.to("xla")
        if args.devices > 1:
            policy = partial(fsdp.transformer_auto_wrap_policy, transformer_layer_cls=classes)
            model = fsdp.FullyShardedDataParallel(model, mesh=self.mesh, auto_wrap_policy=policy)
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.01)

    def record(self) -> Tensor:
        tokens = torch.randint(256, (self.args.batch, self.args.sequence)).to("xla")
        if self.args.devices > 1:
            spmd.mark_sharding(tokens, self.mesh, ("fsdp", None))
        loss = self.loss(self.model, tokens, tokens)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss


@dataclass
class Row:
    """One depth with `scan_layers=mode`: the seconds to compile, the compile log's line, the
    seconds of its steps."""

    step: Step
    mode: str
    wall: float
    processor: float
    record: "spmd.metrics.CompileRecord"
    seconds: list[float] = field(default_factory=list)
    loss: float = 0.0

    def run(self, *, timed: bool) -> None:
        spmd.config.scan_layers = self.mode
        torch.manual_seed(len(self.seconds))
        began = perf_counter()
        loss = self.step.record()
        spmd.sync(wait=True)
        if timed:
            self.seconds.append(perf_counter() - began)
        self.loss = loss.item()

    def texts(self, layers: int) -> list[str]:
        record = self.record
        return [
            str(layers),
            self.mode,
            ", ".join(f"{iterations} x {ops}" for iterations, ops in record.loops) or "-",
            f"{record.nodes}",
            f"{self.wall:.2f}",
            f"{self.processor:.2f}",
            f"{record.temp_bytes / 2**20:.1f}",
            f"{(record.argument_bytes + record.output_bytes - record.alias_bytes) / 2**20:.1f}",
            *([f"{1e3 * statistics.median(self.seconds):.0f}"] if self.seconds else []),
            f"{self.loss:.6f}",
        ]


def compiled(args: argparse.Namespace, layers: int, mode: str) -> Row:
    """Records and runs the first step of a model, and times its compilation."""
    spmd.config.scan_layers = mode
    step = Step(args, layers)
    wall = processor = 0.0
    compile_unlocked = executables.compile_unlocked

    def timed(graph: Any, name: str, *why: Any) -> None:
        nonlocal wall, processor
        began, spent = perf_counter(), process_time()
        compile_unlocked(graph, name, *why)
        if name == "step":
            wall, processor = wall + perf_counter() - began, processor + process_time() - spent

    spmd.metrics.clear()
    with mock.patch.object(executables, "compile_unlocked", timed):
        loss = step.record()
        spmd.sync(wait=True)
    record = max(spmd.metrics.compiles(), key=lambda record: record.nodes)
    return Row(step, mode, wall, processor, record, loss=loss.item())


def main(arguments: list[str] | None = None) -> None:
    args = parse(arguments)
    spmd.simulate(args.devices)
    spmd.config.program_cache = False
    spmd.config.slow_compile_seconds = 0
    console = Console(width=140)
    table = Table(
        title=f"{args.model}, {args.devices} devices: from the end of recording to the executable"
    )
    for heading in (
        "layers",
        "scanned",
        "loops (iterations x ops)",
        "ops",
        "compile s",
        "processor s",
        "temporary MiB",
        "state MiB",
        *(["step ms"] if args.steps else []),
        "loss",
    ):
        table.add_column(heading, justify="right")
    with console.status("compiling"):
        compiled(args, 1, "never")  # jax's and XLA's work of a first compilation is not timed
        for layers in args.layers:
            rows = [compiled(args, layers, mode) for mode in args.modes]
            for number in range(args.steps + 2 if args.steps else 0):
                for row in rows:  # alternately, so that other load of the machine falls on all
                    row.run(timed=number > 1)
            for row in rows:
                table.add_row(*row.texts(layers))
    console.print(table)


if __name__ == "__main__":
    main()
