"""Recurrent layers: one step of each kind (LSTM, GRU, RNN), and a layer's time loop as one scan
with its gradient.

The layer's op is ours: torch unrolls its layers into one op per step, which would make the program
as long as the sequence. `gates` are the inputs' share of the gates, one product for all steps; the
gradient of the recurrent weight is one product as well, taken after the loop. Gate order is
torch's: i, f, g, o for LSTM; r, z, n for GRU.
"""

import jax
import jax.numpy as jnp
import torch
from jax import lax

from .floats import widened
from .registry import as_promised, lower

aten = torch.ops.aten

_library = torch.library.Library("spmd", "FRAGMENT")
# `cell`: "lstm", "gru", "tanh" or "relu". gates [T, B, G], state [B, H] each, mask [T, B] (False: a
# row is kept). Returns output [T, B, H], the final state, and the values saved for the gradient.
_library.define(
    "recurrence(str cell, Tensor gates, Tensor[] state, Tensor weight, Tensor? bias, Tensor? "
    "projection, Tensor? mask, bool reverse) -> Tensor[]"
)
# Returns the gradients of gates, state, weight, bias (where there is one) and projection (where
# there is one).
_library.define(
    "recurrence_backward(str cell, Tensor[] grads, Tensor[] state, Tensor weight, Tensor? bias, "
    "Tensor? projection, Tensor? mask, Tensor output, Tensor[] saved, bool reverse) -> Tensor[]"
)

RECURRENCE = torch.ops.spmd.recurrence.default
RECURRENCE_BACKWARD = torch.ops.spmd.recurrence_backward.default


def _wide(x):
    return None if x is None else widened(x)


def _parts(x, count):
    return jnp.split(x, count, axis=-1)


def _joined(*parts):
    return jnp.concatenate(parts, axis=-1)


# -- One step of each kind of layer: (new state, the values saved for its gradient).


def _lstm_forward(gates, c):
    i, f, g, o = _parts(gates, 4)
    i, f, g, o = jax.nn.sigmoid(i), jax.nn.sigmoid(f), jnp.tanh(g), jax.nn.sigmoid(o)
    new = f * c + i * g
    return o * jnp.tanh(new), new, _joined(i, f, g, o)


def _lstm_backward(grad_h, grad_c, c, new, saved):
    """(gradient of the gates before their activation, gradient of c)."""
    i, f, g, o = _parts(saved, 4)
    bent = jnp.tanh(new)
    grad_c = grad_c + grad_h * o * (1 - bent * bent)
    grad_gates = _joined(
        grad_c * g * i * (1 - i),
        grad_c * c * f * (1 - f),
        grad_c * i * (1 - g * g),
        grad_h * bent * o * (1 - o),
    )
    return grad_gates, grad_c * f


def _gru_forward(gates, hidden, h):
    (xr, xz, xn), (hr, hz, hn) = _parts(gates, 3), _parts(hidden, 3)
    r, z = jax.nn.sigmoid(xr + hr), jax.nn.sigmoid(xz + hz)
    n = jnp.tanh(xn + r * hn)
    return (h - n) * z + n, _joined(r, z, n, hn)


def _gru_backward(grad, h, saved):
    """(gradient of the inputs' gates, of the hidden gates, of h except for the part through the
    hidden gates)."""
    r, z, n, hn = _parts(saved, 4)
    grad_n = grad * (1 - z) * (1 - n * n)
    grad_r, grad_z = grad_n * hn * r * (1 - r), grad * (h - n) * z * (1 - z)
    return _joined(grad_r, grad_z, grad_n), _joined(grad_r, grad_z, grad_n * r), grad * z


# -- A layer.


def _kept(mask, new, old):
    return new if mask is None else jnp.where(mask[:, None], new, old)


def _stored(x, like):
    return x.astype(like.dtype)


def _hidden_gates(h, weight, bias):
    result = jnp.matmul(h, weight.T, preferred_element_type=_wide(h).dtype)
    return result if bias is None else result + _wide(bias)


def _forward_step(mode, weight, bias, projection):
    def step(state, inputs):
        gates, mask = inputs
        h, *c_before = state
        hidden = _hidden_gates(h, weight, bias)
        if mode == "lstm":
            new, c, saved = _lstm_forward(_wide(gates) + hidden, _wide(c_before[0]))
            if projection is not None:
                new = jnp.matmul(_stored(new, h), projection.T, preferred_element_type=new.dtype)
            state = (_kept(mask, _stored(new, h), h), _kept(mask, _stored(c, h), c_before[0]))
            return state, (*state, _stored(saved, gates))
        if mode == "gru":
            new, saved = _gru_forward(_wide(gates), hidden, _wide(h))
            saved = (_stored(saved, gates),)
        else:
            total = _wide(gates) + hidden
            new, saved = jnp.tanh(total) if mode == "tanh" else jnp.maximum(total, 0), ()
        new = _kept(mask, _stored(new, h), h)
        return (new,), (new, *saved)

    return step


@lower(RECURRENCE)
def spmd_recurrence(mode, /, gates, state, weight, bias, projection, mask, reverse):
    step = _forward_step(mode, weight, bias, projection)
    is_single = gates.shape[0] == 1  # one step is no loop
    last, (output, *saved) = lax.scan(
        step, tuple(state), (gates, mask), reverse=reverse, unroll=is_single or 1
    )
    return (output, *last, *saved)


def _before(sequence, initial, reverse):
    """The state before each step."""
    if reverse:
        return jnp.concatenate([sequence[1:], initial[None]])
    return jnp.concatenate([initial[None], sequence[:-1]])


def _split(active, grad):
    """(the gradient of rows that take the step, that of rows which are kept)."""
    return (
        (grad, 0)
        if active is None
        else (jnp.where(active[:, None], grad, 0), jnp.where(active[:, None], 0, grad))
    )


def _backward_step(mode, weight, projection):
    """One step of the gradient: the carry is the gradient of the state, in the wide dtype."""

    def back_h(grad_hidden):
        return jnp.matmul(
            _stored(grad_hidden, weight), weight, preferred_element_type=grad_hidden.dtype
        )

    def step(carry, inputs):
        grad_output, active, h, *saved = inputs
        grad, passed = _split(active, carry[0] + _wide(grad_output))
        if mode == "lstm":
            c, new, gates = saved
            grad_c, passed_c = _split(active, carry[1])
            inner = grad if projection is None else jnp.matmul(grad, _wide(projection))
            grad_gates, grad_c = _lstm_backward(inner, grad_c, _wide(c), _wide(new), _wide(gates))
            return (back_h(grad_gates) + passed, grad_c + passed_c), (grad_gates, grad)
        if mode == "gru":
            grad_input, grad_hidden, grad_h = _gru_backward(grad, _wide(h), _wide(saved[0]))
            return (back_h(grad_hidden) + grad_h + passed,), (grad_input, grad_hidden)
        result = _wide(saved[0])
        grad_gates = (
            grad * (1 - result * result) if mode == "tanh" else jnp.where(result > 0, grad, 0)
        )
        return (back_h(grad_gates) + passed,), (grad_gates,)

    return step


@lower(RECURRENCE_BACKWARD)
def spmd_recurrence_backward(
    mode, /, grads, state, weight, bias, projection, mask, output, saved, reverse, *, returns
):
    grad_output, *grad_state = grads
    h_before = _before(output, state[0], reverse)
    sequences = [h_before]
    if mode == "lstm":
        sequences += [_before(saved[0], state[1], reverse), saved[0], saved[1]]
    else:
        sequences += [saved[0] if mode == "gru" else output]
    step = _backward_step(mode, weight, projection)
    carry = tuple(_wide(grad) for grad in grad_state)
    inputs = grad_output, mask, *sequences
    carry, result = lax.scan(
        step, carry, inputs, reverse=not reverse, unroll=len(grad_output) == 1 or 1
    )
    grad_gates = result[0]
    grad_hidden = result[1] if mode == "gru" else grad_gates
    # The gates of a row that is kept as it was have gradient zero, so masked steps add nothing
    # here.
    grad_weight = jnp.einsum("tbg,tbh->gh", grad_hidden, _wide(h_before))
    results = [grad_gates, *carry, grad_weight]
    if bias is not None:
        results.append(grad_hidden.sum((0, 1)))
    if projection is not None:
        o = _parts(_wide(saved[1]), 4)[3]
        results.append(jnp.einsum("tbp,tbh->ph", result[1], o * jnp.tanh(_wide(saved[0]))))
    return as_promised(results, returns)
