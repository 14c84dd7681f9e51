"""A Hugging Face model, unmodified, under FSDP over eight simulated devices: five lines, all in
`wrap`.

    python recipes/wrap_hugging_face.py                       # a small LlamaForCausalLM, fsdp=8
    python recipes/wrap_hugging_face.py --model gpt2          # GPT2LMHeadModel: tied embeddings,
                                                              # dropout
    python recipes/wrap_hugging_face.py --mesh data=2,fsdp=4  # two replicas of a four-way FSDP
    python recipes/wrap_hugging_face.py --compile             # the step recorded once and replayed,
                                                              # by spmd.compile
    python recipes/wrap_hugging_face.py --target v5e:2x4      # plan the step for a TPU slice;
                                                              # nothing is trained

The model is made from a configuration; nothing is downloaded. It is trained on real English text
with the loss that it computes itself, saved by `save_pretrained`, and loaded by `from_pretrained`
into plain PyTorch on the CPU, whose held-out loss is printed next to that of the wrapped model. It
writes a folder of Hugging Face's, OUT/model, and the curve OUT/loss.png.
"""

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from math import prod
from pathlib import Path

import torch
from rich.console import Console
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig
from transformers.utils import logging

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs without being installed, too

import fsdp
import spmd
from recipes import text, training
from recipes.training import History, Loop, Reporter

LAYERS = {"llama": "LlamaDecoderLayer", "gpt2": "GPT2Block"}  # the classes of FSDP's units


def wrap(config: PretrainedConfig, axes: dict[str, int]) -> nn.Module:
    """Returns the model of a configuration, sharded over a mesh; no device ever holds all of it."""
    mesh = spmd.Mesh(range(prod(axes.values())), tuple(axes.values()), tuple(axes))
    policy = fsdp.policy_from_config(
        {"fsdp_transformer_layer_cls_to_wrap": LAYERS[config.model_type]}
    )
    with torch.device("xla"):
        model = AutoModelForCausalLM.from_config(config)
    return fsdp.FullyShardedDataParallel(
        model, mesh, auto_wrap_policy=policy, extra_data_axis="data" if "data" in axes else None
    )


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    where = parser.add_argument_group("where it runs")
    where.add_argument(
        "--mesh",
        type=partial(training.parse_mesh, others=("data",)),
        default={"fsdp": 8},
        metavar="AXIS=SIZE,...",
        help="mesh axes in order: fsdp and data (default fsdp=8)",
    )
    training.add_place_flags(where)
    model = training.add_model_flags(parser)
    model.add_argument(
        "--model", choices=tuple(LAYERS), default="llama", help="its family (default %(default)s)"
    )
    training.add_training_flags(parser, steps=150, eval_every=50)
    args = parser.parse_args(arguments)
    if args.batch % prod(args.mesh.values()):
        parser.error(
            f"--batch {args.batch} must be a multiple of the {prod(args.mesh.values())} devices "
            "that share it"
        )
    if args.steps < 1:
        parser.error(f"--steps must be at least 1, got {args.steps}")
    return args


def configure(args: argparse.Namespace) -> PretrainedConfig:
    """Returns a configuration over bytes, without tokens for the beginning or the end."""
    sizes = {
        "num_hidden_layers": args.layers,
        "hidden_size": args.width,
        "num_attention_heads": args.heads,
    }
    if args.model == "llama":
        sizes |= {
            "num_key_value_heads": max(1, args.heads // 2),
            "intermediate_size": args.width * 8 // 3,
        }
    return AutoConfig.for_model(
        args.model,
        vocab_size=256,
        max_position_embeddings=args.sequence,
        bos_token_id=None,
        eos_token_id=None,
        loss_type="ForCausalLM",
        **sizes,
    )


def train_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, tokens: Tensor, *, clip: float
) -> Tensor:
    """Runs one step, written as for one device; returns the loss that the model computes."""
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
    optimizer.zero_grad()
    return loss


def plan(model: nn.Module, args: argparse.Namespace) -> spmd.Plan:
    """Returns the plan of a step, here or on the devices of --target; nothing is allocated for
    it."""
    tokens = torch.zeros(args.batch, args.sequence, dtype=torch.long).to("xla")
    optimizer = training.make_optimizer(model, args)
    return training.plan_step(
        train_step, model, optimizer, tokens, clip=args.clip, target=args.target
    )


def to_devices(tokens: Tensor) -> Tensor:
    """Moves a batch; the wrapped model shards it."""
    return tokens.to("xla")


def train(
    model: nn.Module,
    corpus: text.Text,
    args: argparse.Namespace,
    console: Console,
    *,
    bigram: float,
    put: Callable[[Tensor], Tensor] = to_devices,
) -> History:
    """Runs the training loop, written as for one device."""
    optimizer = training.make_optimizer(model, args)
    schedule = training.make_schedule(optimizer, args)
    batches = text.batches(corpus.train, batch=args.batch, sequence=args.sequence, seed=args.seed)
    history, reporter = History(), Reporter(console, args.steps, spmd.metrics.num_compiles)

    def update(tokens: Tensor) -> Tensor:
        loss = train_step(model, optimizer, tokens, clip=args.clip)
        schedule.step()
        return loss

    update = training.compiled(update, args)

    def step(tokens: Tensor, targets: Tensor) -> Tensor:
        loss = update(put(tokens))
        if loss.device.type == "xla":
            spmd.sync()
        return loss

    evaluate = partial(heldout_loss, model, corpus, args, put=put)
    Loop(args, reporter, bigram, step, evaluate, lambda step: None).run(batches, history)
    training.say_compiled(update, args, console)
    return history


def heldout_loss(
    model: nn.Module,
    corpus: text.Text,
    args: argparse.Namespace,
    *,
    put: Callable[[Tensor], Tensor] = Tensor.cpu,
) -> float:
    """Returns a model's mean loss over the text that it never trains on; on the CPU, or where `put`
    moves a batch."""

    def loss(tokens: Tensor, targets: Tensor) -> Tensor:
        tokens = put(tokens)
        return model(input_ids=tokens, labels=tokens).loss

    return training.evaluate(
        model, loss, text.windows(corpus.heldout, batch=args.batch, sequence=args.sequence)
    )


def main(arguments: list[str] | None = None) -> None:
    args = parse(arguments)
    started, console = time.perf_counter(), training.make_console()
    logging.disable_progress_bar()  # the bar of loading, which takes no time
    # Before anything else touches the device: the number of devices is fixed when jax's backend
    # starts.
    spmd.simulate(prod(args.mesh.values()))
    if args.partitioner:
        spmd.config.partitioner = args.partitioner
    torch.manual_seed(args.seed)
    args.out.mkdir(parents=True, exist_ok=True)

    model = wrap(configure(args), args.mesh)
    console.print(str(fsdp.show(model)), markup=False, highlight=False, soft_wrap=True)
    planned = plan(model, args)
    planned.save(args.out / "plan.html")
    console.print(planned)
    if args.target:
        return

    corpus = text.load()
    bigram = text.bigram_loss(corpus)
    console.print(
        f"{len(corpus.train):,} bytes to train on, {len(corpus.heldout):,} held out",
        highlight=False,
    )
    history = train(model, corpus, args, console, bigram=bigram)
    model.save_pretrained(args.out / "model")
    loaded = AutoModelForCausalLM.from_pretrained(args.out / "model")
    plain = heldout_loss(loaded, corpus, args)

    kind, size = type(loaded).__name__, sum(parameter.numel() for parameter in model.parameters())
    where = ", ".join(f"{name}={size}" for name, size in args.mesh.items())
    title = f"{kind} of {size / 1e6:.1f}M parameters on Python's documentation ({where})"
    training.draw(history, bigram=bigram, title=title, path=args.out / "loss.png")
    if args.sample:
        training.show_sample(
            loaded, lambda tokens: loaded(tokens).logits, corpus.heldout, args, console, rows=1
        )
    console.print(
        f"\nheld-out loss [bold]{history.heldout[-1][1]:.4f}[/bold] nats per byte, bigram table "
        f"{bigram:.4f}; [bold]{plain:.4f}[/bold] of the model that from_pretrained reads, on the "
        "CPU\n"
        f"{spmd.metrics.num_compiles()} compiles, {spmd.metrics.num_loaded()} from disk, "
        f"{time.perf_counter() - started:.0f} s\n"
        f"{args.out / 'loss.png'}, {args.out / 'model'}",
        highlight=False,
        soft_wrap=True,
    )


if __name__ == "__main__":
    main()
