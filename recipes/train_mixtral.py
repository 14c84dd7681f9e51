"""Train Hugging Face's Mixtral under FSDP x expert parallel on eight simulated devices.

    python recipes/train_mixtral.py                   # fsdp=2, expert=4: each device has two of
                                                      # eight experts
    python recipes/train_mixtral.py --mesh fsdp=8     # FSDP alone: experts are gathered, tokens
                                                      # stay
    python recipes/train_mixtral.py --compile         # the step recorded once and replayed, by
                                                      # spmd.compile
    python recipes/train_mixtral.py --device cpu      # the same file in plain PyTorch, for
                                                      # comparison
    python recipes/train_mixtral.py --target v5e:2x4  # plan the step for a TPU slice; nothing is
                                                      # trained

The experts' weights are sharded over `expert` and, as all others, by FSDP over `fsdp`; the batch is
split over both. That mark is all: tokens travel to the devices of their experts, or weights to the
tokens, whichever is less, and the plan says which (docs/experts.md). The loss has the term that
balances the experts. It prints the shardings with the bytes per device, the plan with its
collectives, the losses, and the share of the held-out tokens that each expert gets before and after
training; it leaves OUT/loss.png and OUT/experts.png. The same seed gives the same batches and
weights on any mesh.
"""

import argparse
import sys
import time
from functools import partial
from pathlib import Path

import torch
from matplotlib import pyplot
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from transformers import MixtralConfig, MixtralForCausalLM

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs without being installed, too

import fsdp  # noqa: F401  carries out the units of the rules
import spmd
from recipes import text, training
from recipes.placement import MeshPlacement, Placement
from recipes.training import History, Loop, Reporter
from spmd import P

AXES = ("fsdp", "expert")  # both share the batch


def shard(model: nn.Module, mesh: spmd.Mesh) -> nn.Module:
    """Returns the model sharded: a unit of FSDP a layer, the experts over the axis expert if the
    mesh has it."""
    expert = "expert" if "expert" in mesh.shape() else None
    split = {"**.experts.*": P("expert", None, None)} if expert else {}
    spmd.ShardingRules(split, units=["model.layers.*"], extra_data_axis=expert).apply(model, mesh)
    return model


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    where = parser.add_argument_group("where it runs")
    where.add_argument(
        "--mesh",
        type=partial(training.parse_mesh, others=("expert",)),
        default={"fsdp": 2, "expert": 4},
        metavar="AXIS=SIZE,...",
        help="mesh axes in order: fsdp and expert (default fsdp=2,expert=4)",
    )
    training.add_device_flag(where)
    training.add_place_flags(where)
    model = training.add_model_flags(parser, layers=2, width=128, heads=4)
    model.add_argument(
        "--experts", type=int, default=8, metavar="N", help="of a layer (default %(default)s)"
    )
    model.add_argument(
        "--chosen",
        type=int,
        default=2,
        metavar="N",
        help="experts of a token (default %(default)s)",
    )
    model.add_argument(
        "--balance",
        type=float,
        default=0.02,
        help="share of the balancing term (default %(default)s)",
    )
    training.add_training_flags(parser, steps=150, eval_every=50)
    args = parser.parse_args(arguments)
    if wrong := training.fault(args, batch_axes=AXES):
        parser.error(wrong)
    return args


def configure(args: argparse.Namespace) -> MixtralConfig:
    """Returns a configuration over bytes, without tokens for the beginning or the end."""
    return MixtralConfig(
        vocab_size=256,
        hidden_size=args.width,
        intermediate_size=2 * args.width,
        num_hidden_layers=args.layers,
        num_attention_heads=args.heads,
        num_key_value_heads=max(1, args.heads // 2),
        num_local_experts=args.experts,
        num_experts_per_tok=args.chosen,
        max_position_embeddings=args.sequence,
        output_router_logits=True,
        router_aux_loss_coef=args.balance,
        bos_token_id=None,
        eos_token_id=None,
        use_cache=False,
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


def plan(model: nn.Module, place: Placement, args: argparse.Namespace) -> spmd.Plan:
    """Returns the plan of a step, here or on the devices of --target; nothing is allocated for
    it."""
    tokens = place.put(torch.zeros(args.batch, args.sequence, dtype=torch.long))
    optimizer = training.make_optimizer(model, args)
    return training.plan_step(
        train_step, model, optimizer, tokens, clip=args.clip, target=args.target
    )


def train(
    model: nn.Module,
    place: Placement,
    corpus: text.Text,
    args: argparse.Namespace,
    console: Console,
    *,
    bigram: float,
) -> History:
    """Runs the training loop, written as for one device; held-out losses are without the balancing
    term."""
    optimizer = training.make_optimizer(model, args)
    schedule = training.make_schedule(optimizer, args)
    heldout = text.windows(corpus.heldout, batch=args.batch, sequence=args.sequence)
    batches = text.batches(corpus.train, batch=args.batch, sequence=args.sequence, seed=args.seed)
    history, reporter = History(), Reporter(console, args.steps, place.compiles)

    def update(tokens: Tensor) -> Tensor:
        loss = train_step(model, optimizer, tokens, clip=args.clip)
        schedule.step()
        return loss

    update = training.compiled(update, args)

    def step(tokens: Tensor, targets: Tensor) -> Tensor:
        loss = update(tokens)
        place.sync()
        return loss

    def loss_of(tokens: Tensor, targets: Tensor) -> Tensor:
        logits = model(input_ids=place.put(tokens), output_router_logits=False).logits
        return nn.functional.cross_entropy(logits.flatten(0, 1), place.put(targets).flatten())

    def after(step: int) -> None:
        if step == 1 and (line := place.state_line(optimizer)):
            reporter.say(line)

    evaluate = partial(training.evaluate, model, loss_of, heldout)
    Loop(args, reporter, bigram, step, evaluate, after).run(place.load(batches), history)
    training.say_compiled(update, args, console)
    return history


# -- The load of the experts.


@torch.no_grad()
def load(model: nn.Module, place: Placement, corpus: text.Text, args: argparse.Namespace) -> Tensor:
    """Returns the share of the choices that each expert gets on one batch of held-out text,
    (layers, experts)."""
    (tokens, _), *_ = text.windows(corpus.heldout, batch=args.batch, sequence=args.sequence)
    model.eval()
    scores = torch.stack(
        model(input_ids=place.put(tokens), output_router_logits=True).router_logits
    )
    model.train()
    chosen = scores.topk(args.chosen, dim=-1).indices.flatten(1).cpu()
    return nn.functional.one_hot(chosen, args.experts).float().mean(1)


def load_table(before: Tensor, after: Tensor, tokens: int) -> Table:
    """Returns the shares as a table; an even one is 1 / experts."""
    table = Table(
        box=box.SIMPLE_HEAD, title=f"Tokens per expert, of {tokens:,} choices of held-out text"
    )
    for heading in (
        "layer",
        "",
        *(f"expert {index}" for index in range(before.shape[1])),
        "fullest / even",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    for layer, pair in enumerate(zip(before, after, strict=True)):
        for when, shares in zip(("before", "after"), pair, strict=True):
            counts = [f"{share * tokens:,.0f}" for share in shares.tolist()]
            table.add_row(str(layer), when, *counts, f"{shares.max().item() * len(shares):.2f}")
    return table


def draw_load(before: Tensor, after: Tensor, path: Path, *, title: str) -> None:
    """Writes the shares of the experts, a bar an expert, a panel a layer."""
    figure, panels = pyplot.subplots(
        len(before),
        sharex=True,
        squeeze=False,
        figsize=(8, 2 * len(before) + 1.5),
        layout="constrained",
    )
    places = torch.arange(before.shape[1]).numpy()
    for layer, axes in enumerate(panels[:, 0]):
        axes.bar(
            places - 0.2, before[layer].numpy(), 0.4, color="tab:gray", label="before training"
        )
        axes.bar(places + 0.2, after[layer].numpy(), 0.4, color="tab:blue", label="after training")
        axes.axhline(1 / before.shape[1], color="tab:orange", linestyle="--", label="even")
        axes.set(ylabel=f"layer {layer}: share", xticks=places)
    panels[0, 0].set(title=title)
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    panels[-1, 0].set(xlabel="expert")
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def main(arguments: list[str] | None = None) -> None:
    args = parse(arguments)
    started, console = time.perf_counter(), training.make_console()
    place = MeshPlacement(args, shard, batch_axes=AXES) if args.device == "xla" else Placement()
    args.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(args.seed)
    with place.device:
        model = MixtralForCausalLM(configure(args))
    model = place.wrap(model)
    if args.device == "xla":
        planned = plan(model, place, args)
        planned.save(args.out / "plan.html")
        if not args.target:
            console.print(place.table(model))
        console.print(planned)
        if args.target:
            return

    corpus = text.load()
    bigram = text.bigram_loss(corpus)
    console.print(
        f"{len(corpus.train):,} bytes to train on, {len(corpus.heldout):,} held out",
        highlight=False,
    )
    before = load(model, place, corpus, args)
    history = train(model, place, corpus, args, console, bigram=bigram)
    after = load(model, place, corpus, args)

    size = sum(parameter.numel() for parameter in model.parameters())
    title = f"A {size / 1e6:.1f}M-parameter Mixtral on Python's documentation ({place.name()})"
    training.draw(history, bigram=bigram, title=title, path=args.out / "loss.png")
    draw_load(
        before,
        after,
        args.out / "experts.png",
        title=f"The load of {args.experts} experts ({place.name()})",
    )
    console.print(load_table(before, after, args.batch * args.sequence * args.chosen))
    if args.sample:
        training.show_sample(
            model,
            lambda tokens: model(place.put(tokens)).logits,
            corpus.heldout,
            args,
            console,
            rows=place.rows,
        )
    console.print(
        f"\nheld-out loss [bold]{history.heldout[-1][1]:.4f}[/bold] nats per byte, bigram table "
        f"{bigram:.4f}; {place.compiles()} compiles, {place.loaded()} from disk, "
        f"{time.perf_counter() - started:.0f} s\n"
        f"{args.out / 'loss.png'}, {args.out / 'experts.png'}",
        highlight=False,
        soft_wrap=True,
    )


if __name__ == "__main__":
    main()
