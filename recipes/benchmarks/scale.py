"""Training steps of large models, compiled by the compilers of real TPUs: ours next to JAX by hand.

    python -m recipes.benchmarks.scale                        every row, small ones first
    python -m recipes.benchmarks.scale --rows 8b 8b-kept      some of them
    python -m recipes.benchmarks.scale --layers 2             the same with so many layers
    python -m recipes.benchmarks.scale --rows 8b --side jax   one side
    python -m recipes.benchmarks.scale --rows toy toy-shardy  small ones, on eight simulated devices

No TPU is needed, but the package libtpu is (`pip install "jax[tpu]"`), except for the toys. Nothing
is allocated. Each compile has a process of its own. Ours is a plain PyTorch model
(`recipes/llama.py`, or Hugging Face's) on meta, planned by `spmd.plan`; JAX's is `jax_llama.py`.
Figures are of one chip. Collectives and the bytes that they move are counted once per iteration of
a loop; hidden bytes are moved while the chip computes something else, in the compiler's schedule.
Cycles are the compiler's estimate, with the same trip counts; it estimates none for Pallas kernels,
and attention is one on both sides. The step and its waiting are by the clock of plans, of both
sides; JAX's is compiled with the options that ours takes by default. Arguments are those of the
program: weights, moments and the batch. The seconds of compiling include lowering.
"""

import argparse
import dataclasses
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from rich.console import Console
from rich.table import Table

GIB = 2**30


@dataclass(frozen=True)
class Row:
    """One step on one slice. tensor: the number of devices that heads are sharded over; bar: the
    largest ratio of ours to JAX's; low: True if weights are cast to bfloat16 (XLA's CPU compiler
    widens the operands of collectives: a toy computes in float32); partitioner: of both sides, else
    each has its own default."""

    name: str
    model: str
    target: str
    num_devices: int
    batch: int
    tensor: int = 1
    checkpointed: bool = True
    bar: float = 1.05
    sequence: int = 4096
    has_peer: bool = True
    partitioner: str | None = None
    low: bool = True


def _simulated(name: str) -> tuple[Row, ...]:
    """The rows of a small model on eight simulated devices, by both partitioners, checkpointed and
    not."""
    how: dict[str, Any] = {"bar": 1.0, "sequence": 64, "low": False}
    return tuple(
        Row(
            f"{name}{kept}{by}",
            name,
            "cpu:8",
            8,
            16,
            checkpointed=not kept,
            partitioner=by[1:] or "gspmd",
            **how,
        )
        for kept in ("", "-kept")
        for by in ("", "-shardy")
    )


ROWS = (
    *_simulated("toy"),
    *_simulated("small"),
    Row("1b", "1b", "v5p:2x2x2", 8, 8),
    Row("1b-kept", "1b", "v5p:2x2x2", 8, 8, checkpointed=False),
    Row("1b-v6e", "1b", "v6e:4x4", 16, 16),
    Row("1b-small-slice", "1b", "v5e:2x4", 8, 8),
    Row("1b-hf", "1b-hf", "v5p:2x2x2", 8, 8, has_peer=False),
    Row("8b", "8b", "v5p:2x2x2", 8, 8),
    Row("8b-kept", "8b", "v5p:2x2x2", 8, 8, checkpointed=False),
    Row("8b-small-slice", "8b", "v5e:2x4", 8, 8),
    Row("gpt-16b", "gpt-16b", "v4:2x4x4", 32, 64, has_peer=False, sequence=1024),
    Row("mixtral", "mixtral", "v5p:4x4x8", 128, 1024, has_peer=False, sequence=2048),
    Row("32b", "32b", "v5p:4x4x4", 64, 64, tensor=4),
    Row("olmo2-32b", "olmo2-32b", "v5p:4x4x4", 64, 64, tensor=4, bar=1.1),
    Row("olmo2-toy", "olmo2-toy", "cpu:8", 8, 16, tensor=2, bar=1.1, sequence=64, low=False),
    Row("70b", "70b", "v5p:4x8x8", 256, 256, tensor=8),
    Row("70b-small-slice", "70b", "v5e:2x4", 8, 8, tensor=8),
    Row("70b-2048", "70b", "v5p:8x16x16", 2048, 2048, tensor=8),
)


# -- One side of one row, in a process of its own.


def ours(row: Row, layers: int | None) -> dict[str, Any]:
    """Returns the figures of the plan of a plain PyTorch step."""
    import torch

    import spmd

    spmd.config.partitioner = row.partitioner or spmd.config.partitioner
    model, mesh, loss_of = MODELS.get(row.model, _llama)(row, layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1)
    tokens = torch.zeros(row.batch, row.sequence, dtype=torch.int64, device="meta")

    def step(tokens: torch.Tensor) -> torch.Tensor:
        spmd.mark_sharding(tokens, mesh, ("fsdp", None))
        loss = loss_of(model, tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    plan = spmd.plan(step, tokens)
    return {
        "arguments": plan.arguments,
        "temporaries": plan.temporaries,
        "peak": plan.peak,
        "exchanges": sum(collective.count for collective in plan.collectives),
        "moved": plan.moved_bytes,
        "hidden": plan.hidden_bytes,
        "cycles": plan.cycles,
        "cycles_once": plan.cycles_once,
        "waiting": sum(row.waiting for row in plan.collectives),
        "step": plan.seconds or 0.0,
        "flops": plan.flops,
        "compile": plan.compile_seconds,
        "verdict": plan.verdict or ("" if plan.fits else f"{plan.peak / GIB:.1f} GiB do not fit"),
        "advice": plan.advice,
        "largest": plan.largest,
        "formula": plan.formula,
        "collectives": [str(collective) for collective in plan.collectives[:12]],
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
    }


def _mesh(row: Row) -> Any:
    import spmd

    axes = ("fsdp", "tensor") if row.tensor > 1 else ("fsdp",)
    shape = (row.num_devices // row.tensor, row.tensor)[: len(axes)]
    return spmd.Mesh(range(row.num_devices), shape, axes, target=row.target)


# The shapes of rows for which `recipes/llama.py` has no configuration.
SHAPES = {
    "toy": {"layers": 6, "width": 64, "heads": 4, "kv_heads": 2, "hidden": 128, "vocabulary": 256},
    "small": {
        "layers": 6,
        "width": 256,
        "heads": 8,
        "kv_heads": 2,
        "hidden": 512,
        "vocabulary": 512,
    },
    # Those of Qwen2.5 32B (arXiv:2412.15115).
    "32b": {
        "layers": 64,
        "width": 5120,
        "heads": 40,
        "kv_heads": 8,
        "hidden": 27_648,
        "vocabulary": 152_064,
    },
    # Those of OLMo 2 32B (arXiv:2501.00656).
    "olmo2-32b": {
        "layers": 64,
        "width": 5120,
        "heads": 40,
        "kv_heads": 8,
        "hidden": 27_648,
        "vocabulary": 100_352,
    },
}
SHAPES["olmo2-toy"] = SHAPES["toy"]


def _llama(row: Row, layers: int | None) -> tuple[Any, Any, Callable[..., Any]]:
    import torch

    import fsdp
    from recipes.llama import CONFIGS, PRECISION, Llama, LlamaConfig, cross_entropy, fully_sharded

    shapes = LlamaConfig(**SHAPES[row.model]) if row.model in SHAPES else CONFIGS[row.model]
    config = dataclasses.replace(shapes, checkpointed=row.checkpointed)
    config = dataclasses.replace(config, layers=layers or config.layers)
    mesh = _mesh(row)
    with torch.device("meta"):
        model = Llama(config)
    precision = PRECISION if row.low else fsdp.MixedPrecisionPolicy()
    return (
        fully_sharded(model, mesh, precision),
        mesh,
        lambda model, tokens: cross_entropy(model(tokens), tokens),
    )


def _gpt(row: Row, layers: int | None) -> tuple[Any, Any, Callable[..., Any]]:
    """GPT-2 with 16 billion parameters, as Hugging Face has it: 32 layers of width 6,144 with 48
    heads."""
    from transformers import GPT2Config, GPT2LMHeadModel
    from transformers.models.gpt2.modeling_gpt2 import GPT2Block

    shapes = {"n_embd": 6144, "n_head": 48, "n_layer": layers or 32, "n_positions": row.sequence}
    config = GPT2Config(**shapes, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False)
    return hugging_face(row, GPT2LMHeadModel, config, GPT2Block)


def _mixtral(row: Row, layers: int | None) -> tuple[Any, Any, Callable[..., Any]]:
    """Mixtral 8x7B as Hugging Face has it."""
    from transformers import MixtralConfig, MixtralForCausalLM
    from transformers.models.mixtral.modeling_mixtral import MixtralDecoderLayer

    config = MixtralConfig(num_hidden_layers=layers or 32, use_cache=False)
    return hugging_face(row, MixtralForCausalLM, config, MixtralDecoderLayer)


def _hugging_face_llama(row: Row, layers: int | None) -> tuple[Any, Any, Callable[..., Any]]:
    """The shapes of row "1b" as Hugging Face has them."""
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer

    config = LlamaConfig(
        vocab_size=128_256,
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=layers or 16,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=row.sequence,
        use_cache=False,
    )
    return hugging_face(row, LlamaForCausalLM, config, LlamaDecoderLayer)


def _olmo2(row: Row, layers: int | None) -> tuple[Any, Any, Callable[..., Any]]:
    """OLMo 2 as Hugging Face has it, its heads, hidden units and residuals over an axis of tensor
    parallel."""
    import torch
    from transformers import Olmo2Config, Olmo2ForCausalLM

    import fsdp
    import spmd
    from spmd import P

    shapes = SHAPES[row.model]
    config = Olmo2Config(
        vocab_size=shapes["vocabulary"],
        hidden_size=shapes["width"],
        intermediate_size=shapes["hidden"],
        num_hidden_layers=layers or shapes["layers"],
        num_attention_heads=shapes["heads"],
        num_key_value_heads=shapes["kv_heads"],
        max_position_embeddings=row.sequence,
        use_cache=False,
    )
    mesh = _mesh(row)
    with torch.device("meta"):
        model = Olmo2ForCausalLM(config).train()
    along = P("fsdp", "tensor", None)  # Korthikanti et al. 2022, arXiv:2205.05198
    rules = spmd.ShardingRules(
        {
            "**.{q_proj,k_proj,v_proj,gate_proj,up_proj}.weight": P("tensor", None),
            "**.{o_proj,down_proj}.weight": P(None, "tensor"),
            "{model.embed_tokens,lm_head}.weight": P("tensor", None),
            "{model.embed_tokens,model.layers.*,model.layers.*.*.{o_proj,down_proj}}:output": along,
            "model.layers.*.{self_attn,mlp}:input": P("fsdp", None, None),
            "model.norm:output": P("fsdp", None, None),
            "lm_head:output": P("fsdp", None, "tensor"),
        },
        units=["model.layers.*"],
        checkpoint=["model.layers.*"] if row.checkpointed else (),
    )
    precision = fsdp.MixedPrecisionPolicy(param_dtype=torch.bfloat16 if row.low else None)
    rules.apply(model, mesh, mp_policy=precision)
    return model, mesh, lambda model, tokens: model(input_ids=tokens, labels=tokens).loss


def hugging_face(
    row: Row, model_class: Any, config: Any, layer_class: Any
) -> tuple[Any, Any, Callable[..., Any]]:
    import torch

    import fsdp

    mesh = _mesh(row)
    with torch.device("meta"):
        model = model_class(config)
    if row.checkpointed:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    policy = partial(fsdp.transformer_auto_wrap_policy, transformer_layer_cls={layer_class})
    precision = fsdp.MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    wrapped = fsdp.FullyShardedDataParallel(
        model, mesh, auto_wrap_policy=policy, mp_policy=precision
    )
    return wrapped, mesh, lambda model, tokens: model(input_ids=tokens, labels=tokens).loss


MODELS = {
    "gpt-16b": _gpt,
    "mixtral": _mixtral,
    "1b-hf": _hugging_face_llama,
    "olmo2-32b": _olmo2,
    "olmo2-toy": _olmo2,
}


def by_hand(row: Row, layers: int | None) -> dict[str, Any]:
    """Returns the figures of the JAX program."""
    import jax
    import numpy as np
    from jax.sharding import Mesh

    from recipes.benchmarks import jax_llama, jax_olmo
    from recipes.benchmarks.jax_gpt import use_partitioner

    models = {"1b": jax_llama.LLAMA_1B, "8b": jax_llama.LLAMA_8B, "70b": jax_llama.LLAMA_70B}
    is_olmo = row.model.startswith("olmo2")
    kind, step_of = (
        (jax_olmo.Olmo2, jax_olmo.OlmoStep) if is_olmo else (jax_llama.Llama, jax_llama.Step)
    )
    shapes = kind(**SHAPES[row.model]) if row.model in SHAPES else models[row.model]
    model = dataclasses.replace(shapes, layers=layers or shapes.layers)
    mesh = Mesh(np.array(_devices(row)).reshape(-1, row.tensor), ("fsdp", "tensor"))
    how = {} if row.low else {"dtype": jax.numpy.float32, "attention": "dot"}
    with use_partitioner(row.partitioner):
        started = time.perf_counter()  # ours includes lowering, too
        try:
            lowered = step_of(model, mesh, row.batch, row.sequence, row.checkpointed, **how).lower()
            compiled = lowered.compile(compiler_options=options_of(mesh))
        except jax.errors.JaxRuntimeError as error:
            return {
                "verdict": str(error).partition("\n")[0],
                "compile": time.perf_counter() - started,
            }
    return {"compile": time.perf_counter() - started, "verdict": "", **read(compiled, _mesh(row))}


def options_of(mesh: Any) -> dict[str, Any]:
    """The options of a program of ours over several TPUs with a kernel in it
    (docs/debugging.md)."""
    from spmd.core.programs.program import of_tpus

    device = mesh.devices.flat[0]
    found = of_tpus(device.device_kind) if device.platform == "tpu" else {}
    return found | ({"xla_tpu_overlap_compute_collective_tc": "False"} if found else {})


def _devices(row: Row) -> Any:
    import jax
    from jax.experimental import topologies

    import spmd

    if row.target.startswith("cpu:"):
        spmd.simulate(row.num_devices)
        return jax.devices()[: row.num_devices]
    return topologies.get_topology_desc(topology_name=row.target, platform="tpu").devices


def read(compiled: Any, mesh: Any) -> dict[str, Any]:
    """Returns the figures of a program of JAX's, read in the same way as those of `spmd.plan`.
    mesh: of ours."""
    from types import SimpleNamespace

    from spmd.core import topology
    from spmd.core.extend import Module
    from spmd.tools.hlo.hlo_collectives import collectives
    from spmd.tools.hlo.program_facts import cycles, repeated_flops
    from spmd.tools.planning.step_time import chip_of, terms_of

    memory, module = compiled.memory_analysis(), Module.of(compiled)
    program = SimpleNamespace(meshes=lambda: [mesh.sharding((), 0)], nodes=())
    exchanged = [one.row for one in collectives(module, program)]  # type: ignore[arg-type]  # it reads only these
    all_iterations, once = cycles(module)
    used = memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
    peak = memory.peak_memory_in_bytes if once else used + memory.temp_size_in_bytes
    sharding = mesh.sharding((), 0)
    devices = [topology.all_devices(sharding.target)[device] for device in sharding.device_ids]
    chip, slices = (
        chip_of(devices[0]),
        tuple(topology.slices(sharding.target)[i] for i in sharding.device_ids),
    )
    terms = terms_of(module, chip, slices, devices)[0] if chip is not None and once else ()
    return {
        "terms": {term.name: term.seconds for term in terms},
        "waiting": sum(term.seconds for term in terms if term.name.startswith("waiting")),
        "step": sum(term.seconds for term in terms),
        "arguments": memory.argument_size_in_bytes,
        "temporaries": min(memory.temp_size_in_bytes, peak - used),
        "peak": peak,
        "exchanges": sum(found.count for found in exchanged),
        "moved": sum(found.moved_bytes for found in exchanged),
        "hidden": sum(found.moved_bytes for found in exchanged if found.is_async),
        "cycles": all_iterations,
        "cycles_once": once,
        "flops": compiled.cost_analysis()["flops"] + repeated_flops(module),
    }


def child(side: str, row: Row, layers: int | None) -> None:
    """Prints the figures of one side as a line of JSON."""
    started = time.perf_counter()
    figures = {"ours": ours, "jax": by_hand}[side](row, layers)
    figures["seconds"] = time.perf_counter() - started
    figures["host"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print("FIGURES " + json.dumps(figures))


def measured(side: str, row: Row, layers: int | None, timeout: float) -> dict[str, Any]:
    """Returns the figures of one side of a row, or its error."""
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "recipes.benchmarks.scale",
        "--child",
        side,
        "--rows",
        row.name,
    ]
    command += [] if layers is None else ["--layers", str(layers)]
    # Without these settings libtpu queries the network for a TPU, and allows one process only.
    settings = {
        "TPU_SKIP_MDS_QUERY": "1",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        "JAX_PLATFORMS": "cpu",
    }
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=timeout,
            env={**os.environ, **settings},
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"not done in {timeout:.0f} s"}
    for line in done.stdout.splitlines():
        if line.startswith("FIGURES "):
            found: dict[str, Any] = json.loads(line.removeprefix("FIGURES "))
            return found
    return {"error": (done.stderr.strip().splitlines() or ["no figures"])[-1]}


# -- The table.

# Name, heading, divisor; the units of a toy are 1,024 times smaller (it has no cycles).
COLUMNS = (
    ("arguments", "arguments {}iB", 1 << 20),
    ("temporaries", "temporaries {}iB", 1 << 20),
    ("peak", "peak {}iB", 1 << 20),
    ("exchanges", "collectives", 1),
    ("moved", "moved {}iB", 1 << 20),
    ("hidden", "of which hidden {}iB", 1 << 20),
    ("cycles", "cycles M", 1e6),
    ("cycles_once", "loops once M", 1e6),
    ("step", "step ms", 1e-3),
    ("waiting", "of which waiting for collectives ms", 1e-3),
    ("flops", "operations {}", 1e9),
    ("compile", "compile s", 1),
    ("processor", "processor s", 1),
    ("seconds", "all s", 1),
    ("host", "host GiB", GIB),
)
# figures with a bar; the others are reported only
BARRED = {"temporaries", "peak", "exchanges", "moved", "cycles"}


def show(row: Row, layers: int | None, sides: dict[str, dict[str, Any]], console: Console) -> None:
    """Prints our figures next to JAX's, with the ratio and the bar."""
    short = "" if layers is None else f", {layers} layers"
    title = (
        f"{row.name}: {row.model} on {row.target}, batch {row.batch:,} x {row.sequence:,}{short}"
    )
    table = Table("", *sides, "ratio", "bar", title=title, title_justify="left")
    scale, letters = (1, "MG") if row.target.startswith("cpu") else (1024, "GT")
    for name, head, unit in COLUMNS:
        if not any(figures.get(name) for figures in sides.values()):
            continue
        unit = unit * scale if "{}" in head else unit
        values = [
            f"{figures[name] / unit:,.2f}" if name in figures else "-" for figures in sides.values()
        ]
        both = [figures[name] for figures in sides.values() if figures.get(name)]
        ratio = both[0] / both[1] if len(both) == 2 else None
        bar = 1.0 if name in ("moved", "cycles") and row.model == "70b" else row.bar
        is_over = ratio is not None and name in BARRED and ratio > bar
        shown = "" if ratio is None else f"[{'red' if is_over else 'green'}]{ratio:.3f}"
        limit = f"{bar:.2f}" if name in BARRED and row.has_peer else ""
        table.add_row(head.format(letters[name == "flops"]), *values, shown, limit)
    console.print(table)
    for side, figures in sides.items():
        for name in ("error", "verdict", "formula"):
            if figures.get(name):
                console.print(f"{side}: {figures[name]}", markup=False)
        for name in ("largest", "advice", "collectives"):
            for line in (
                figures.get(name, ()) if row.has_peer is False or name != "collectives" else ()
            ):
                console.print(f"    {line}", markup=False)
    if row.model == "gpt-16b" and "flops" in sides["ours"]:
        console.print(_utilisation(row, sides["ours"]), markup=False)


def _utilisation(row: Row, figures: dict[str, Any]) -> str:
    """The utilisation as it is usually published: 6 N T without recompute, over the estimated time
    at v4's peak."""
    peak, clock = 275e12, 1.05e9
    tokens = row.batch * row.sequence
    useful = 6 * figures["parameters"] * tokens / row.num_devices
    seconds = figures["cycles"] / clock
    return (
        f"utilisation = 6 x {figures['parameters']:,} x {tokens:,} tokens / {row.num_devices} "
        f"chips / ({figures['cycles']:,} cycles / {clock / 1e9:.2f} GHz) / {peak / 1e12:.0f} "
        f"Tflop/s = {useful / seconds / peak:.1%} (published for PyTorch/XLA FSDP on v4-64: 39 %)"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [row.name for row in ROWS]
    parser.add_argument(
        "--rows", nargs="*", choices=names, default=names, metavar="ROW", help=", ".join(names)
    )
    parser.add_argument("--layers", type=int, help="so many layers instead of the model's own")
    parser.add_argument("--side", choices=("ours", "jax"), help="only this one")
    parser.add_argument("--timeout", type=float, default=1800, help="seconds for one side of a row")
    parser.add_argument("--child", choices=("ours", "jax"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    chosen = [row for row in ROWS if row.name in options.rows]
    if options.child:
        child(options.child, chosen[0], options.layers)
        return
    console = Console(width=140)
    for row in chosen:
        sides = [
            side
            for side in ("ours", "jax")
            if options.side in (None, side) and (side == "ours" or row.has_peer)
        ]
        figures = {}
        for side in sides:
            with console.status(f"{row.name}: {side}"):
                figures[side] = measured(side, row, options.layers, options.timeout)
        if figures:
            show(row, options.layers, figures, console)


if __name__ == "__main__":
    main()
