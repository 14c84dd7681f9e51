"""Generate text with a static cache, sharded over a tensor mesh: plain, compiled and speculative,
in tokens a second.

    python recipes/generate.py                                # trains a Llama and a draft first;
                                                              # data=2,tensor=4
    python recipes/generate.py --load out/model               # the target is one that
                                                              # wrap_hugging_face.py has left
    python recipes/generate.py --mesh tensor=2 --batches 1 4  # two devices; one prompt, and four at
                                                              # once
    python recipes/generate.py --device cpu                   # the same file in plain PyTorch, for
                                                              # comparison
    python recipes/generate.py --target v5e:2x4               # plan the step of a token for a TPU
                                                              # slice

The target and a smaller draft are Llamas of `transformers` over bytes, from a configuration;
nothing is downloaded. The lines that make it distributed are in `Place`: the model's own plan
shards heads, hidden units and vocabulary over the mesh, and prompts and cache are marked. The table
compares greedy decoding by unmodified `generate`, whose calls of the model are replayed, by a loop
of one's own whose step is lazy or recorded once by `spmd.compile`, and by speculation: the draft
proposes a few tokens, and the target looks at all of them at once and keeps those that it would
have written. Every way writes the same tokens, which are compared with those of `generate` on the
CPU. It leaves OUT/tokens.png, and the target in OUT/target.
"""

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import torch
from matplotlib import pyplot
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, StaticCache
from transformers.utils import logging

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs without being installed, too

import spmd
from recipes import text, training
from recipes.wrap_hugging_face import configure, train

NEVER = 0  # a byte that no text has: the end of a sequence, which therefore never comes
HOW = {"do_sample": False, "eos_token_id": NEVER, "pad_token_id": NEVER}


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    where = parser.add_argument_group("where it runs")
    where.add_argument(
        "--mesh",
        type=partial(training.parse_mesh, others=("data",), needed="tensor"),
        default={"data": 2, "tensor": 4},
        metavar="AXIS=SIZE,...",
        help=(
            "mesh axes in order: tensor shards the model, data the prompts (default "
            "data=2,tensor=4)"
        ),
    )
    training.add_device_flag(where)
    training.add_place_flags(where)
    model = training.add_model_flags(parser)
    model.add_argument(
        "--draft-layers",
        type=int,
        default=1,
        metavar="N",
        help="of the draft (default %(default)s)",
    )
    model.add_argument(
        "--draft-width",
        type=int,
        default=64,
        metavar="N",
        help="of the draft (default %(default)s)",
    )
    model.add_argument(
        "--load", type=Path, metavar="DIR", help="the target, as save_pretrained writes it"
    )
    more = training.add_training_flags(parser, steps=150, eval_every=75)
    more.add_argument(
        "--prompt",
        type=int,
        default=32,
        metavar="N",
        help="bytes of a prompt (default %(default)s)",
    )
    more.add_argument(
        "--tokens",
        type=int,
        default=64,
        metavar="N",
        help="bytes to be written (default %(default)s)",
    )
    more.add_argument(
        "--ahead",
        type=int,
        default=4,
        metavar="N",
        help="bytes that the draft proposes (default 4)",
    )
    more.add_argument(
        "--batches",
        type=int,
        nargs="+",
        default=[1, 8],
        metavar="N",
        help="prompts at once (default 1 8)",
    )
    args = parser.parse_args(arguments)
    args.model = "llama"
    tensor = args.mesh["tensor"]
    if args.device == "xla" and max(1, args.heads // 2) % tensor:
        parser.error(
            f"--heads {args.heads}: half as many heads of keys must be a multiple of the mesh's "
            f"tensor={tensor}"
        )
    if wrong := training.fault(args):
        parser.error(wrong)
    if args.load and not (args.load / "config.json").is_file():
        parser.error(
            f"--load {args.load} has no config.json: expected a folder of save_pretrained, such "
            "as out/model"
        )
    if min(args.tokens, args.ahead, *args.batches) < 1:
        parser.error("--tokens, --ahead and --batches must be at least 1")
    return args


class Place:
    """The place of models and batches: a mesh, or without one the CPU."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.mesh = None
        if args.device == "xla":
            # Before anything else touches the device: the number of devices is fixed when jax's
            # backend starts.
            spmd.simulate(prod(args.mesh.values()))
            self.mesh = spmd.Mesh(
                range(prod(args.mesh.values())), tuple(args.mesh.values()), tuple(args.mesh)
            )
        if args.partitioner:
            spmd.config.partitioner = args.partitioner

    def model(self, config: PretrainedConfig, folder: Path | None = None) -> Any:
        """Returns the model of a configuration, sharded; with the weights of a folder, or new
        ones."""
        with torch.device("cpu" if self.mesh is None else "xla"):
            model = AutoModelForCausalLM.from_config(config)
        if self.mesh is not None:
            spmd.ShardingRules.of(model, fsdp=None).apply(model, self.mesh)
        if folder is not None:
            spmd.load_checkpoint(model, folder)
        return model

    def rows(self, rows: int) -> str | None:
        """Returns the axis that shards so many rows."""
        data = self.mesh is not None and self.mesh.shape().get("data", 0)
        return "data" if data and rows % data == 0 else None

    def put(self, tokens: Tensor) -> Tensor:
        """Moves a batch to the devices."""
        if self.mesh is None:
            return tokens
        return spmd.mark_sharding(tokens.to("xla"), self.mesh, (self.rows(len(tokens)), None))

    def cache(self, config: PretrainedConfig, rows: int, length: int) -> StaticCache:
        """Returns an empty cache of keys and values, sharded as the heads are."""
        cache = StaticCache(config=config, max_cache_len=length)
        device = torch.device("cpu" if self.mesh is None else "xla")
        cache.early_initialization(
            rows, config.num_key_value_heads, config.head_dim, torch.float32, device
        )
        if self.mesh is not None:
            for layer in cache.layers:
                for tensor in (layer.keys, layer.values):
                    spmd.mark_sharding(tensor, self.mesh, (self.rows(rows), "tensor", None, None))
        return cache

    def sync(self) -> None:
        if self.mesh is not None:
            spmd.sync()


class Decoding:
    """A model with its cache: tokens go in, the next ones come out."""

    def __init__(self, model: Any, place: Place, rows: int, length: int) -> None:
        self.model, self.cache = model, place.cache(model.config, rows, length)

    def next(self, tokens: Tensor) -> Tensor:
        """Returns the best token after each of these, and keeps their keys and values."""
        return self.model(
            input_ids=tokens, past_key_values=self.cache, use_cache=True
        ).logits.argmax(-1)

    def rewind(self, length: Tensor) -> None:
        """Forgets what comes after so many tokens; the next ones overwrite it."""
        for layer in self.cache.layers:
            layer.cumulative_length.copy_(length)


class Plain:
    """Greedy decoding by a loop of one's own: one program for the prompt, one for each token."""

    def __init__(
        self, models: tuple[Any, Any], place: Place, args: argparse.Namespace, rows: int, how: str
    ) -> None:
        self.place, self.tokens = place, args.tokens
        self.target = Decoding(models[0], place, rows, args.prompt + args.tokens)
        self.first_step, self.step = (self.start, self.target.next)
        if how == "compiled":
            self.first_step, self.step = spmd.compile(self.start), spmd.compile(self.target.next)

    def start(self, prompt: Tensor) -> Tensor:
        self.target.rewind(torch.zeros((), dtype=torch.long, device=prompt.device))
        # as the results of later steps, no view of more
        return self.target.next(prompt)[:, -1:].clone()

    def __call__(self, prompt: Tensor) -> tuple[Tensor, float, float]:
        """Returns the tokens, the seconds to the first of them, and tokens per call of the
        target."""
        clock = time.perf_counter()
        written = [self.first_step(prompt)]
        written[0].cpu()
        first = time.perf_counter() - clock
        for _ in range(self.tokens - 1):
            written.append(self.step(written[-1]))
            self.place.sync()
        return torch.cat([token.cpu() for token in written], dim=1), first, 1.0


class Speculative:
    """Speculative decoding (arXiv:2211.17192), greedy: the draft proposes `ahead` tokens, the
    target looks at all of them in one call and keeps those that are its own, with one more of its
    own. Of several prompts the row that agrees least decides, so that one length is that of all.
    """

    def __init__(
        self, models: tuple[Any, Any], place: Place, args: argparse.Namespace, rows: int, how: str
    ) -> None:
        self.tokens, self.ahead = args.tokens, args.ahead
        length = args.prompt + args.tokens + args.ahead + 1
        self.target, self.draft = (Decoding(model, place, rows, length) for model in models)
        self.first_step, self.step = self.start, self.round
        if how == "compiled":
            self.first_step, self.step = spmd.compile(self.start), spmd.compile(self.round)

    def start(self, prompt: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the first token, and the number of tokens that both caches have."""
        zero = torch.zeros((), dtype=torch.long, device=prompt.device)
        for each in (self.target, self.draft):
            each.rewind(zero)
        self.draft.next(prompt)
        return self.target.next(prompt)[:, -1:].clone(), zero + prompt.shape[1]

    def round(self, last: Tensor, length: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Returns the target's next tokens, how many of the proposed ones are among them, the last
        one, the length."""
        proposed = [last]
        for _ in range(self.ahead + 1):  # the last call only keeps what the one before has proposed
            proposed.append(self.draft.next(proposed[-1]))
        wanted = self.target.next(torch.cat(proposed[:-1], dim=1))
        agreed = torch.cat(proposed[1:-1], dim=1) == wanted[:, :-1]
        accepted = agreed.long().cumprod(1).sum(1).min()
        length = length + accepted + 1
        for each in (self.target, self.draft):
            each.rewind(length)
        return wanted, accepted, wanted.index_select(1, accepted[None]), length

    def __call__(self, prompt: Tensor) -> tuple[Tensor, float, float]:
        """Returns the tokens, the seconds to the first of them, and tokens per call of the
        target."""
        clock = time.perf_counter()
        last, length = self.first_step(prompt)
        written = [last.cpu()]
        first, found, rounds = time.perf_counter() - clock, 1, 0
        while found < self.tokens:
            wanted, accepted, last, length = self.step(last, length)
            written.append(wanted.cpu()[:, : accepted.item() + 1])
            found, rounds = found + written[-1].shape[1], rounds + 1
        return torch.cat(written, dim=1)[:, : self.tokens], first, (found - 1) / max(1, rounds)


class Generate:
    """Greedy decoding by `generate` of transformers, unmodified: its cache is a static one on
    xla."""

    def __init__(
        self, models: tuple[Any, Any], place: Place, args: argparse.Namespace, rows: int, how: str
    ) -> None:
        self.model, self.tokens = models[0], args.tokens

    def __call__(self, prompt: Tensor) -> tuple[Tensor, float, float]:
        """Returns the tokens, the seconds to the first of them, and tokens per call of the
        target."""
        clock, firsts = time.perf_counter(), []

        class Streamer:
            """Notes when a token comes."""

            def put(self, tokens: Tensor) -> None:
                firsts.append(time.perf_counter() - clock)

            def end(self) -> None:
                """Nothing is left to be shown."""

        streamer = {"streamer": Streamer()} if len(prompt) == 1 else {}
        mask = torch.ones_like(prompt)
        made = self.model.generate(
            prompt, attention_mask=mask, max_new_tokens=self.tokens, **HOW, **streamer
        )
        made = made.cpu()[:, prompt.shape[1] :]
        return made, firsts[1] if firsts else float("nan"), 1.0


WAYS: dict[str, tuple[Callable[..., Any], str]] = {
    "generate, unmodified": (Generate, "replayed"),
    "a loop, lazy": (Plain, "lazy"),
    "a loop, spmd.compile": (Plain, "compiled"),
    "speculative, lazy": (Speculative, "lazy"),
    "speculative, spmd.compile": (Speculative, "compiled"),
}


@dataclass(frozen=True)
class Row:
    """The figures of one way with one number of prompts; seconds of the first call, and of a second
    one."""

    way: str
    rows: int
    cold: float
    first: float
    per_second: float
    per_call: float
    programs: int
    equal: bool


@torch.no_grad()
def measure(
    models: tuple[Any, Any],
    place: Place,
    prompts: Tensor,
    expected: Tensor,
    args: argparse.Namespace,
) -> list[Row]:
    """Returns the figures of each way for a batch of prompts: it runs twice, and the second run is
    timed."""
    found = []
    for way, (make, how) in WAYS.items():
        if how == "compiled" and place.mesh is None:
            continue
        before, clock = spmd.metrics.num_compiles(), time.perf_counter()
        decode = make(models, place, args, len(prompts), how)
        prompt = place.put(prompts)
        decode(prompt)
        cold = time.perf_counter() - clock
        decode(prompt)
        clock = time.perf_counter()
        tokens, first, per_call = decode(prompt)
        rate = tokens.numel() / (time.perf_counter() - clock)
        programs = spmd.metrics.num_compiles() - before
        found.append(
            Row(
                way,
                len(prompts),
                cold,
                first,
                rate,
                per_call,
                programs,
                torch.equal(tokens, expected),
            )
        )
    return found


def figures(found: list[Row]) -> Table:
    """Returns the table of the figures."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 2, 0, 0), title_justify="left")
    table.title = "Greedy decoding; times of a call after the first"
    headings = (
        "way",
        "prompts",
        "first call s",
        "first token ms",
        "tokens/s",
        "tokens per target call",
        "programs",
    )
    for heading in (*headings, "tokens of the CPU"):
        table.add_column(heading, justify="left" if heading == "way" else "right", no_wrap=True)
    for row in found:
        first = "" if row.first != row.first else f"{row.first * 1000:,.0f}"
        shown = (
            f"{row.cold:.1f}",
            first,
            f"{row.per_second:,.0f}",
            f"{row.per_call:.2f}",
            str(row.programs),
        )
        table.add_row(row.way, str(row.rows), *shown, "yes" if row.equal else "NO")
    return table


def draw(found: list[Row], *, title: str, path: Path) -> None:
    """Writes the picture of tokens per second."""
    figure, axes = pyplot.subplots(figsize=(9, 5), layout="constrained")
    batches = list(dict.fromkeys(row.rows for row in found))
    ways = list(dict.fromkeys(row.way for row in found))
    height = 0.8 / len(batches)
    for number, rows in enumerate(batches):
        rates = {row.way: row.per_second for row in found if row.rows == rows}
        places = [ways.index(way) + number * height for way in rates]
        bars = axes.barh(
            places, list(rates.values()), height, label=f"{rows} prompt{'s' if rows > 1 else ''}"
        )
        axes.bar_label(bars, fmt="{:,.0f}", padding=3)
    axes.set_yticks([place + 0.4 - height / 2 for place in range(len(ways))], ways)
    axes.invert_yaxis()
    axes.margins(x=0.1)
    axes.set(xlabel="tokens per second, all prompts together", title=title)
    axes.grid(alpha=0.3, axis="x")
    axes.legend()
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def make(
    place: Place, corpus: text.Text, args: argparse.Namespace, console: Console
) -> tuple[Any, Any]:
    """Returns target and draft, trained; a target that is loaded is not trained."""
    bigram = text.bigram_loss(corpus)
    small = argparse.Namespace(
        **{**vars(args), "layers": args.draft_layers, "width": args.draft_width}
    )
    config = AutoConfig.from_pretrained(args.load) if args.load else configure(args)
    target, draft = place.model(config, args.load), place.model(configure(small))
    for name, model in (("target", target), ("draft", draft)):
        size = sum(parameter.numel() for parameter in model.parameters())
        console.print(f"{name}: {size:,} parameters", highlight=False)
        if model is draft or not args.load:
            train(model, corpus, args, console, bigram=bigram, put=place.put)
        model.eval()
    return target, draft


@torch.no_grad()
def plan(place: Place, args: argparse.Namespace) -> spmd.Plan:
    """Returns the plan of a token for the most prompts, on the devices of --target; nothing is
    allocated for it."""
    model = place.model(
        AutoConfig.from_pretrained(args.load) if args.load else configure(args)
    ).eval()
    rows = max(args.batches)
    step = Decoding(model, place, rows, args.prompt + args.tokens).next
    return training.plan_step(
        step, place.put(torch.zeros(rows, 1, dtype=torch.long)), target=args.target
    )


def main(arguments: list[str] | None = None) -> None:
    args = parse(arguments)
    started, console = time.perf_counter(), training.make_console()
    logging.disable_progress_bar()
    place = Place(args)
    torch.manual_seed(args.seed)
    args.out.mkdir(parents=True, exist_ok=True)
    if args.target:
        planned = plan(place, args)
        planned.save(args.out / "plan.html")
        console.print(planned)
        return
    corpus = text.load()
    models = make(place, corpus, args, console)

    models[0].save_pretrained(args.out / "target")
    plain = AutoModelForCausalLM.from_pretrained(args.out / "target")
    found = []
    for rows in args.batches:
        prompts = corpus.heldout[: rows * args.prompt].view(rows, args.prompt).long()
        mask = torch.ones_like(prompts)
        expected = plain.generate(prompts, attention_mask=mask, max_new_tokens=args.tokens, **HOW)[
            :, args.prompt :
        ]
        found += measure(models, place, prompts, expected, args)
    console.print(figures(found))

    where = (
        "plain PyTorch"
        if place.mesh is None
        else ", ".join(f"{name}={size}" for name, size in args.mesh.items())
    )
    size = sum(parameter.numel() for parameter in models[0].parameters())
    title = f"A {size / 1e6:.1f}M-parameter Llama writes {args.tokens} tokens ({where})"
    draw(found, title=title, path=args.out / "tokens.png")
    console.print("\n[bold]A sample[/bold] (dim: held-out text that it continues)")
    console.print(text.decode(prompts[0]), style="dim", end="", markup=False, highlight=False)
    console.print(text.decode(expected[0]), markup=False, highlight=False)
    console.print(
        f"\n{spmd.metrics.num_compiles()} compiles, {spmd.metrics.num_loaded()} from disk, "
        f"{time.perf_counter() - started:.0f} s\n{args.out / 'tokens.png'}",
        highlight=False,
        soft_wrap=True,
    )


if __name__ == "__main__":
    main()
