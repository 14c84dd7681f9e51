"""A dozen layouts by hand of five models, next to what `spmd.suggest` finds in a given time.

    python -m recipes.benchmarks.layouts_by_hand --case unet          # or conv, llama-8b,
                                                                      # llama-70b, mixtral
    python -m recipes.benchmarks.layouts_by_hand --case unet --hand   # only the layouts by hand
    python -m recipes.benchmarks.layouts_by_hand --case unet --table  # only the table, of what the
                                                                      # files have

The layouts by hand stand in this file and were written before any search of these models ran. Plans
are kept in files (`--folder`), so that a run that was stopped goes on; the search's budget counts
only what it compiles itself. Needs the extras `tpu` and `test` (transformers, diffusers). Nothing
is allocated.
"""

import argparse
import dataclasses
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.nn import functional as F

import fsdp
import spmd
from recipes.llama import CONFIGS, Llama, cross_entropy
from spmd import P, ShardingRules

PRECISION = fsdp.MixedPrecisionPolicy(param_dtype=torch.bfloat16)
GIB = 2**30


@dataclass(frozen=True)
class Hand:
    """A layout by hand. axes: of the mesh; checkpoint: as of `ShardingRules`; sequence: residuals
    split along it."""

    axes: dict[str, int]
    checkpoint: dict[str, str] = field(default_factory=dict)
    sequence: bool = False
    reshard: bool = True

    def __str__(self) -> str:
        said = [
            ", ".join(f"{name}={size}" for name, size in self.axes.items()),
            *["sequence"] * self.sequence,
        ]
        said += [
            *["kept unsharded"] * (not self.reshard),
            *(f"{pattern}: {word}" for pattern, word in self.checkpoint.items()),
        ]
        return "; ".join(said)


def _llama(
    name: str,
) -> Callable[[int], tuple[nn.Module, Callable[..., Any], tuple[torch.Tensor, ...]]]:
    def make(rows: int) -> tuple[nn.Module, Callable[..., Any], tuple[torch.Tensor, ...]]:
        model = Llama(dataclasses.replace(CONFIGS[name], checkpointed=False))
        return (
            model,
            lambda tokens: cross_entropy(model(tokens), tokens),
            (torch.zeros(rows, 4096, dtype=torch.long),),
        )

    return make


def _mixtral(rows: int) -> tuple[nn.Module, Callable[..., Any], tuple[torch.Tensor, ...]]:
    import transformers

    config = transformers.MixtralConfig(
        num_hidden_layers=32,
        hidden_size=4096,
        num_attention_heads=32,
        num_key_value_heads=8,
        intermediate_size=14_336,
        vocab_size=32_000,
        use_cache=False,
    )
    model = transformers.MixtralForCausalLM(config)
    tokens = torch.zeros(rows, 2048, dtype=torch.long)
    return model, lambda ids: model(input_ids=ids, labels=ids).loss, (tokens,)


def _conv(rows: int) -> tuple[nn.Module, Callable[..., Any], tuple[torch.Tensor, ...]]:
    """A ResNet of basic blocks for images of 32 x 32: libtpu works a quarter of a minute on each
    different convolution and its gradients, so that a ResNet-50 takes it more than ten."""
    import transformers

    config = transformers.ResNetConfig(
        depths=[3, 3, 3],
        hidden_sizes=[64, 128, 256],
        embedding_size=64,
        layer_type="basic",
        num_labels=1000,
    )
    model = transformers.ResNetForImageClassification(config)

    def loss(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(model(images).logits.float(), labels)

    return model, loss, (torch.zeros(rows, 3, 32, 32), torch.zeros(rows, dtype=torch.long))


def _unet(rows: int) -> tuple[nn.Module, Callable[..., Any], tuple[torch.Tensor, ...]]:
    """A small UNet of DDPM's kind for images of 16 x 16, with attention (arXiv:2006.11239), of few
    different convolutions for the same reason."""
    import diffusers

    model = diffusers.UNet2DModel(
        sample_size=16,
        block_out_channels=(64, 64),
        layers_per_block=1,
        downsample_padding=0,
        flip_sin_to_cos=False,
        freq_shift=1,
        norm_eps=1e-6,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )

    def loss(noisy: torch.Tensor, levels: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(model(noisy, levels).sample.float(), noise)

    images = torch.zeros(rows, 3, 16, 16)
    return model, loss, (images, torch.zeros(rows, dtype=torch.long), images.clone())


COLUMN, ROW = P("tensor", None), P(None, "tensor")
LLAMA = {
    "blocks.*.attention.{query,key,value}.weight": COLUMN,
    "blocks.*.{gate,up}.weight": COLUMN,
    "blocks.*.{attention.out,down}.weight": ROW,
    "{embed,head}.weight": COLUMN,
}
MIXTRAL = {
    "model.layers.*.self_attn.{q,k,v}_proj.weight": COLUMN,
    "model.layers.*.self_attn.o_proj.weight": ROW,
    "model.layers.*.mlp.experts.gate_up_proj": P(None, "tensor", None),
    "model.layers.*.mlp.experts.down_proj": P(None, None, "tensor"),
    "{model.embed_tokens,lm_head}.weight": COLUMN,
}


def _llama_sites(batch: Any, sequence: bool) -> dict[str, P]:
    along = "tensor" if sequence else None
    whole = (
        {"blocks.*.norm?:output": P(batch, None, None), "norm:output": P(batch, None, None)}
        if sequence
        else {}
    )
    return whole | {
        "{embed,blocks.*}:output": P(batch, along, None),
        "blocks.*.{attention.out,down}:output": P(batch, along, None),
        ":output": P(batch, None, "tensor"),
    }


def _mixtral_sites(batch: Any, sequence: bool) -> dict[str, P]:
    along = "tensor" if sequence else None
    return {
        "{model.embed_tokens,model.layers.*}:output": P(batch, along, None),
        "model.layers.*.self_attn.o_proj:output": P(batch, along, None),
    }


@dataclass(frozen=True)
class Case:
    """A model and its dozen. make: the model, its loss and its inputs, of so many rows. table,
    sites: the rules of a tensor axis, of parameters and of activations (batch axes, whether the
    sequence is split)."""

    make: Callable[[int], Any]
    target: str
    devices: int
    rows: int
    units: tuple[str, ...]
    minutes: float
    hand: tuple[Hand, ...]
    table: dict[str, P] = field(default_factory=dict)
    sites: Callable[[Any, bool], dict[str, P]] | None = None

    def rules(self, hand: Hand) -> ShardingRules:
        batch = tuple(axis for axis in hand.axes if axis != "tensor")
        has_tensor = hand.axes.get("tensor", 1) > 1
        sites = self.sites(batch, hand.sequence) if has_tensor and self.sites is not None else {}
        return ShardingRules(
            (self.table if has_tensor else {}) | sites,
            units=self.units,
            reshard_after_forward=hand.reshard,
            extra_data_axis="data" if "data" in hand.axes else None,
            checkpoint=hand.checkpoint,
        )


def _dense(count: int, blocks: str) -> tuple[Hand, ...]:
    """A dozen of a decoder on 8 devices."""
    all_, dots = {blocks: "nothing"}, {blocks: "dots"}
    half = {f"{blocks}[02468]": "nothing"}
    return (
        Hand({"fsdp": count}),
        Hand({"fsdp": count}, all_),
        Hand({"fsdp": count}, dots),
        Hand({"fsdp": count}, half),
        Hand({"fsdp": count}, all_, reshard=False),
        Hand({"data": 2, "fsdp": count // 2}, all_),
        Hand({"data": 2, "fsdp": count // 2}),
        Hand({"fsdp": count // 2, "tensor": 2}, all_),
        Hand({"fsdp": count // 2, "tensor": 2}, sequence=True),
        Hand({"fsdp": count // 4, "tensor": 4}, sequence=True),
        Hand({"fsdp": count // 4, "tensor": 4}, all_, sequence=True),
        Hand({"fsdp": count // 8, "tensor": 8}, all_, sequence=True),
    )


def _images(blocks: str) -> tuple[Hand, ...]:
    """A dozen of a network of convolutions on 8 devices."""
    all_, dots = {blocks: "nothing"}, {blocks: "dots"}
    whole = {"data": 8, "fsdp": 1}
    return (
        Hand(whole),
        Hand(whole, dots),
        Hand(whole, all_),
        Hand({"fsdp": 8}),
        Hand({"fsdp": 8}, dots),
        Hand({"fsdp": 8}, all_),
        Hand({"fsdp": 8}, reshard=False),
        Hand({"fsdp": 8}, all_, reshard=False),
        Hand({"data": 4, "fsdp": 2}),
        Hand({"data": 4, "fsdp": 2}, all_),
        Hand({"data": 2, "fsdp": 4}),
        Hand({"data": 2, "fsdp": 4}, all_),
    )


_ALL, _DOTS = {"blocks.*": "nothing"}, {"blocks.*": "dots"}
_LARGE = (
    *(Hand({"fsdp": 256 // ways, "tensor": ways}, _ALL, sequence=True) for ways in (2, 4, 8, 16)),
    *(Hand({"fsdp": 256 // ways, "tensor": ways}, _ALL) for ways in (4, 8)),
    *(Hand({"fsdp": 256 // ways, "tensor": ways}, _DOTS, sequence=True) for ways in (4, 8)),
    Hand({"fsdp": 256}, _ALL),
    Hand({"fsdp": 256}, _DOTS),
    Hand({"data": 2, "fsdp": 128}, _ALL),
    Hand({"fsdp": 32, "tensor": 8}, sequence=True),
)
_LAYERS = {"model.layers.*": "nothing"}
_EXPERTS = (
    Hand({"fsdp": 128}, _LAYERS),
    Hand({"fsdp": 128}),
    Hand({"fsdp": 128}, {"model.layers.*": "dots"}),
    Hand({"fsdp": 128}, {"model.layers.*[02468]": "nothing"}),
    Hand({"fsdp": 128}, _LAYERS, reshard=False),
    Hand({"data": 2, "fsdp": 64}, _LAYERS),
    Hand({"data": 4, "fsdp": 32}, _LAYERS),
    Hand({"fsdp": 64, "tensor": 2}, _LAYERS),
    Hand({"fsdp": 64, "tensor": 2}, _LAYERS, sequence=True),
    Hand({"fsdp": 32, "tensor": 4}, _LAYERS, sequence=True),
    Hand({"fsdp": 16, "tensor": 8}, _LAYERS, sequence=True),
    Hand({"data": 2, "fsdp": 32, "tensor": 2}, _LAYERS),
)


def _without_dots(hands: tuple[Hand, ...]) -> tuple[Hand, ...]:
    """The same with others in place of those that save products: such a UNet takes libtpu more than
    five minutes."""
    others = (
        Hand({"data": 4, "fsdp": 2}, reshard=False),
        Hand({"data": 2, "fsdp": 4}, reshard=False),
    )
    return (*(hand for hand in hands if "dots" not in hand.checkpoint.values()), *others)


_RESIDUALS = "resnet.encoder.stages.*.layers.*"
_PARTS = "{down_blocks.*,up_blocks.*,mid_block}.{resnets,attentions}.*"
CASES = {
    "conv": Case(_conv, "v5e:2x4", 8, 128, (_RESIDUALS,), 10, _images(_RESIDUALS)),
    "unet": Case(_unet, "v5e:2x4", 8, 128, (_PARTS,), 10, _without_dots(_images(_PARTS))),
    "llama-8b": Case(
        _llama("8b"),
        "v5p:2x2x2",
        8,
        8,
        ("blocks.*",),
        10,
        _dense(8, "blocks.*"),
        LLAMA,
        _llama_sites,
    ),
    "llama-70b": Case(
        _llama("70b"), "v5p:4x8x8", 256, 256, ("blocks.*",), 30, _LARGE, LLAMA, _llama_sites
    ),
    "mixtral": Case(
        _mixtral, "v5p:4x4x8", 128, 128, ("model.layers.*",), 30, _EXPERTS, MIXTRAL, _mixtral_sites
    ),
}


def step_of(case: Case) -> tuple[Callable[..., Any], nn.Module, tuple[torch.Tensor, ...]]:
    with torch.device("meta"):
        model, loss_of, inputs = case.make(case.rows)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1)

    def step(*inputs: torch.Tensor) -> torch.Tensor:
        loss = loss_of(*inputs)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step, model, inputs


def by_hand(case: Case, hand: Hand) -> dict[str, Any]:
    """The figures of a plan of a layout by hand."""
    step, model, inputs = step_of(case)
    mesh = spmd.Mesh(
        range(case.devices), tuple(hand.axes.values()), tuple(hand.axes), target=case.target
    )
    case.rules(hand).apply(model, mesh, strict=False, mp_policy=PRECISION)
    plan = spmd.plan(step, *inputs)
    return {
        "seconds": plan.seconds,
        "cycles": plan.cycles,
        "peak": plan.peak,
        "moved": plan.moved_bytes,
        "fits": plan.fits,
        "compile": plan.compile_seconds,
    }


def found_by_search(case: Case, file: Path) -> dict[str, Any]:
    step, model, inputs = step_of(case)
    found = spmd.suggest(
        step,
        *inputs,
        target=case.target,
        model=model,
        mp_policy=PRECISION,
        budget=60 * case.minutes,
        file=file,
    )
    Console(width=160).print(found)
    rows = [
        {
            "name": trial.name,
            "seconds": trial.seconds,
            "cycles": trial.plan.cycles,
            "peak": trial.plan.peak,
            "moved": trial.plan.moved_bytes,
            "fits": trial.fits,
            "compile": trial.plan.compile_seconds,
        }
        for trial in found.trials
        if trial.plan is not None
    ]
    return {"spent": found.spent, "trials": rows}


def show(name: str, known: dict[str, Any]) -> None:
    table = Table(title=f"{name}: layouts by hand, and those of suggest")
    for column in ("layout", "ms", "Mcycles", "peak GiB", "moved GiB"):
        table.add_column(column, justify="left" if column == "layout" else "right", no_wrap=True)

    def add(name: str, row: dict[str, Any]) -> None:
        if not row["fits"] or not row["seconds"]:
            table.add_row(name, "does not fit", "", f"{row['peak'] / GIB:.2f}")
            return
        figures = row["seconds"] * 1e3, row["cycles"] / 1e6, row["peak"] / GIB, row["moved"] / GIB
        table.add_row(name, *(f"{figure:,.2f}" for figure in figures))

    hand = known.get("hand", {})
    for layout, row in sorted(
        hand.items(), key=lambda item: (not item[1]["fits"], item[1]["seconds"] or 0)
    ):
        add(layout, row)
    table.add_section()
    found = known.get("found", {"trials": []})
    for row in found["trials"]:
        add(row["name"], row)
    Console(width=140).print(table)
    fitting, suggested = (
        [row for row in rows if row["fits"]] for rows in (hand.values(), found["trials"])
    )
    for what in ("seconds", "cycles", "peak") if fitting and suggested else ():
        ours, best = (min(row[what] for row in rows) for rows in (suggested, fitting))
        print(f"least {what}: suggest {ours / best:.3f} of the best by hand")
    if suggested:
        print(f"the search took {found['spent']:,.0f} s")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--case", choices=tuple(CASES), required=True)
    parser.add_argument("--hand", action="store_true", help="plan only the layouts by hand")
    parser.add_argument("--table", action="store_true", help="plan nothing")
    parser.add_argument("--folder", type=Path, default=Path("out/layouts_by_hand"))
    given = parser.parse_args(arguments)
    case, file = CASES[given.case], given.folder / f"{given.case}.json"
    given.folder.mkdir(parents=True, exist_ok=True)
    known = json.loads(file.read_text()) if file.exists() else {"hand": {}}
    for hand in () if given.table else case.hand:
        if str(hand) not in known["hand"]:
            started = time.monotonic()
            known["hand"][str(hand)] = by_hand(case, hand)
            file.write_text(json.dumps(known, indent=1))
            print(f"{hand}: {time.monotonic() - started:.0f} s", flush=True)
    if not (given.hand or given.table) and "found" not in known:
        known["found"] = found_by_search(case, given.folder / f"{given.case}-search.json")
        file.write_text(json.dumps(known, indent=1))
    show(given.case, known)


if __name__ == "__main__":
    main()
