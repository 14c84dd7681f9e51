"""What would make a step that does not fit smaller, by what takes most of it and what it does already."""

import dataclasses
from collections.abc import Sequence

import torch

from ..core.ir.graph import Graph
from .report import Plan


def advice(plan: Plan, programs: Sequence[Graph]) -> Plan:
    """The plan of these programs with its advice; one that fits needs none."""
    if plan.fits:
        return plan
    said = []
    state = plan.state + plan.inputs
    if plan.temporaries >= state:
        if not _recomputes(programs):
            said.append("activation checkpointing of each layer (torch.utils.checkpoint), which keeps its input alone")
        said.append("a smaller batch for each device, or a mesh axis that splits the sequence or the features, too")
    if state > plan.temporaries or (plan.memory is not None and 2 * state > plan.memory):
        said.append(
            f"more devices on the axis that splits parameters: state takes {state / 2**30:,.2f} GiB of each, "
            f"{state * plan.num_devices / 2**30:,.2f} GiB in all"
        )
    if plan.num_devices == 1:
        said.append("a mesh of more devices, and fsdp.FullyShardedDataParallel over it")
    if not _computes_in_bfloat16(programs):
        said.append("bfloat16 compute (torch.autocast), which halves what is kept between forward and backward")
    return dataclasses.replace(plan, advice=tuple(said))


def _recomputes(programs: Sequence[Graph]) -> bool:
    return any(node.entry.name == "spmd.recompute" for graph in programs for node in graph.nodes)


def _computes_in_bfloat16(programs: Sequence[Graph]) -> bool:
    """Whether any product of floats is in bfloat16."""
    return any(
        meta.dtype == torch.bfloat16
        for graph in programs
        for node in graph.nodes
        if node.entry.name in _PRODUCTS
        for meta in node.entry.metas
    )


_PRODUCTS = frozenset({"aten.linear", "aten.mm", "aten.bmm", "aten.addmm", "aten.matmul", "aten.convolution"})
