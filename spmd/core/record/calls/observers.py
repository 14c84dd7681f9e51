"""Observers of quantization-aware training: moving ranges of the data, and their levels."""

import math

import torch
from torch import Tensor

from ..overloads import aten, by_arguments

_SMALLEST_SCALE = torch.tensor(6.1e-5, dtype=torch.float32).item()  # of torch's kernel


def _scale_and_zero_point(
    low: Tensor, high: Tensor, least: int, most: int, is_symmetric: bool
) -> tuple[Tensor, Tensor]:
    """(scale, zero point) of a range, computed in double precision as torch's
    `ChooseQuantizationParams` does."""
    half = (most - least) // 2
    crosses = (low < 0) & (high > 0)
    if is_symmetric:
        widest = torch.maximum((low / (half + 1)).abs(), (high / half).abs())
        low, high = (
            torch.where(crosses, -widest * (half + 1), low),
            torch.where(crosses, widest * half, high),
        )
    low, high = low.clamp(max=0).double(), high.clamp(min=0).double()
    scale = (high - low) / (most - least)
    scale = torch.where(scale.float().reciprocal().isinf(), 0.1, scale)
    growth = (_SMALLEST_SCALE / scale).clamp(min=1)
    low, high, scale = low * growth, high * growth, scale.clamp(min=_SMALLEST_SCALE)
    is_low_nearer = abs(least) - (low / scale).abs() < abs(most) - (high / scale).abs()
    zero_point = torch.where(is_low_nearer, least - low / scale, most - high / scale)
    if is_symmetric:
        zero_point = torch.where(crosses, (least + most) / 2, zero_point)
    return scale.float(), zero_point.round().clamp(least, most).int()


def _observe(
    self: Tensor,
    observer_on: Tensor,
    fake_quant_on: Tensor,
    running_min: Tensor,
    running_max: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    averaging_const: float,
    quant_min: int,
    quant_max: int,
    ch_axis: int,
    per_row_fake_quant: bool = False,
    symmetric_quant: bool = False,
) -> tuple[Tensor, Tensor]:
    """`_fused_moving_avg_obs_fq_helper`: updates range, scale and zero point on the device, without
    a read of its switches on the host."""
    rows = self.movedim(ch_axis, 0).flatten(1) if per_row_fake_quant else self.reshape(1, -1)
    if per_row_fake_quant and running_min.numel() == 0:
        for empty, number in (
            (running_min, math.inf),
            (running_max, -math.inf),
            (scale, 1),
            (zero_point, 0),
        ):
            empty.resize_(len(rows)).fill_(number)
    is_observed, is_on = (switch.reshape(()) != 0 for switch in (observer_on, fake_quant_on))
    for running, extreme in zip(
        (running_min, running_max), torch.aminmax(rows, dim=1), strict=True
    ):
        extreme = extreme.reshape(running.shape)
        moved = torch.where(
            running.isinf(), extreme, running + averaging_const * (extreme - running)
        )
        running.copy_(torch.where(is_observed, moved, running))
    for state, value in zip(
        (scale, zero_point),
        _scale_and_zero_point(running_min, running_max, quant_min, quant_max, symmetric_quant),
        strict=True,
    ):
        state.copy_(torch.where(is_on, value.reshape(state.shape), state))
    if not per_row_fake_quant:
        return aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams(
            self, scale, zero_point, fake_quant_on, quant_min, quant_max
        )
    rounded, mask = aten.fake_quantize_per_channel_affine_cachemask(
        self, scale, zero_point, ch_axis, quant_min, quant_max
    )
    return torch.where(is_on, rounded, self), mask | ~is_on


HANDLERS = {aten._fused_moving_avg_obs_fq_helper.default: by_arguments(_observe)}
