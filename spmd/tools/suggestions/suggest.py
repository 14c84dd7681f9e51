"""spmd.suggest: meshes, layouts, batches, precisions and devices of a step, compiled and ranked,
with the reasons."""

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

from ...core import ends_at_user_line, hardware, syncs, topology, user_line
from ...core.extend import Objects, abstract_calls, state_names
from ...mesh.rented import target_of
from ..planning.layout import bytes_of, refuse_sharded, roots_of, stage
from .candidates import Model
from .search import KeptPlans, Search, ranked
from .suggestion import Suggestion, Trial
from .uses import UseObserver


@ends_at_user_line
def suggest(
    step: Callable[..., Any],
    *args: Any,
    target: str | Sequence[str] | None = None,
    model: nn.Module | None = None,
    mp_policy: Any = None,
    batches: Sequence[int] | None = None,
    grid: Mapping[str, Sequence[Any]] | None = None,
    price: float | Mapping[str, float] | None = None,
    budget: float = 600.0,
    max_trials: int = 24,
    file: str | Path | None = None,
    progress: bool = True,
    **kwargs: Any,
) -> Suggestion:
    """Finds a mesh and rules for a step, by compiling it for the devices with candidate layouts.

    The candidates are data parallel, FSDP, both (hybrid), tensor parallel with and without
    residuals sharded along the sequence, and all of these together; parameters kept or gathered
    again for backward. The parameters that a tensor axis can shard follow from one observed forward
    pass: products that read the results of others, heads, embedding tables, under any names. The
    search begins with one layout of some of these kinds and goes on with the nearest to the best so
    far; of its blocks as many as fit keep everything for backward, results of products (on the
    device, or in the host's memory), or nothing. Layouts that cannot fit are not compiled. Nothing
    is run or allocated, and model and optimizer are restored.

    Each target, batch, precision and keyword that is given is searched, in equal shares of the
    budget. A layout is ranked by the plan's seconds for a row of the batch; on devices of unknown
    rates (the CPU) by max(operations / peak, bytes moved / bandwidth), with both of a v5p.

    Args:
        step: the function as a run on one device calls it, without meshes and annotations; args,
            kwargs: its arguments, as in `spmd.plan`. target: the devices, as in `spmd.plan`, or
            several of them; None: those here.
        model: the module to shard; None: the one that is reachable from the step.
        mp_policy: the `fsdp.MixedPrecisionPolicy` that the rules will be applied with, or several;
            None is the model's own precision.
        batches: numbers of rows to be tried in place of the arguments' own; tensors with that many
            rows get them.
        grid: keywords of the step, each with the values to try: `{"num_micro_batches": (1, 2, 4)}`
            for a step that accumulates gradients. All combinations are searched.
        price: of a device for an hour, or of each target's; the front and `least_money` then know
            money.
        budget: seconds of the search: no layout is compiled, but the first, for which they would
            not suffice if it took as long as the slowest so far; max_trials: the most layouts to
            compile.
        file: keeps the plan of each compiled layout, as JSON: the same search goes on where it was
            stopped.
        progress: say on stderr which layout is compiled, in place where that is a terminal.

    Raises ValueError where the step reaches no module, or several and no `model` is given, or one
    that is sharded already, for a target without a price, and for a file of another search; and as
    `spmd.plan` does, except for a kernel that does not compile, which is its trial's reason.

    >>> import torch, spmd
    >>> layers = (torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64))
    >>> model = torch.nn.Sequential(*layers).to("meta")
    >>> step, batch = lambda x: model(x).square().mean().backward(), torch.empty(8, 64)
    >>> found = spmd.suggest(step, batch, target="cpu:2", progress=False)
    >>> found.mesh.size(), found.plan.fits, found.best.reason
    (2, True, '')
    """
    line, started = user_line(), time.monotonic()
    if not callable(step):
        raise TypeError(f"suggest: expected a function that does a step, got {type(step).__name__}")
    empty = [name for name, values in (grid or {}).items() if not len(values)]
    if empty:
        raise ValueError(
            "suggest: expected values to try for each keyword of grid, got none for "
            f"{', '.join(empty)}"
        )
    names = [*target] if isinstance(target, (list, tuple)) else [target]
    targets = [target_of(name, "suggest") for name in names]
    policies = list(mp_policy) if isinstance(mp_policy, (list, tuple)) else [mp_policy]
    combinations = [
        dict(zip(grid or {}, values, strict=True)) for values in product(*(grid or {}).values())
    ]
    observed, searches = list[tuple[Any, dict[str, Any], Model]](), list[Search]()
    with stage("suggest", is_shown=progress):
        with stage("observing the model"):
            for rows, keywords in product(batches or (None,), combinations):
                arguments = args, kwargs | keywords
                arguments = resized(arguments, rows) if rows else arguments
                observed.append((arguments, keywords, _observed(step, arguments, model)))
        stored_plans = KeptPlans(file, observed[0][-1])
        for name, policy, (arguments, keywords, facts) in product(targets, policies, observed):
            chips = len(hardware.devices()) if name is None else topology.num_devices(name)
            trial = Trial(
                target=name,
                chips=chips,
                rows=_rows(arguments) or facts.rows,
                precision=policy,
                price=_price(price, name),
                keywords=keywords,
            )
            searches.append(Search(step, arguments, trial, facts, stored_plans, line))
        trials: list[Trial] = []
        for number, search in enumerate(searches, 1):
            trials += search.run(
                started + budget * number / len(searches), -(-max_trials // len(searches))
            )
    if all(trial.mesh is None for trial in trials):
        raise ValueError(
            f"suggest: no layout over {chips} devices works for the step: {trials[0].reason}"
        )
    measures = dict.fromkeys(search.measure for search in searches)
    return Suggestion(tuple(ranked(trials)), "; ".join(measures), time.monotonic() - started)


def resized(arguments: Any, rows: int) -> Any:
    """The arguments with tensors of so many rows, without data, in place of those with the rows of
    the batch."""
    had = _rows(arguments)

    def with_rows(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.dim() == 0 or value.shape[0] != had:
            return value
        shape = rows, *value.shape[1:]
        return torch.empty(
            shape, dtype=value.dtype, device="meta", requires_grad=value.requires_grad
        )

    return tree_map(with_rows, arguments)


def _rows(arguments: Any) -> int | None:
    """The rows of a batch: dim 0 of the first argument with more dims, or of the first one; None
    without tensors."""
    tensors = [
        value for value in tree_leaves(arguments) if isinstance(value, torch.Tensor) and value.dim()
    ]
    return int(min(tensors, key=lambda tensor: tensor.dim() < 2).shape[0]) if tensors else None


def _price(price: float | Mapping[str, float] | None, target: str | None) -> float | None:
    """The price of a device of a target for an hour."""
    if not isinstance(price, Mapping):
        return price
    if target is None or target not in price:
        raise ValueError(
            f"suggest: price has no {target!r}: expected one for each target, got {sorted(price)}"
        )
    return price[target]


def _observed(step: Any, arguments: Any, module: nn.Module | None) -> Model:
    """The properties of the module to shard, observed in one step."""
    args, kwargs = arguments
    with abstract_calls.abstractly(step, arguments) as reachable:
        modules = reachable.of(nn.Module)
        if module is None:
            roots = [root for root in roots_of(modules) if any(True for _ in root.parameters())]
            if len(roots) != 1:
                names = ", ".join(type(root).__name__ for root in roots) or "none"
                raise ValueError(
                    f"suggest: expected the step to reach one model, got {names}; choose one by "
                    "model=..."
                )
            module = roots[0]
        elif module not in modules:
            raise ValueError(
                f"suggest: the step does not reach the {type(module).__name__} that was passed as "
                "model"
            )
        refuse_sharded(module, "suggest", "apply the rules that it finds instead")
        flow = UseObserver(module)
        with flow.watching():
            result = step(*args, **kwargs)
        syncs.sync()
        state = bytes_of(state_names.StateNames(Objects.of_step(step, arguments)))
        del result
    if not flow.shapes:
        raise ValueError(f"suggest: the step does not call the {type(module).__name__}")
    return Model(flow, state["parameters"] + state["optimizer state"])
