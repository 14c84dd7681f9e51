"""Train torchtitan's own Llama by torchtitan's own configuration: FSDP and tensor parallel on eight
simulated devices.

    pip install '.[torchtitan]'                                    # in a checkout
    python recipes/train_torchtitan.py                             # llama3_debugmodel, bfloat16
                                                                   # over float32
    python recipes/train_torchtitan.py --tensor 2 --sequence 256   # fsdp=4, tensor=2
    python recipes/train_torchtitan.py --attention sdpa --compile  # the step recorded once
    python recipes/train_torchtitan.py --config llama3_8b --target v5p:2x4x4
                                                                   # plan it for a TPU slice

Model, optimizer groups, learning rates, clipping and precision are torchtitan's objects as its
configuration has them; only what places them on devices (its `parallelize`) is this library's.
Attention is torchtitan's `FlexAttention` under its mask of documents, of which a row here is one,
or its `ScaledDotProductAttention`; the text is Python's documentation, as bytes.
"""

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs without being installed, too

import fsdp
import spmd
from recipes import text, training

# The dims that Megatron's tensor parallel shards, by torchtitan's names of its Linears.
RULES = {
    "tok_embeddings.weight": spmd.P("tensor", None),
    "**.{wq,wk,wv,wqkv,w1,w3,w13}.weight": spmd.P("tensor", None),
    "**.{wo,w2}.weight": spmd.P(None, "tensor"),
    "lm_head.weight": spmd.P("tensor", None),
}


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--config", default="llama3_debugmodel", help="a function of torchtitan's config registry"
    )
    parser.add_argument("--devices", type=int, default=8, help="simulated devices (default 8)")
    parser.add_argument(
        "--tensor", type=int, default=1, help="size of the mesh axis tensor; the rest is fsdp"
    )
    parser.add_argument("--steps", type=int, help="default: the configuration's")
    parser.add_argument("--sequence", type=int, default=128, help="bytes of a row (default 128)")
    parser.add_argument(
        "--attention",
        choices=("flex", "sdpa"),
        default="flex",
        help="default: flex, as torchtitan's",
    )
    training.add_compile_flag(parser)
    parser.add_argument(
        "--target", help="plan the step for a TPU slice, v5p:2x4x4; nothing is trained"
    )
    args = parser.parse_args(arguments)
    if args.devices % args.tensor:
        parser.error(f"--devices {args.devices} must be a multiple of --tensor {args.tensor}")
    return args


def configuration(name: str, attention: str) -> Any:
    """Returns torchtitan's configuration of a name, with this attention."""
    try:
        from torchtitan.models.common.attention import FlexAttention, ScaledDotProductAttention
        from torchtitan.models.llama3 import config_registry
    except ModuleNotFoundError as error:
        raise SystemExit(f"{error}; in a checkout: pip install '.[torchtitan]'") from error
    if not hasattr(config_registry, name):
        known = ", ".join(one for one in dir(config_registry) if one.startswith("llama3_"))
        raise SystemExit(f"--config {name} is not in torchtitan's registry; it has {known}")
    config = getattr(config_registry, name)()
    for layer in config.model_spec.model.layers:
        layer.attention.inner_attention = {
            "flex": FlexAttention,
            "sdpa": ScaledDotProductAttention,
        }[attention].Config()
    return config


def parallelize(model: nn.Module, config: Any, mesh: spmd.Mesh) -> nn.Module:
    """Shards the parameters by rules and FSDP; each layer is a unit, in the configuration's
    precision."""
    if "tensor" in mesh.axis_names:
        spmd.ShardingRules(RULES).apply(model, mesh)
    how = config.training
    policy = fsdp.MixedPrecisionPolicy(
        param_dtype=getattr(torch, how.mixed_precision_param),
        reduce_dtype=getattr(torch, how.mixed_precision_reduce),
    )
    for layer in model.layers.values():
        fsdp.fully_shard(layer, mesh=mesh, mp_policy=policy)
    return fsdp.fully_shard(model, mesh=mesh, mp_policy=policy)


def optimizer_of(config: Any, model: nn.Module) -> torch.optim.Optimizer:
    """Returns the optimizer of the configuration's one parameter group."""
    (group,) = config.optimizer.param_groups
    return getattr(torch.optim, group.optimizer_name)(model.parameters(), **group.optimizer_kwargs)


def factor(step: int, *, schedule: Any, steps: int) -> float:
    """The learning rate's factor: a linear warmup, then a plateau and a linear decay of the last
    steps."""
    if step < schedule.warmup_steps:
        return (step + 1) / (schedule.warmup_steps + 1)
    decay = (
        round(steps * schedule.decay_ratio)
        if schedule.decay_ratio is not None
        else steps - schedule.warmup_steps
    )
    return max(schedule.min_lr_factor, min(1.0, (steps - step) / max(1, decay)))


def masks_of(model: Any, tokens: Tensor) -> Any:
    """Returns torchtitan's mask of FlexAttention, for rows of one document each."""
    return model.get_attention_masks(
        torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
    )


def train_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    tokens: Tensor,
    labels: Tensor,
    *,
    clip: float,
    is_flex: bool,
) -> Tensor:
    """Runs a step, written as for one device."""
    logits = model(tokens, attention_masks=masks_of(model, tokens) if is_flex else None)
    loss = nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def main(arguments: list[str] | None = None) -> list[float]:
    """Trains; returns the losses."""
    args = parse(arguments)
    spmd.simulate(args.devices)
    console, config = training.make_console(), configuration(args.config, args.attention)
    shape = {"fsdp": args.devices // args.tensor} | (
        {"tensor": args.tensor} if args.tensor > 1 else {}
    )
    mesh = spmd.Mesh(range(args.devices), tuple(shape.values()), tuple(shape))
    torch.manual_seed(0)
    with torch.device("meta" if args.target else "xla"):
        model = config.model_spec.model.build()
    if not args.target:
        model.init_states()
        # tables of positions, which are no random draws, are computed apart from the first step
        spmd.sync()
    model = parallelize(model, config, mesh)
    optimizer, steps = optimizer_of(config, model), args.steps or config.training.steps
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, partial(factor, schedule=config.lr_scheduler, steps=steps)
    )
    batch = config.training.local_batch_size * (args.devices // args.tensor)

    def put(tokens: Tensor) -> Tensor:
        return spmd.mark_sharding(tokens.to("xla"), mesh, ("fsdp", None))

    how = {"clip": config.training.max_norm, "is_flex": args.attention == "flex"}
    if args.target:
        given = torch.zeros(batch, args.sequence, dtype=torch.long)
        step = model, optimizer, put(given), put(given)
        console.print(training.plan_step(partial(train_step, **how), *step, target=args.target))
        return []

    def update(tokens: Tensor, labels: Tensor) -> Tensor:
        loss = train_step(model, optimizer, tokens, labels, **how)
        schedule.step()
        return loss

    corpus, losses = text.load(), list[float]()
    update = training.compiled(update, args)
    rows = text.batches(corpus.train, batch=batch, sequence=args.sequence, seed=0)
    for number, (tokens, labels) in zip(range(1, steps + 1), rows, strict=False):
        losses.append(update(put(tokens), put(labels)).item())
        console.print(
            f"step {number:4}  loss {losses[-1]:.4f}  lr {schedule.get_last_lr()[0]:.2e}",
            highlight=False,
        )
    console.print(f"{spmd.metrics.num_compiles()} compiles", highlight=False)
    training.say_compiled(update, args, console)
    return losses


if __name__ == "__main__":
    main()
