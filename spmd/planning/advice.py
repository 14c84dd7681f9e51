"""What would make a step that does not fit smaller, by what takes most of it."""

import dataclasses

from .report import Plan


def advice(plan: Plan) -> Plan:
    """The plan with its advice; one that fits needs none."""
    if plan.fits:
        return plan
    said = []
    state = plan.state + plan.inputs
    if plan.temporaries >= state:
        said += [
            "activation checkpointing of each layer (torch.utils.checkpoint), which keeps its input alone",
            "a smaller batch for each device, or a mesh axis that splits the sequence or the features, too",
        ]
    if state > plan.temporaries or (plan.memory is not None and 2 * state > plan.memory):
        said.append(
            f"more devices on the axis that splits parameters: state takes {state / 2**30:,.2f} GiB of each, "
            f"{state * plan.num_devices / 2**30:,.2f} GiB in all"
        )
    if plan.num_devices == 1:
        said.append("a mesh of more devices, and fsdp.FullyShardedDataParallel over it")
    said.append("bfloat16 compute (torch.autocast), which halves what is kept between forward and backward")
    return dataclasses.replace(plan, advice=tuple(said))
