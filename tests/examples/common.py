"""The examples' shared parts: the flags of their command lines, and a model sharded over a mesh
with `--fsdp`."""

import argparse

from torch import nn


def flags(description: str | None, steps: int) -> argparse.ArgumentParser:
    """A parser of the flags that every example has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument(
        "--fsdp", action="store_true", help="shard the parameters and the batch over all devices"
    )
    return parser


def placed(model: nn.Module, args: argparse.Namespace) -> nn.Module:
    """The model on the device; with `--fsdp` one unit, whose parameters are sharded."""
    model = model.to(args.device)
    if args.fsdp:
        import fsdp
        import spmd

        fsdp.fully_shard(
            model, mesh=spmd.Mesh(spmd.device_ids(), (len(spmd.device_ids()),), ("fsdp",))
        )
    return model
