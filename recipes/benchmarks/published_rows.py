"""Steps whose speed others have published, as they were run: data, and the reasons of those that
are left out.

Facts of the public repositories AI-Hypercomputer/maxtext and tpu-recipes, pytorch/torchtitan and
huggingface/nanotron, read until 2026-11-26. Models and plans of these rows are made elsewhere.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

# -- Options of XLA, in the groups in which MaxText names them.

_FUSED = {
    "xla_tpu_enable_async_collective_fusion": True,
    "xla_tpu_enable_async_collective_fusion_fuse_all_gather": True,
    "xla_tpu_enable_async_collective_fusion_multiple_steps": True,
    "xla_tpu_overlap_compute_collective_tc": True,
    "xla_enable_async_all_gather": True,
}
_LAYOUT = {
    "xla_tpu_use_minor_sharding_for_major_trivial_input": True,
    "xla_tpu_relayout_group_size_threshold_for_reduce_scatter": 1,
    "xla_tpu_assign_all_reduce_scatter_layout": True,
}
_DATA_PARALLEL = {
    "xla_tpu_enable_data_parallel_all_reduce_opt": True,
    "xla_tpu_data_parallel_opt_different_sized_ops": True,
}
_OFFLOADED = {
    "xla_tpu_enable_all_experimental_scheduler_features": True,
    "xla_tpu_enable_scheduler_memory_pressure_tracking": True,
    "xla_tpu_host_transfer_overlap_limit": 24,
    "xla_tpu_aggressive_opt_barrier_removal": "ENABLED",
    "xla_lhs_prioritize_async_depth_over_stall": "ENABLED",
    "xla_tpu_enable_ag_backward_pipelining": True,
    "xla_should_allow_loop_variant_parameter_in_chain": "ENABLED",
    "xla_should_add_loop_invariant_op_in_chain": "ENABLED",
    "xla_max_concurrent_host_send_recv": 100,
    "xla_tpu_scheduler_percent_shared_memory_limit": 100,
    "xla_latency_hiding_scheduler_rerun": 2,
}
_SPARSE_CORE = {
    "xla_sc_disable_megacore_partitioning": True,
    "xla_tpu_use_tc_device_shape_on_sc": True,
    "xla_tpu_enable_sparse_core_collective_offload_all_reduce": True,
}
_SPARSE_CORE_REDUCES = {
    **_SPARSE_CORE,
    "xla_tpu_enable_all_reduce_offload_tracing": True,
    "xla_sc_enable_instruction_fusion": False,
    "xla_sc_disjoint_spmem": False,
    "2a886c8_chip_config_name": "megachip_tccontrol",
}
_SPARSE_CORE_ALL = {
    **_SPARSE_CORE,
    "xla_tpu_enable_async_collective_fusion_fuse_all_gather": False,
    "xla_tpu_enable_sparse_core_collective_offload_all_gather": True,
    "xla_tpu_enable_sparse_core_collective_offload_reduce_scatter": True,
    "xla_tpu_enable_all_gather_offload_tracing": True,
}
# The library's defaults that the compilers of these rows did not have.
_WITHOUT_SPARSE_CORE = {
    **{
        f"xla_tpu_enable_sparse_core_collective_offload_{name}": False
        for name in (
            "all_gather",
            "2d_all_gather",
            "3d_all_gather",
            "reduce_scatter",
            "nd_reduce_scatter",
            "all_reduce",
        )
    },
    "xla_tpu_enable_sparse_core_reduce_scatter_v2": False,
    "xla_tpu_prefer_async_allgather_to_allreduce": False,
}
_DENSE_V6E = {"xla_tpu_scoped_vmem_limit_kib": 98_304, **_WITHOUT_SPARSE_CORE, **_FUSED}
_EXPERTS_V6E = {
    "xla_tpu_scoped_vmem_limit_kib": 81_920,
    **_WITHOUT_SPARSE_CORE,
    **_FUSED,
    **_DATA_PARALLEL,
}
_LLAMA_V6E = {**_DENSE_V6E, **_LAYOUT, **_DATA_PARALLEL, **_OFFLOADED}
_V5P = {
    **_WITHOUT_SPARSE_CORE,
    **_DATA_PARALLEL,
    "xla_tpu_megacore_fusion_allow_ags": False,
    "xla_enable_async_collective_permute": True,
    "xla_tpu_enable_ag_backward_pipelining": True,
}
_DEEPSEEK_V5P = {
    "xla_tpu_scoped_vmem_limit_kib": 81_920,
    **_SPARSE_CORE_ALL,
    **_SPARSE_CORE_REDUCES,
    **_OFFLOADED,
    **_LAYOUT,
    **_DATA_PARALLEL,
    "xla_tpu_enable_async_collective_fusion_fuse_all_reduce": False,
    "xla_tpu_enable_async_collective_fusion_fuse_reduce_scatter": False,
    "xla_tpu_enable_reduce_scatter_offload_tracing": True,
    "xla_tpu_megacore_fusion_allow_ags": False,
    "xla_enable_async_collective_permute": True,
}
# Without xla_tpu_enable_sparse_core_collective_offload_all_reduce, which these rows set: with it
# libtpu 0.0.42 compiles four layers for TPU7x in more than 25 minutes, without it in 92 to 160 s.
_TPU7X = {
    "xla_tpu_bf16_emission_mode": "NATIVE_EMISSION",
    "xla_tpu_use_single_sparse_core_for_all_gather_offload": True,
}
_LARGE_TPU7X = {
    **_TPU7X,
    **_SPARSE_CORE_ALL,
    "xla_tpu_scoped_vmem_limit_kib": 65_536,
    "xla_tpu_dvfs_p_state": 3,
    "xla_tpu_enable_sparse_core_reduce_scatter_v2": True,
    "xla_tpu_enable_sparse_core_collective_offload_2d_all_gather": True,
    "xla_tpu_enable_sparse_core_collective_offload_3d_all_gather": True,
    "xla_enable_async_all_gather": True,
    "xla_tpu_prefer_async_allgather_to_allreduce": True,
    "xla_tpu_enable_sparse_core_offload_queuing_in_lhs": True,
    "xla_tpu_enable_offloading_copy_to_sparsecore": False,
    "xla_tpu_enable_sparse_core_collective_offload_all_reduce": False,
}
_LLAMA_405B_TPU7X = {
    **_LARGE_TPU7X,
    "xla_tpu_enable_ici_ar_pipelining": True,
    "xla_tpu_enable_sparse_core_collective_offload_nd_reduce_scatter": False,
}
_DEEPSEEK_TPU7X = {
    **_LARGE_TPU7X,
    "xla_tpu_enable_concurrent_sparse_core_offloading": True,
    "xla_tpu_aggressive_opt_barrier_removal": True,
    "xla_tpu_enable_offloading_gather_to_sparsecore": True,
    "xla_tpu_sparse_core_all_gather_latency_multiplier": 1,
    "xla_tpu_sparse_core_reduce_scatter_latency_multiplier": 3,
    "xla_tpu_enable_sparse_core_collective_aggregator": True,
    "xla_tpu_enable_latency_hiding_layer_scheduler": False,
    "xla_tpu_rerun_latency_hiding_scheduler_post_sc_assignment": True,
    "xla_tpu_scheduler_percent_shared_memory_limit": 150,
    "xla_tpu_enable_layer_scheduler_for_dependent_collectives": True,
    "xla_tpu_pcie_bandwidth_multiplier": 0.03,
    "xla_tpu_enable_multi_compute_overlap_in_layer_scheduler": False,
    "xla_tpu_enable_sparse_core_collective_offload_nd_reduce_scatter": True,
    "xla_tpu_enable_3d_reduce_scatter_decomposer": False,
}
_QWEN_TPU7X = {
    "xla_tpu_scoped_vmem_limit_kib": 61_440,
    "xla_tpu_dvfs_p_state": 3,
    "xla_tpu_enable_sparse_core_collective_offload_all_gather": True,
    "xla_tpu_use_single_sparse_core_for_all_gather_offload": True,
    **_OFFLOADED,
}

# -- Rows.

# The H100 of torchtitan's page of 2024-12: 96 GB of HBM2e at 2.4 TB/s, and 500 W instead of 700. It
# says that the peak is between those of the cards SXM and NVL (989 and 835 Tflop/s) and not known:
# the middle is taken.
H100_HBM2E = "h100_hbm2e"
H100_HBM2E_PEAK, H100_HBM2E_BANDWIDTH, H100_HBM2E_MEMORY = 912e12, 2.4e12, 96 * 10**9

INPUT, QUERY, KEY, VALUE, CONTEXT, OUT, MLP_OUT = (
    "decoder_layer_input",
    "query_proj",
    "key_proj",
    "value_proj",
    "context",
    "out_proj",
    "mlpwo",
)
_QKV = (QUERY, KEY, VALUE)


@dataclass(frozen=True)
class Recompute:
    """The values of a layer that backward does not compute again: those kept on the device, and
    those on the host.

    layers: "all" layers are checkpointed, every second ("alternate"), or "none". ops: in each layer
    attention and every second product are kept, as torchtitan does "by op". A layer's input is kept
    on the device where it is not offloaded.
    """

    kept: tuple[str, ...] = ()
    offloaded: tuple[str, ...] = ()
    layers: str = "all"
    ops: bool = False

    def __str__(self) -> str:
        if self.layers != "all":
            return {"none": "nothing recomputed", "alternate": "every second layer"}[self.layers]
        if self.ops:
            return "keeps attention, every second product"
        parts = [f"keeps {', '.join(self.kept)}"] * bool(self.kept)
        parts += [f"offloads {', '.join(self.offloaded)}"] * bool(self.offloaded)
        return "; ".join(parts) or "all recomputed"


@dataclass(frozen=True)
class Row:
    """A published step.

    batch: sequences a device, or of the devices that share them. seconds: of a step, where a log
    has it; else rate: tokens per second and chip. tensor: the devices that heads are sharded over;
    context: that sequences are sharded over, with weights over all; expert: that experts are
    sharded over, with the batch over all. weights, moment: dtypes of the weights and of the
    optimizer's first moment ("": that of the weights). capacity: the capacity factor of experts
    that drop tokens; 0: none does. memory: the published peak of a device in bytes. steps: False
    for one of many micro-batches, which adds to the gradients.
    logits: "chunks", as the library computes large ones by itself, or "whole".
    unknown: what the source does not say; such a row is shown, and in neither half.
    """

    name: str
    model: str
    target: str
    devices: int
    batch: int
    sequence: int
    source: str
    rate: float = 0.0
    seconds: float = 0.0
    recompute: Recompute = Recompute()
    options: Mapping[str, bool | int | float | str] = field(default_factory=dict)
    tensor: int = 1
    context: int = 1
    expert: int = 1
    weights: str = "float32"
    moment: str = ""
    capacity: float = 0.0
    memory: float = 0.0
    steps: bool = True
    logits: str = "chunks"
    unknown: str = ""

    @property
    def is_gpu(self) -> bool:
        return "100" in self.target

    @property
    def published(self) -> float:
        """The seconds of a step."""
        devices_of_chip = 2 if self.target.startswith("tpu7x") else 1
        return (
            self.seconds or self.batch * self.sequence * devices_of_chip / self.context / self.rate
        )


_MAXTEXT = "MaxText, Optimized models tiering"
_TRILLIUM, _V5P_RECIPES = "tpu-recipes, training/trillium", "tpu-recipes, training/v5p"
_IRONWOOD = "tpu-recipes, training/ironwood"
_TITAN, _NANOTRON, _TRL = "torchtitan", "nanotron, benchmark logs", "huggingface/trl#6846"
_LLAMA_V6E_POLICY = Recompute(offloaded=(INPUT, *_QKV))
_MIB, _GIB = 2**20, 2**30

ROWS = (
    Row(
        "llama3.1-8b-v6e-256",
        "llama3-8b",
        "v6e:16x16",
        256,
        4,
        8192,
        _TRILLIUM,
        seconds=4.546,
        recompute=Recompute(offloaded=(INPUT, *_QKV, OUT)),
        options={**_LLAMA_V6E, **_SPARSE_CORE_REDUCES},
    ),
    Row(
        "llama3.1-70b-v6e-256",
        "llama3-70b",
        "v6e:16x16",
        256,
        5,
        8192,
        _TRILLIUM,
        seconds=42.656,
        recompute=_LLAMA_V6E_POLICY,
        options=_LLAMA_V6E,
    ),
    Row(
        "llama3.1-70b-v6e-128",
        "llama3-70b",
        "v6e:8x16",
        128,
        4,
        8192,
        _TRILLIUM,
        seconds=34.786,
        recompute=_LLAMA_V6E_POLICY,
        options=_LLAMA_V6E,
    ),
    Row(
        "llama3.1-70b-v6e-64",
        "llama3-70b",
        "v6e:8x8",
        64,
        2,
        8192,
        _TRILLIUM,
        seconds=18.688,
        recompute=_LLAMA_V6E_POLICY,
        options=_LLAMA_V6E,
    ),
    Row(
        "llama3.1-70b-v6e-32",
        "llama3-70b",
        "v6e:4x8",
        32,
        2,
        8192,
        _TRILLIUM,
        seconds=17.790,
        recompute=_LLAMA_V6E_POLICY,
        options=_LLAMA_V6E,
        weights="bfloat16",
    ),
    Row(
        "llama2-70b-v6e-256",
        "llama2-70b",
        "v6e:16x16",
        256,
        2,
        4096,
        _TRILLIUM,
        seconds=9.052,
        recompute=Recompute(offloaded=_QKV),
        options={**_DENSE_V6E, **_SPARSE_CORE_REDUCES},
    ),
    Row(
        "llama3.1-405b-v6e-512",
        "llama3-405b",
        "2xv6e:16x16",
        512,
        1,
        8192,
        _TRILLIUM,
        seconds=54.803,
        recompute=Recompute(offloaded=(INPUT,)),
        options={**_DENSE_V6E, **_OFFLOADED},
    ),
    Row(
        "mixtral-8x7b-v6e-256",
        "mixtral-8x7b",
        "v6e:16x16",
        256,
        12,
        4096,
        _MAXTEXT,
        rate=3899,
        recompute=Recompute(offloaded=(INPUT, *_QKV, OUT)),
        options=_EXPERTS_V6E,
        capacity=1.25,
    ),
    Row(
        "mixtral-8x22b-v6e-256",
        "mixtral-8x22b",
        "v6e:16x16",
        256,
        8,
        4096,
        _MAXTEXT,
        rate=1326,
        expert=4,
        recompute=Recompute(offloaded=(INPUT, *_QKV, OUT)),
        options=_EXPERTS_V6E,
        capacity=1.25,
        weights="bfloat16",
    ),
    Row(
        "llama2-70b-v5p-512",
        "llama2-70b",
        "v5p:8x8x8",
        512,
        4,
        4096,
        _MAXTEXT,
        rate=692,
        recompute=Recompute(kept=(*_QKV, OUT, MLP_OUT)),
        options={**_V5P, **_FUSED},
    ),
    Row(
        "mixtral-8x7b-v5p-128",
        "mixtral-8x7b",
        "v5p:4x4x8",
        128,
        36,
        4096,
        _MAXTEXT,
        rate=2909,
        options={**_V5P, **_FUSED, "xla_tpu_scoped_vmem_limit_kib": 81_920},
        weights="bfloat16",
    ),
    Row(
        "llama3.1-405b-v5p-512",
        "llama3-405b",
        "v5p:8x8x8",
        512,
        2,
        8192,
        _V5P_RECIPES,
        seconds=131.474,
        recompute=Recompute(offloaded=(CONTEXT, MLP_OUT)),
        options={**_DENSE_V6E, **_OFFLOADED},
    ),
    Row(
        "deepseek-v3-v5p-512",
        "deepseek-v3",
        "v5p:8x8x8",
        512,
        6,
        8192,
        _V5P_RECIPES,
        seconds=90.668,
        recompute=Recompute(offloaded=(INPUT, OUT)),
        options=_DEEPSEEK_V5P,
    ),
    Row(
        "llama3.1-70b-tpu7x-64",
        "llama3-70b",
        "tpu7x:4x4x4",
        128,
        2,
        8192,
        _IRONWOOD,
        seconds=12.20,
        moment="bfloat16",
        recompute=Recompute(kept=(CONTEXT, *_QKV)),
        options={**_TPU7X, "xla_tpu_scoped_vmem_limit_kib": 61_440},
    ),
    Row(
        "llama3.1-405b-tpu7x-256",
        "llama3-405b",
        "tpu7x:4x8x8",
        512,
        3,
        8192,
        _IRONWOOD,
        seconds=98.34,
        moment="bfloat16",
        recompute=Recompute(kept=(KEY, VALUE), offloaded=(INPUT, MLP_OUT)),
        options=_LLAMA_405B_TPU7X,
    ),
    Row(
        "deepseek-v3-tpu7x-128",
        "deepseek-v3",
        "tpu7x:4x4x8",
        256,
        8,
        4096,
        _IRONWOOD,
        seconds=27.02,
        moment="bfloat16",
        recompute=Recompute(offloaded=(INPUT,)),
        options=_DEEPSEEK_TPU7X,
    ),
    Row(
        "deepseek-v3-tpu7x-256",
        "deepseek-v3",
        "tpu7x:4x8x8",
        512,
        8,
        4096,
        _IRONWOOD,
        seconds=26.79,
        moment="bfloat16",
        recompute=Recompute(offloaded=(INPUT,)),
        options=_DEEPSEEK_TPU7X,
    ),
    Row(
        "qwen3-235b-tpu7x-256",
        "qwen3-235b",
        "tpu7x:4x8x8",
        512,
        16,
        4096,
        _IRONWOOD,
        seconds=30.87,
        recompute=Recompute(offloaded=(INPUT,)),
        options=_QWEN_TPU7X,
    ),
    Row(
        "llama3-8b-a100-64-layer",
        "llama3-8b",
        "8xa100:8",
        64,
        1,
        8192,
        _TITAN,
        rate=2904,
        recompute=Recompute(layers="alternate"),
        logits="whole",
    ),
    Row(
        "llama3-8b-a100-64-op",
        "llama3-8b",
        "8xa100:8",
        64,
        1,
        8192,
        _TITAN,
        rate=2973,
        recompute=Recompute(ops=True),
        logits="whole",
    ),
    Row(
        "llama3-70b-a100-64",
        "llama3-70b",
        "8xa100:8",
        64,
        1,
        8192,
        _TITAN,
        rate=331,
        logits="whole",
    ),
    Row(
        "llama3.1-8b-h100-8",
        "llama3-8b",
        f"{H100_HBM2E}:8",
        8,
        2,
        8192,
        _TITAN,
        rate=6667,
        recompute=Recompute(ops=True),
        memory=77.0 * _GIB,
        logits="whole",
    ),
    Row(
        "llama-1b-h100-tensor-2",
        "llama3-1b",
        "h100:2",
        2,
        4,
        4096,
        _NANOTRON,
        rate=33_200,
        tensor=2,
        steps=False,
        recompute=Recompute(layers="none"),
        logits="whole",
        memory=43_651 * _MIB,
    ),
    Row(
        "llama-1b-h100-tensor-4",
        "llama3-1b",
        "h100:4",
        4,
        2,
        4096,
        _NANOTRON,
        rate=27_800,
        tensor=4,
        steps=False,
        recompute=Recompute(layers="none"),
        logits="whole",
        memory=25_808 * _MIB,
    ),
    Row(
        "llama-1b-h100-tensor-8",
        "llama3-1b",
        "h100:8",
        8,
        4,
        4096,
        _NANOTRON,
        rate=5_690,
        tensor=8,
        steps=False,
        recompute=Recompute(layers="none"),
        logits="whole",
        memory=60_096 * _MIB,
    ),
    Row(
        "llama3.1-70b-131072-tpu7x-256",
        "llama3.1-70b",
        "tpu7x:4x8x8",
        512,
        1,
        131_072,
        _IRONWOOD,
        rate=963,
        context=8,
        moment="bfloat16",
        recompute=Recompute(offloaded=(INPUT,)),
        options={**_TPU7X, "xla_tpu_scoped_vmem_limit_kib": 61_440},
        unknown=(
            "what backward computes again, and its options: those of the row of 8,192 tokens are "
            "taken"
        ),
    ),
    Row(
        "qwen3-8b-1048576-h100-8",
        "qwen3-8b",
        "h100:8",
        8,
        1,
        1 << 20,
        _TRL,
        seconds=380,
        context=8,
        weights="bfloat16",
        recompute=Recompute(offloaded=(INPUT,)),
        memory=56.2e9,
        unknown="the dtype of its weights and moments, here bfloat16",
    ),
    Row(
        "qwen3-30b-h100-16",
        "qwen3-30b",
        "2xh100:8",
        16,
        1,
        4096,
        "Megatron Bridge, 2026-07",
        rate=10_600,
        expert=16,
        recompute=Recompute(layers="none"),
        weights="bfloat16",
        steps=False,
        unknown=(
            "its tokens a second: 244 TFLOP/s over the 23.1 GFLOP of a token; one of 64 "
            "micro-batches, taken alone"
        ),
    ),
    Row(
        "gpt2-16b-v4-32",
        "gpt2-16b",
        "v4:2x4x4",
        32,
        8,
        1024,
        "PyTorch/XLA 2.0 post",
        seconds=7.333,
        unknown=(
            "batch, length and recomputation; 39 % of the peak is its only figure, taken for 8 x "
            "1,024 a chip"
        ),
    ),
    Row(
        "mixtral-8x7b-xla-v5p-128",
        "mixtral-8x7b",
        "v5p:4x4x8",
        128,
        8,
        4096,
        "gclouduniverse/reproducibility",
        seconds=280.56,
        weights="bfloat16",
        unknown=(
            "a step's time: its log has 10 steps in 2,805.6 s, compiling and loading among them; "
            "Adafactor"
        ),
    ),
)

# Rows that came when the constants were chosen: none is chosen by them.
LATER = {"mixtral-8x22b-v6e-256"}

# Published rows that are not planned, by reason.
LEFT_OUT = {
    "Llama-4 Scout, 128 v5p": "attention in chunks of the sequence, which no kernel here computes",
    "gpt-oss-120B, 64 TPU7x": "attention with sinks and a window, which no kernel here computes",
    "rows of TPU7x in fp8": "no products in fp8 here",
    "Llama 3.1 8B, 70B and 405B in fp8, H100": "no products in fp8 here; the last has a pipeline",
    "Llama 3 70B, 64 H100 (Automodel)": "its length and batch are not known",
    "DeepSeek-V3, 256 H100 (Automodel)": "a pipeline of four stages, which is not here",
}
