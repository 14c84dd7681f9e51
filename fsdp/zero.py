"""ZeRO-1: parameters replicated, the optimizer's state sharded over a mesh axis, by annotations
alone."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT, StateDict
from torch.utils.weak import WeakIdKeyDictionary

import spmd
from spmd.mesh.global_mesh import get_global_mesh
from spmd.mesh.mesh import get_1d_mesh
from spmd.mesh.notes import ends_at_user_line

from .keywords import ZERO, translate
from .plan import parameter_spec

# Why annotations suffice: the update of a sharded state is computed where the state is. Each device
# reads its part of the gradient, and the all-gather of the new parameter follows from the
# parameter's own sharding.


@ends_at_user_line
class ZeroRedundancyOptimizer(Optimizer):
    """An optimizer whose state is sharded over a mesh axis, while parameters and gradients stay as
    they are.

    Each device updates its part of a parameter, and XLA gathers the parts: the bytes of data
    parallelism, whose all-reduce is a reduce-scatter and an all-gather. `fsdp.fully_shard` shards
    the parameters, too, and needs less memory for the same communication.

    Args:
        params, defaults: of `optimizer_class`. optimizer_class: such as `torch.optim.AdamW`.
        mesh: default: that of `with mesh:` or `spmd.torch_xla.set_global_mesh`, else one axis over
            all devices.
        axis: default: "fsdp" or "data", where the mesh has it, else its first.
        grad_clipping, max_norm: `step` first clips the norm of all gradients to `max_norm`, where
            both are given.
        optimizer_dtype, pin_layout, sharding_groups, grad_norm_groups, lazy_init,
        bucket_cap_mb_all_gather,
            bucket_cap_mb_reduce_scatter, use_grad_acc_hook, save_master_weights,
            higher_cc_precision, coalesce_cc: PyTorch/XLA's, by position as there, without a meaning
            here: one warning names those with an effect there.

    `state_dict` is that of the optimizer without ZeRO. Raises ValueError for an axis that is not in
    the mesh. Source: ZeRO (arXiv:1910.02054),
    `torch_xla.distributed.zero_redundancy_optimizer.ZeroRedundancyOptimizer`.

    >>> import torch, spmd, fsdp
    >>> layer, mesh = torch.nn.Linear(4, 2, device="xla"), spmd.Mesh([0], (1,), ("data",))
    >>> optimizer = fsdp.ZeroRedundancyOptimizer(
    ...     layer.parameters(), torch.optim.AdamW, mesh=mesh, lr=0.1
    ... )
    >>> layer(torch.ones(3, 4, device="xla")).sum().backward()
    >>> optimizer.step()
    >>> spmd.get_sharding(optimizer.state[layer.weight]["exp_avg"]).partition_spec(2)
    (None, None)
    """

    def __init__(
        self,
        params: ParamsT,
        optimizer_class: Callable[..., Optimizer],
        optimizer_dtype: torch.dtype | None = None,
        grad_clipping: bool = True,
        max_norm: float | None = None,
        *more: object,
        mesh: spmd.Mesh | None = None,
        axis: str | None = None,
        **defaults: object,
    ):
        keywords = {
            "optimizer_dtype": optimizer_dtype,
            **dict(zip([*ZERO][1:], more, strict=False)),
            **defaults,
        }
        translate(
            type(self).__name__,
            {name: keywords.pop(name) for name in ZERO if name in keywords},
            ZERO,
            {},
        )
        self.mesh = mesh or get_global_mesh() or get_1d_mesh("fsdp")
        names = self.mesh.axes
        self.axis = axis or next((name for name in ("fsdp", "data") if name in names), names[0])
        if self.axis not in names:
            raise ValueError(
                f"ZeroRedundancyOptimizer: expected an axis of the mesh ({', '.join(names)}), got "
                f"{axis!r}"
            )
        self.max_norm = max_norm if grad_clipping else None
        self._sharded = WeakIdKeyDictionary()  # the tensors of the state that are annotated
        self.base_optimizer = optimizer_class(params, **keywords)
        super().__init__(self.base_optimizer.param_groups, self.base_optimizer.defaults)
        # The same objects: a scheduler writes into the groups of this optimizer, and the other one
        # reads them.
        self.param_groups, self.state = self.base_optimizer.param_groups, self.base_optimizer.state

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None, **how: object) -> float | None:  # type: ignore[override]
        """Clips the gradients, where that was requested, and takes the optimizer's step."""
        if self.max_norm is not None:
            parameters = [parameter for group in self.param_groups for parameter in group["params"]]
            torch.nn.utils.clip_grad_norm_(parameters, self.max_norm)
        # torch 2.13 passes a closure by position; some optimizers take other keywords.
        step: Callable[..., float | None] = self.base_optimizer.step
        loss = step(**how) if closure is None else step(closure, **how)
        self._shard_state()
        return loss

    def load_state_dict(self, state_dict: StateDict | Sequence[StateDict]) -> None:
        """Loads what `state_dict` returned, or an optimizer of the class without ZeRO, and shards
        it.

        A list: those that PyTorch/XLA's optimizer of this name returned, of all ranks in order; of
        one rank its own will do. Raises ValueError where ranks are missing.
        """
        ranks = [state_dict] if isinstance(state_dict, dict) else [*state_dict]
        self.base_optimizer.load_state_dict(
            _joined(ranks) if "base_state" in ranks[0] and not ranks[0]["state"] else ranks[0]
        )
        self.param_groups, self.state = self.base_optimizer.param_groups, self.base_optimizer.state
        self._shard_state()

    def state_dict(self) -> StateDict:
        """The state dict of the optimizer without ZeRO."""
        return self.base_optimizer.state_dict()

    def _shard_state(self) -> None:
        """Annotates the tensors of the state that have the shape of their parameter, each once."""
        size = self.mesh.shape()[self.axis]
        for parameter, values in self.state.items():
            for value in values.values():
                # A step count has no dim, and replicated numbers need no mark.
                has_shape = (
                    isinstance(value, torch.Tensor)
                    and value.shape == parameter.shape
                    and value.dim()
                )
                if has_shape and value.device.type == "xla" and value not in self._sharded:
                    spmd.mark_sharding(
                        value, self.mesh, parameter_spec(value.shape, self.axis, size)
                    )
                    self._sharded[value] = True


class XlaZeroRedundancyOptimizer(ZeroRedundancyOptimizer):
    """`ZeroRedundancyOptimizer` as PyTorch/XLA's scripts read its state dict: "base_state" is the
    state, "shape_info" the shapes of the parameters by index.

    >>> import torch
    >>> from fsdp.zero import XlaZeroRedundancyOptimizer
    >>> layer = torch.nn.Linear(4, 2, device="xla")
    >>> XlaZeroRedundancyOptimizer(layer.parameters(), torch.optim.SGD).state_dict()["shape_info"]
    {0: torch.Size([2, 4]), 1: torch.Size([2])}
    """

    def state_dict(self) -> StateDict:
        """The state dict of the optimizer without ZeRO, with two keys more."""
        result = super().state_dict()
        parameters = (one for group in self.param_groups for one in group["params"])
        shapes = {index: parameter.shape for index, parameter in enumerate(parameters)}
        return {**result, "base_state": result["state"], "shape_info": shapes}


def _joined(ranks: Sequence[StateDict]) -> StateDict:
    """The state dict without ZeRO of PyTorch/XLA's, in which each rank has its rows, padded."""

    def whole(index: int, name: str) -> Any:
        parts = [rank["base_state"][index][name] for rank in ranks]
        rows = ranks[0]["shape_info"][index][:1]
        if not (isinstance(parts[0], torch.Tensor) and parts[0].dim() and rows):
            return parts[0]
        value = torch.cat(parts)
        if len(value) < rows[0]:
            raise ValueError(
                f"ZeroRedundancyOptimizer.load_state_dict: {name} of parameter {index} has "
                f"{len(value)} of {rows[0]} rows; pass a list of the state dicts of all ranks"
            )
        return value[: rows[0]]

    state = {
        index: {name: whole(index, name) for name in values}
        for index, values in ranks[0]["base_state"].items()
    }
    return {"state": state, "param_groups": ranks[0]["param_groups"]}
