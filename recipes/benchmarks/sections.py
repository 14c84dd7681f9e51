"""The sections of docs/benchmarks.md: what runs for each, and the code that its figures are of."""

from collections.abc import Mapping
from dataclasses import dataclass, field

_LIBRARY = ("spmd/core", "spmd/adaptive", "spmd/loops", "spmd/parallel", "spmd/steps", "fsdp")
_PLANNED = (
    *_LIBRARY,
    *(
        f"spmd/tools/planning/{name}.py"
        for name in ("planner", "figures", "step_time", "clock", "tpu_clock", "gpu_clock")
    ),
    "spmd/tools/hlo",
)
_ATTENTION = ("spmd/ops/attention.py", "spmd/ops/kernels")
_BY_HAND = {  # what a command's script runs as JAX by hand, and what reads its figures
    "step": ("jax_gpt", "layouts"),
    "step_table": ("jax_gpt", "layouts", "step"),
    "step_plans": ("jax_gpt", "layouts", "step", "scale"),
    "scale": ("jax_llama", "jax_olmo"),
    "tensor_parallel": ("sides", "scale"),
    "muon": ("sides", "scale"),
    "products": ("sides", "scale"),
    "mamba": ("jax_mamba", "sides", "scale"),
    "sequences": ("jax_sequences", "jax_llama", "sides", "scale"),
    "masked_attention": ("sides", "scale"),
    "experts": ("jax_experts", "jax_llama", "sides", "scale"),
    "generate": ("jax_decode",),
    "start": ("jax_gpt",),
    "race": ("race_sides", "race_jax", "jax_gpt", "jax_llama", "jax_decode"),
}
_BY_LIBTPU = {"TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}  # it looks for no TPU
# The options that our programs of FSDP get on the CPU.
_MEMORY_FIRST = (
    "xla_cpu_scheduler_type=CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED "
    "xla_disable_hlo_passes=cpu-all-reduce-combiner,cse_barrier_expander"
)
_OF_A_PLAN = (
    "arguments GiB",
    "temporaries GiB",
    "temporaries in memory GiB",
    "peak GiB",
    "collectives",
    "moved GiB",
    "cycles M",
    "operations T",
    "step ms",
    "of which waiting for collectives ms",
    "compile s",
)


@dataclass(frozen=True)
class Section:
    """Commands, as modules of `recipes.benchmarks` with their arguments.

    code: paths, which make the section old where their code changes.
    rows: if given, the tables of a run become one, a row each, whose columns are these rows of
    them.
    lines: beginnings of printed lines that the page shows.
    charted: columns that are drawn as bars, a group for each row.
    settings: of the environment. platform: the devices that it needs. needs_idle: it times the
    machine, on which nothing else may run; the figures of other sections are the compiler's (but
    for the seconds of compiling). is_planned: its figures are plans of devices that are not here;
    nothing ran.
    """

    commands: tuple[str, ...]
    code: tuple[str, ...]
    rows: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    charted: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    platform: str = "cpu"
    needs_idle: bool = False
    is_planned: bool = False


def _section(*commands: str, code: tuple[str, ...] = _LIBRARY, **options: object) -> Section:
    names = dict.fromkeys(command.split()[0] for command in commands)
    names |= dict.fromkeys(part for name in names for part in _BY_HAND.get(name, ()))
    scripts = (f"recipes/benchmarks/{name}.py" for name in names)
    return Section(commands, (*code, *scripts), **options)  # type: ignore[arg-type]


SECTIONS = {
    "step": _section(
        "step --pairs 16 --torch",
        # XLA's defaults: ours are for programs that free weights
        'step --pairs 16 --jax-options ""',
        lines=("torch-spmd / ",),
        needs_idle=True,
    ),
    "layouts": _section(
        'step_table --layers 12 --pairs 6 --sides lazy spmd.compile "JAX by hand" "torch eager, '
        'CPU"',
        charted=("lazy", "spmd.compile", "torch eager, CPU"),
        needs_idle=True,
    ),
    "layouts-tpu": _section(
        "step_plans",
        settings=_BY_LIBTPU,
        charted=("M cycles", "peak MiB", "moved MiB"),
        code=_PLANNED,
        is_planned=True,
    ),
    "large": _section(
        "scale --rows 1b 1b-kept 8b 8b-kept 70b 70b-2048 32b olmo2-32b",
        rows=_OF_A_PLAN,
        code=_PLANNED,
        is_planned=True,
    ),
    "tensor_parallel": _section(
        "tensor_parallel --rows mlp mlp-shardy",
        rows=_OF_A_PLAN,
        code=_PLANNED,
        settings=_BY_LIBTPU,
        is_planned=True,
    ),
    "stages": _section("stages", settings=_BY_LIBTPU, code=_PLANNED, is_planned=True),
    "muon": _section(
        "muon --rows toy unequal",
        rows=("temporaries MiB", "collectives", "moved MiB", "operations G"),
    ),
    "products": _section(
        "products", rows=_OF_A_PLAN, code=_PLANNED, settings=_BY_LIBTPU, is_planned=True
    ),
    "gathers": _section(
        "narrow_gathers --target v5p:2x2x2", settings=_BY_LIBTPU, code=_PLANNED, is_planned=True
    ),
    "mamba": _section(
        "mamba --rows mamba2",
        code=_PLANNED,
        settings=_BY_LIBTPU,
        is_planned=True,
    ),
    "memory": _section(
        "memory --target v5e:2x4", settings=_BY_LIBTPU, code=_PLANNED, is_planned=True
    ),
    "layers": _section("scanned_layers --model gpt --layers 4 64 --modes auto", needs_idle=True),
    "host": _section(
        "host", "host --devices 8", "host_cost --parts ops", "compiled_step", needs_idle=True
    ),
    "sdxl": _section("sdxl", needs_idle=True),
    "sdxl-tpu": _section(
        "sdxl --targets v5e:1x1", settings=_BY_LIBTPU, code=_PLANNED, is_planned=True
    ),
    "first-step": _section("first_step", needs_idle=True),
    "start": _section("start", lines=("warm, ",), needs_idle=True),
    "generate": _section("generate --rounds 9", "generate --rounds 9 --apart", needs_idle=True),
    "sequences": _section(
        "sequences --rows 2-layers 2-layers-float32 8b --sides ours jax",
        rows=_OF_A_PLAN,
        code=_PLANNED,
        is_planned=True,
    ),
    "masked_attention": _section(
        "masked_attention --rows causal window documents document_ids data_ids data_positions "
        "soft_cap sinks wide latent",
        rows=_OF_A_PLAN,
        code=(*_PLANNED, *_ATTENTION),
        settings=_BY_LIBTPU,
        is_planned=True,
    ),
    "masked_h100": _section(
        "masked_attention --rows h100_causal h100_window h100_documents h100_data_positions "
        "h100_sinks h100_wide h100_latent",
        rows=_OF_A_PLAN,
        code=(*_PLANNED, *_ATTENTION),
        platform="cpu, and the extra `gpu-plan`",
        is_planned=True,
    ),
    "masked_counts": _section(
        "masked_attention --rows counted_causal counted_window counted_soft_cap counted_slopes",
        rows=("temporaries MiB", "operations G"),
        code=(*_PLANNED, *_ATTENTION),
    ),
    "experts": _section(
        "experts --rows mixtral deepseek-layer --sides ours jax",
        rows=_OF_A_PLAN,
        code=_PLANNED,
        is_planned=True,
    ),
    "long": _section("long", settings=_BY_LIBTPU, code=_PLANNED, is_planned=True),
    "convolutions": _section("convolutions --steps 5", needs_idle=True),
    "loading": _section("loading --pairs 7", lines=("0 programs",), needs_idle=True),
    "saving": _section("saving --steps 2", lines=("a step: ", "a save: "), needs_idle=True),
    "backward": _section("backward", lines=("Ours has more", "jax.vjp has more")),
    # PyTorch/XLA has an environment of its own: `recipes/benchmarks/replaced.py` says how to make
    # it.
    "replaced": _section(
        f'replaced --xla-options "{_MEMORY_FIRST}"',
        lines=("PyTorch/XLA",),
        platform="cpu, and an environment of PyTorch/XLA",
        needs_idle=True,
    ),
    "gpu": _section("race", platform="gpu", lines=("gpt", "llama", "decode")),
}
