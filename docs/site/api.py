"""The pages of public names: docs/api.md as tables, and on the site a page for each table.
`python docs/site/api.py`.

mkdocs calls the `on_` functions. On a code host a name of docs/api.md leads to its file, on the
site to its signature, docstring and example.
"""

import inspect
import pkgutil
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "docs/api.md"
ON_A_HOST = (
    "A name links to its file; on the site that `make site` builds, to its signature, docstring "
    "and example."
)


@dataclass(frozen=True)
class Topic:
    """A table of docs/api.md and a page of the site: names by the module that a script takes them
    from."""

    title: str
    page: str
    guides: str  # the docs that show its names at work
    names: dict[str, str]

    @property
    def path(self) -> str:
        return f"api/{self.page}.md"


# In the order in which a user meets them.
TOPICS = (
    Topic(
        "Meshes and shardings",
        "shardings",
        "sharding seeing guide",
        {
            "spmd": (
                "Mesh PartitionSpec P mark_sharding simulate reshard with_sharding_constraint "
                "shard_as clear_sharding use_sharding get_sharding inspect show_sharding residence "
                "Sharding HybridMesh"
            )
        },
    ),
    Topic(
        "Devices and values",
        "values",
        "getting-started sharding",
        {
            "spmd": (
                "device device_ids sync on_sync manual_seed full_tensor local_shards "
                "from_local_shards load_local_shards_"
            )
        },
    ),
    Topic(
        "FSDP",
        "fsdp",
        "fsdp",
        {
            "fsdp": (
                "fully_shard FSDPModule UnshardHandle register_fsdp_forward_method "
                "FullyShardedDataParallel MixedPrecisionPolicy OffloadPolicy CPUOffloadPolicy "
                "transformer_auto_wrap_policy size_based_auto_wrap_policy lambda_auto_wrap_policy "
                "always_wrap_policy or_policy policy_from_config checkpoint_module "
                "accumulate_gradients gradient_accumulation show Shown summon_full_params "
                "plan_units parameter_spec recursive_wrap ZeroRedundancyOptimizer "
                "SpmdFullyShardedDataParallel XlaFullyShardedDataParallel "
                "consolidate_sharded_model_checkpoints consolidate_sharded_state_dicts"
            ),
            "fsdp.state_dict": (
                "get_model_state_dict get_optimizer_state_dict get_state_dict set_model_state_dict "
                "set_optimizer_state_dict set_state_dict"
            ),
        },
    ),
    Topic("Rules", "rules", "rules", {"spmd": "ShardingRules register_units"}),
    Topic(
        "Planning",
        "planning",
        "planning",
        {"spmd": "plan Plan suggest warm load_programs describe_gpu"},
    ),
    Topic(
        "Checks",
        "checks",
        "verify debugging seeing",
        {
            "spmd": (
                "verify Verification check eager nan_guard no_recompile RecompileError allow "
                "CollectiveError no_host_transfer explain get_hlo get_stablehlo AbstractError"
            )
        },
    ),
    Topic(
        "Compiled and exported steps",
        "compile",
        "compiled-step compile export",
        {"spmd": "compile assume_pure PureModule export Exported load_exported LoadedProgram"},
    ),
    Topic(
        "Checkpoints",
        "checkpoints",
        "checkpoints",
        {
            "spmd": "CheckpointManager save_checkpoint load_checkpoint full_state_dict",
            "spmd.checkpoint": (
                "RandomState SaveReport RestorePlan ProcessPlan SaveError DamagedError "
                "prime_optimizer fill_shards load_orbax save_orbax bare_name"
            ),
        },
    ),
    Topic(
        "Data", "data", "data", {"spmd": "DataLoader mark_dynamic", "spmd.data": "PackedDocuments"}
    ),
    Topic(
        "Loops and JAX functions",
        "loops",
        "loops",
        {
            "spmd": (
                "scan scan_layers while_loop cond LayersDifferError BodyError "
                "linear_cross_entropy call_jax register_lowering kernel"
            )
        },
    ),
    Topic(
        "Memory",
        "memory",
        "memory",
        {
            "spmd": "remat checkpoint_name offload_optimizer place_to_host place_to_device",
            "spmd.checkpoint_policies": (
                "save_only_these_names save_any_names_but_these save_and_offload_only_these_names "
                "save_and_offload_only_these_ops save_from_both_policies"
            ),
        },
    ),
    Topic(
        "Per-shard code",
        "manual",
        "shard-map",
        {
            "spmd": "shard_map unreduced reduce_gradient_in",
            "spmd.manual": (
                "all_reduce all_gather reduce_scatter all_to_all collective_permute broadcast "
                "axis_index axis_size"
            ),
        },
    ),
    Topic(
        "Several processes",
        "processes",
        "processes",
        {"spmd": "initialize process_index process_count from_process_local ProcessError"},
    ),
    Topic(
        "Profiler",
        "profiler",
        "profiling",
        {
            "spmd.profiler": (
                "trace start_trace stop_trace Trace StepTrace summary Summary StepMeter "
                "trainer_callback lightning_callback hints Hint start_server stop_server capture"
            )
        },
    ),
    Topic(
        "Settings and metrics",
        "metrics",
        "debugging",
        {
            "spmd": "config",
            "spmd.metrics": (
                "report counter counter_names timer compiles CompileRecord Collective Move "
                "num_compiles num_loaded fallback_ops trivial_dispatch_seconds clear"
            ),
        },
    ),
    Topic(
        "Frameworks and PyTorch/XLA",
        "torch_xla",
        "frameworks from-torch-xla",
        {
            "spmd": "use",
            "spmd.compat": "install uninstall",
            "spmd.torch_xla": (
                "get_global_mesh set_global_mesh get_1d_mesh ShardingSpec ShardingType XLAShard "
                "XLAShardedTensor wrap_as_sharded_tensor wrap_if_sharded unwrap_sharded_tensor "
                "mark_sharding_with_gradients MarkShardingFunction annotate_custom_sharding "
                "enable_manual_sharding disable_manual_sharding construct_v1_sharding_str "
                "visualize_sharding visualize_tensor_sharding mark_step add_step_closure "
                "device_attributes DeviceAttributes optimization_barrier_ "
                "apply_backward_optimization_barrier apply_xla_patch_to_nn_linear EinsumLinear "
                "exported_program_to_stablehlo save_as_stablehlo save_torch_model_as_stablehlo "
                "StableHLOExportOptions StableHLOGraphModule stablehlo_custom_call"
            ),
        },
    ),
    Topic(
        "DTensor",
        "dtensor",
        "from-dtensor",
        {
            "spmd.dtensor": (
                "init_device_mesh DeviceMesh distribute_tensor DTensor distribute_module "
                "parallelize_module placements_of empty full ones rand randn zeros loss_parallel "
                "Shard Replicate Partial Placement ColwiseParallel RowwiseParallel "
                "SequenceParallel PrepareModuleInput PrepareModuleOutput PrepareModuleInputOutput "
                "ParallelStyle"
            )
        },
    ),
)
# Methods that a user calls, of classes that have others, too.
METHODS = {"spmd.Sharding": ("mesh_axes", "partition_spec", "shard_shape", "text")}


@dataclass(frozen=True)
class Name:
    """A public name."""

    module: str
    name: str

    @property
    def full(self) -> str:
        return f"{self.module}.{self.name}"

    @property
    def value(self) -> Any:
        return getattr(pkgutil.resolve_name(self.module), self.name)

    @property
    def home(self) -> str:
        """The module of its code."""
        return str(getattr(self.value, "__module__", None) or type(self.value).__module__)

    @property
    def is_of_torch(self) -> bool:
        return self.home.startswith("torch.")

    @property
    def is_error(self) -> bool:
        return inspect.isclass(self.value) and issubclass(self.value, BaseException)

    @property
    def is_in_the_code(self) -> bool:
        """False for a function that the code makes of a template, as it does `spmd.dtensor.empty`
        and its like."""
        function = inspect.unwrap(self.value) if callable(self.value) else self.value
        return not inspect.isfunction(function) or "<locals>" not in function.__code__.co_qualname

    @property
    def identifier(self) -> str:
        """Its path for mkdocstrings, which reads the code: `fsdp.fully_shard` is a module there,
        too."""
        if not callable(self.value):  # a value has its class's docstring
            return f"{self.home}.{type(self.value).__qualname__}"
        return f"{self.home}.{self.name}" if self.full == self.home else self.full

    @property
    def file(self) -> str:
        """The file of its code, from the root."""
        return Path(str(sys.modules[self.home].__file__)).relative_to(ROOT).as_posix()

    def line(self) -> str:
        """The first sentence of its docstring."""
        text = " ".join((inspect.getdoc(self.value) or "").split("\n\n")[0].split())
        return re.split(r"(?<=[a-z)`\"][.:]) (?=[A-Z`])", text)[0].rstrip(":").removesuffix(".")


def names(topic: Topic) -> Iterator[Name]:
    """The names of a topic, in its order."""
    for module, listed in topic.names.items():
        for name in listed.split():
            yield Name(module, name)


def links(topic: Topic, to_docs: str = "") -> str:
    """The pages that show its names at work."""
    titles = {
        page: (ROOT / f"docs/{page}.md").read_text().partition("\n")[0][2:]
        for page in topic.guides.split()
    }
    return ", ".join(f"[{title}]({to_docs}{page}.md)" for page, title in titles.items())


def tables() -> str:
    """The text of docs/api.md."""
    count = sum(1 for topic in TOPICS for _ in names(topic))
    lines = [
        "# Public names",
        "",
        f"All {count} public names by topic, each with the first sentence of its docstring.",
        ON_A_HOST,
    ]
    for topic in TOPICS:
        lines += [
            "",
            f"## {topic.title}",
            "",
            f"See {links(topic)}.",
            "",
            "| name | meaning |",
            "|---|---|",
        ]
        for name in names(topic):
            if name.is_of_torch:
                lines.append(f"| `{name.full}` | `{name.home}.{name.name}`, torch's own |")
            else:
                line = (
                    "Short for `spmd.PartitionSpec`"
                    if name.full == "spmd.P"
                    else name.line().replace("|", r"\|")
                )
                lines.append(f"| [`{name.full}`](../{name.file}) | {line} |")
    return "\n".join([*lines, ""])


def flags() -> Iterator[str]:
    """The table of `spmd.config`."""
    from spmd.core.base.config import FLAGS

    yield from ("| flag | default | meaning |", "|---|---|---|")
    for flag in FLAGS:
        words = flag.help.replace("|", r"\|")
        yield f"| `{flag.name}` | `{flag.default!r}` | {words} |"


def entry(name: Name) -> Iterator[str]:
    """A name's part of a page."""
    if name.is_of_torch:
        yield f"## {name.full}\n\n`{name.home}.{name.name}`, torch's own.\n"
    elif not name.is_in_the_code:
        yield f"## {name.full} {{#{name.full}}}\n"
        yield f"```python\n{name.name}{inspect.signature(name.value)}\n```\n\n{name.line()}.\n"
    else:
        yield (
            f"::: {name.identifier}\n    options:\n      heading: {name.full}\n      toc_label: "
            f"{name.name}"
        )
        if name.full in METHODS or name.is_error:
            yield f"      members: [{', '.join(METHODS.get(name.full, ()))}]"
        yield ""
    if name.full == "spmd.config":
        yield from (*flags(), "")


def page(topic: Topic) -> str:
    """The text of a topic's page, which mkdocstrings fills in."""
    # in a search, names of ours come first
    boost = 1 if topic.page in ("torch_xla", "dtensor") else 2
    lines = [f"---\nsearch: {{boost: {boost}}}\n---\n# API: {topic.title}\n"]
    lines += [f"In use: {links(topic, '../')}. [All public names](../api.md)\n"]
    return "\n".join([*lines, *(line for name in names(topic) for line in entry(name))])


def on_config(config: Any) -> None:
    """Adds the pages to the navigation, after docs/api.md."""
    for part in config.nav:
        for pages in part.values():
            if "api.md" in pages:
                index = pages.index("api.md") + 1
                pages[index:index] = [{topic.title: topic.path} for topic in TOPICS]


def on_files(files: Any, config: Any) -> None:
    """Adds the pages themselves."""
    from mkdocs.structure.files import File

    sys.path.insert(0, str(ROOT))
    for topic in TOPICS:
        files.append(File.generated(config, topic.path, content=page(topic)))


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Has the names of docs/api.md lead to their places on the pages."""
    if page.file.src_uri != "api.md":
        return markdown
    paths = {
        name.full: f"{topic.path}#{name.identifier}" for topic in TOPICS for name in names(topic)
    }
    markdown = markdown.replace(ON_A_HOST, "A name links to its signature, docstring and example.")
    return re.sub(
        r"\[`([\w.]+)`\]\(\.\./\S+?\)", lambda found: f"[`{found[1]}`]({paths[found[1]]})", markdown
    )


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    FILE.write_text(tables())
    sys.exit(0)
