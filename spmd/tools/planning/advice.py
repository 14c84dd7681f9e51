"""Advice on the memory of a step that does not fit, by its largest part and the measures it takes already."""

import dataclasses
from collections.abc import Sequence

import torch

from ...core.extend import Graph
from .report import Plan


def advice(plan: Plan, programs: Sequence[Graph]) -> Plan:
    """Adds advice to the plan of these programs, if the plan does not fit."""
    if plan.fits:
        return plan
    said = []
    nodes = [node for graph in programs for node in graph.nodes]
    state = plan.state + plan.inputs
    if plan.temporaries >= state:
        if all(node.op.name != "spmd.loops.recompute" for node in nodes):
            said.append("activation checkpointing of each layer (torch.utils.checkpoint), which keeps only its input")
        said.append("a smaller batch per device, or a mesh axis that also splits the sequence or the features")
    if state > plan.temporaries or (plan.memory is not None and 2 * state > plan.memory):
        said.append(
            f"more devices on the axis that shards parameters: state takes {state / 2**30:,.2f} GiB of each device, "
            f"{state * plan.num_devices / 2**30:,.2f} GiB in all"
        )
    if plan.num_devices == 1:
        said.append("a mesh of more devices, and fsdp.FullyShardedDataParallel over it")
    if not any(torch.bfloat16 in {meta.dtype for meta in node.op.metas} for node in nodes if node.op.name in _PRODUCTS):
        said.append("bfloat16 compute (torch.autocast), which halves the tensors kept between forward and backward")
    return dataclasses.replace(plan, advice=tuple(said))


_PRODUCTS = frozenset({"aten.linear", "aten.mm", "aten.bmm", "aten.addmm", "aten.matmul", "aten.convolution"})
