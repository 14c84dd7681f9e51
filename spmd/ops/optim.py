"""The fused optimizer steps of torch.optim (fused=True) and a gradient scaler's two ops, as torch
computes on CUDA."""

import jax.numpy as jnp
import torch

from .floats import widened
from .registry import lower

aten = torch.ops.aten


def _unless_inf(found_inf, new, old):
    """new, or old where the gradient scaler found an infinity: the optimizer step is then
    skipped."""
    new = new.astype(old.dtype)
    return new if found_inf is None else jnp.where(found_inf.reshape(()) == 1, old, new)


def _operands(param, grad, grad_scale, maximize, weight_decay):
    """The parameter, the gradient without the scaler's factor, and the direction of the step, in
    the compute dtype."""
    wide, unscaled = widened(param), widened(grad)
    unscaled = (
        unscaled if grad_scale is None else unscaled / grad_scale.reshape(()).astype(unscaled.dtype)
    )
    direction = -unscaled if maximize else unscaled
    return wide, unscaled, direction if weight_decay == 0 else direction + weight_decay * wide


# decoupled: AdamW's weight decay, of the parameter and not of its gradient.
@lower(aten._fused_adam.default, aten._fused_adam.tensor_lr, decoupled=False)
@lower(aten._fused_adamw.default, aten._fused_adamw.tensor_lr, decoupled=True)
def aten_fused_adam(
    self,
    grads,
    exp_avgs,
    exp_avg_sqs,
    max_exp_avg_sqs,
    state_steps,
    *,
    lr,
    beta1,
    beta2,
    weight_decay,
    eps,
    amsgrad,
    maximize,
    grad_scale=None,
    found_inf=None,
    decoupled,
):
    # OneCycleLR changes a beta from step to step, too.
    lr, beta1, beta2 = (
        jnp.asarray(number, jnp.float64).reshape(()) for number in (lr, beta1, beta2)
    )
    results = ([], [], [], [], [])
    for i, (param, grad, exp_avg, exp_avg_sq) in enumerate(
        zip(self, grads, exp_avgs, exp_avg_sqs, strict=True)
    ):
        wide, unscaled, g = _operands(
            param, grad, grad_scale, maximize, 0 if decoupled else weight_decay
        )
        dtype = wide.dtype
        if decoupled and weight_decay != 0:
            wide = wide * (1 - lr * weight_decay).astype(dtype)
        first, second = widened(exp_avg), widened(exp_avg_sq)
        first = first + (1 - beta1).astype(dtype) * (g - first)
        second = beta2.astype(dtype) * second + (1 - beta2).astype(dtype) * g * g
        # The scalars are computed in float64, as the kernel does, and rounded when they meet the
        # parameter.
        step = state_steps[i].reshape(()).astype(jnp.float64)
        step_size = (lr / (1 - jnp.power(beta1, step))).astype(dtype)
        correction = jnp.sqrt(1 - jnp.power(beta2, step)).astype(dtype)
        largest = jnp.maximum(widened(max_exp_avg_sqs[i]), second) if amsgrad else second
        wide = wide - step_size * first / (jnp.sqrt(largest) / correction + eps)
        results[0].append(_unless_inf(found_inf, wide, param))
        results[1].append(grad if grad_scale is None else _unless_inf(found_inf, unscaled, grad))
        results[2].append(_unless_inf(found_inf, first, exp_avg))
        results[3].append(_unless_inf(found_inf, second, exp_avg_sq))
        if amsgrad:
            results[4].append(_unless_inf(found_inf, largest, max_exp_avg_sqs[i]))
    results[4].extend(max_exp_avg_sqs[len(results[4]) :])
    return results


@lower(aten._fused_sgd.default, aten._fused_sgd.tensor_lr)
def aten_fused_sgd(
    self,
    grads,
    momentum_buffer_list,
    *,
    weight_decay,
    momentum,
    lr,
    dampening,
    nesterov,
    maximize,
    is_first_step,
    grad_scale=None,
    found_inf=None,
):
    params, out_grads, buffers = [], [], []
    for i, (param, grad) in enumerate(zip(self, grads, strict=True)):
        wide, unscaled, g = _operands(param, grad, grad_scale, maximize, weight_decay)
        if momentum != 0:
            old = momentum_buffer_list[i]
            buffer = g if is_first_step else momentum * widened(old) + (1 - dampening) * g
            buffers.append(_unless_inf(found_inf, buffer, old))
            g = g + momentum * buffer if nesterov else buffer
        wide = wide - jnp.asarray(lr).reshape(()).astype(wide.dtype) * g
        params.append(_unless_inf(found_inf, wide, param))
        out_grads.append(grad if grad_scale is None else _unless_inf(found_inf, unscaled, grad))
    return params, out_grads, buffers or list(momentum_buffer_list)


# has_steps: by the schema they are written; the optimizer has counted them already.
@lower(aten._fused_adagrad.tensor_lr)
@lower(aten._fused_adagrad.default, has_steps=True)
def aten_fused_adagrad(
    self,
    grads,
    state_sums,
    state_steps,
    *,
    lr,
    lr_decay,
    weight_decay,
    eps,
    maximize,
    grad_scale=None,
    found_inf=None,
    has_steps=False,
):
    results = ([], [], [])
    for param, grad, state_sum, step in zip(self, grads, state_sums, state_steps, strict=True):
        wide, unscaled, g = _operands(param, grad, grad_scale, maximize, weight_decay)
        decay = 1 + (step.reshape(()).astype(jnp.float64) - 1) * lr_decay
        rate = (jnp.asarray(lr, jnp.float64).reshape(()) / decay).astype(wide.dtype)
        total = widened(state_sum) + g * g
        results[0].append(_unless_inf(found_inf, wide - rate * g / (jnp.sqrt(total) + eps), param))
        results[1].append(grad if grad_scale is None else _unless_inf(found_inf, unscaled, grad))
        results[2].append(_unless_inf(found_inf, total, state_sum))
    return (*results, state_steps) if has_steps else results


@lower(aten._amp_foreach_non_finite_check_and_unscale.default)
def aten_amp_unscale(self, found_inf, inv_scale):
    bad = jnp.zeros((), jnp.bool_)
    for grad in self:
        bad |= ~jnp.all(jnp.isfinite(grad))
    scaled = [
        (widened(grad) * inv_scale.reshape(()).astype(widened(grad).dtype)).astype(grad.dtype)
        for grad in self
    ]
    return scaled, jnp.where(bad, jnp.ones((), found_inf.dtype), found_inf)


@lower(aten._amp_update_scale.default)
def aten_amp_update_scale(
    self, growth_tracker, found_inf, scale_growth_factor, scale_backoff_factor, growth_interval
):
    is_inf = found_inf.reshape(()) != 0
    successes = growth_tracker + 1
    grow = ~is_inf & (successes == growth_interval)
    grown = (self * scale_growth_factor).astype(self.dtype)
    # A scale that would overflow stays.
    grown = jnp.where(jnp.isfinite(grown), grown, self)
    scale = jnp.where(
        is_inf, (self * scale_backoff_factor).astype(self.dtype), jnp.where(grow, grown, self)
    )
    return scale, jnp.where(
        is_inf | grow, jnp.zeros_like(growth_tracker), successes.astype(growth_tracker.dtype)
    )
