"""Checks of layers and losses that torch's meta kernels lack: ranks, counts, names. See `checks`."""

from collections.abc import Sequence
from typing import Any

import torch

from .checks import CHECKS, checks

aten = torch.ops.aten


# --- convolution ------------------------------------------------------------------------------------------------------


@checks(aten.convolution.default)
def convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups):
    _check_steps(stride, padding, dilation)
    _check_shapes(input, weight, bias, transposed, groups)
    if transposed:
        rank = weight.dim() - 2
        steps, pads, spans, more = (
            list(values) * (rank if len(values) == 1 else 1) for values in (stride, padding, dilation, output_padding)
        )
        sizes = [
            (size - 1) * steps[d] - 2 * pads[d] + spans[d] * (weight.shape[2 + d] - 1) + more[d] + 1
            for d, size in enumerate(input.shape[2:])
        ]
        if min(sizes, default=1) <= 0:
            raise RuntimeError(
                f"Given input size per channel: {list(input.shape[2:])}. Calculated output size per channel: {sizes}. "
                "Output size is too small"
            )


def _check_steps(stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int]) -> None:
    if any(step < 0 for step in padding):
        raise RuntimeError("negative padding is not supported")
    if any(step <= 0 for step in stride):
        raise RuntimeError("non-positive stride is not supported")
    if any(step <= 0 for step in dilation):
        raise RuntimeError(f"dilation should be greater than zero, but got {list(dilation)}")


def _check_shapes(
    input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, transposed: bool, groups: int
) -> None:
    given = f"weight of size {list(weight.shape)} with groups={groups} and transposed={transposed}"
    if weight.shape[0] < groups or weight.shape[0] % groups:
        raise RuntimeError(
            f"convolution: expected {groups} or a multiple of it at dimension 0 of the weight, got {given}"
        )
    if input.dim() != weight.dim():
        raise RuntimeError(f"convolution: expected {weight.dim()}D input, got size {list(input.shape)} for {given}")
    channels, features = weight.shape[1] * groups, weight.shape[0]
    if transposed:
        channels, features = features, channels
    if input.shape[1] != channels:
        raise RuntimeError(
            f"convolution: expected input{list(input.shape)} to have {channels} channels, but got {input.shape[1]} for "
            f"{given}"
        )
    if bias is not None and bias.shape != (features,):
        raise RuntimeError(
            f"convolution: expected bias to be 1-dimensional with {features} elements, but got bias of size "
            f"{list(bias.shape)} for {given}"
        )
    if 0 in input.shape[2:]:
        raise RuntimeError(
            f"Only zero batch or zero channel inputs are supported, but got input shape: {list(input.shape)}"
        )


# --- embedding bags ---------------------------------------------------------------------------------------------------


@checks(aten._embedding_bag.default, aten._embedding_bag_forward_only.default)
def embedding_bag(weight, indices, offsets, scale_grad_by_freq=False, mode=0, *_, **__):
    for name, given, rank in (("weight", weight, 2), ("offsets", offsets, 1)):
        if given.dim() != rank:
            raise RuntimeError(
                f"embedding_bag: {name} has to be a {rank}D Tensor, but got Tensor of shape {_size(given)}"
            )
    if indices.dim() != 1:
        raise RuntimeError(
            f"embedding_bag: expected indices as one run of all bags, got shape {_size(indices)}; flatten them, or use "
            "torch.nn.functional.embedding_bag, which takes one bag a row"
        )
    if mode not in (0, 1, 2):
        raise RuntimeError(f"embedding_bag: `mode` must be sum, mean, or max (0, 1 or 2), got {mode}")


def _size(tensor: torch.Tensor) -> list[int]:
    return list(tensor.shape)


# --- segments ---------------------------------------------------------------------------------------------------------


@checks(aten.segment_reduce.default)
def segment_reduce(data, reduce, *, lengths=None, offsets=None, axis=0, **_):
    if reduce not in ("sum", "mean", "max", "min", "prod"):
        raise RuntimeError(f"segment_reduce: expected reduce to be sum, mean, max, min or prod, got {reduce}")
    if not -data.dim() <= axis < data.dim():
        raise IndexError(
            f"segment_reduce: Dimension out of range (expected to be in range of [{-data.dim()}, {data.dim() - 1}], "
            f"but got {axis})"
        )
    for name, given in (("lengths", lengths), ("offsets", offsets)):
        if given is not None and axis % data.dim() != given.dim() - 1:
            raise RuntimeError(
                f"segment_reduce(): Expected axis to be the last dimension of {name} but got {axis} and {name} of "
                f"shape {_size(given)}"
            )
        if given is not None and given.dtype not in (torch.int64, torch.int32):
            raise NotImplementedError(f"segment_reduce: expected {name} to be int64 or int32, got {given.dtype}")
    if not data.is_floating_point():
        raise NotImplementedError(f"segment_reduce: expected floating-point data, got {data.dtype}")


# --- fractional pooling -----------------------------------------------------------------------------------------------


def _samples(rank: int) -> Any:
    def check(self, kernel_size, output_size, random_samples):
        batch, channels = (1, self.shape[0]) if self.dim() == rank + 1 else self.shape[:2]
        given = _size(random_samples)
        if len(given) != 3 or given[0] < batch or given[1] != channels or given[2] != rank:
            raise RuntimeError(
                f"fractional_max_pool{rank}d: expected _random_samples of shape [{batch} or more, {channels}, {rank}] "
                f"(batch, channels, dims), got {given}"
            )

    return check


CHECKS |= {aten.fractional_max_pool2d.default: _samples(2), aten.fractional_max_pool3d.default: _samples(3)}


# --- connectionist temporal classification ----------------------------------------------------------------------------


@checks(aten._ctc_loss.default, aten._ctc_loss.Tensor)
def ctc_loss(log_probs, targets, input_lengths, target_lengths, blank=0, zero_infinity=False):
    if not log_probs.numel():
        raise RuntimeError(f"ctc_loss: log_probs tensor must not be empty, got shape {_size(log_probs)}")
    if log_probs.dtype not in (torch.float32, torch.float64):
        raise NotImplementedError(f"ctc_loss: expected log_probs of float32 or float64, got {log_probs.dtype}")
    time, batch, labels = log_probs.shape
    if not 0 <= blank < labels:
        raise RuntimeError(f"ctc_loss: blank must be in label range, [0, {labels}), got {blank}")
    for name, lengths in (("input_lengths", input_lengths), ("target_lengths", target_lengths)):
        if isinstance(lengths, torch.Tensor) and (lengths.is_floating_point() or lengths.is_complex()):
            raise RuntimeError(f"ctc_loss: {name} must be integral, got {lengths.dtype}")
        count = lengths.numel() if isinstance(lengths, torch.Tensor) else len(lengths)
        if count != batch:
            raise RuntimeError(f"ctc_loss: {name} must be of size batch_size, {batch}, got {count}")
    if targets.dim() == 2 and targets.shape[0] != batch:
        raise RuntimeError(f"ctc_loss: expected targets of {batch} rows, one a sequence, got shape {_size(targets)}")
    if isinstance(input_lengths, torch.Tensor):
        return  # `core.dispatch.bounds` checks their values
    wrong = [length for length in input_lengths if not 0 <= length <= time]
    if wrong:
        raise RuntimeError(
            f"Expected input_lengths to have value at least 0 and at most {time}, but got value {wrong[0]}"
        )
    check_targets(targets, list(target_lengths))


def check_targets(targets: torch.Tensor, lengths: list[int]) -> None:
    """Raises where targets are fewer or more than their lengths."""
    if any(length < 0 for length in lengths):
        raise RuntimeError(f"Expected target_lengths to have value at least 0, but got value {min(lengths)}")
    if targets.dim() == 1 and targets.shape[0] != sum(lengths):
        raise RuntimeError(
            f"ctc_loss: expected targets to have size {sum(lengths)} at dimension 0, the sum of target_lengths, but "
            f"got size {targets.shape[0]}"
        )
    if targets.dim() == 2 and targets.shape[1] < max(lengths, default=0):
        raise RuntimeError(
            f"ctc_loss: expected targets to have size at least {max(lengths)} at dimension 1, the longest of "
            f"target_lengths, but got size {targets.shape[1]}"
        )


# --- what must have elements ------------------------------------------------------------------------------------------


def _needs_elements(name: str, batch: int) -> Any:
    """The check that no dim after the first ones, of batch and perhaps channel, has size 0."""

    def check(self, *_, **__):
        if 0 in self.shape[batch:]:
            raise RuntimeError(
                f"{name}: Expected input to have non-zero size for non-batch dimensions, got shape {_size(self)}"
            )

    return check


CHECKS |= {
    getattr(aten, name).default: _needs_elements(name, 1)
    for name in (
        "_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "upsample_linear1d", "upsample_bilinear2d",
        "upsample_bicubic2d", "upsample_trilinear3d",
    )
}  # fmt: skip


@checks(aten.grid_sampler_2d.default, aten.grid_sampler_3d.default)
def grid_sampler(input, grid, *_):
    if input.dim() != grid.dim() or input.dim() not in (4, 5):
        raise RuntimeError(
            f"grid_sampler(): expected input and grid of 4 or 5 dims, got sizes {_size(input)} and {_size(grid)}"
        )
    if 0 in input.shape[2:]:
        raise RuntimeError(
            f"grid_sampler(): expected input to have non-empty spatial dimensions, but input has sizes {_size(input)}"
        )
