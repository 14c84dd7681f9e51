"""Recurrent layers (LSTM, GRU, RNN): torch's composite ops written with one scan per layer and
direction."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial, update_wrapper
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from ....ops.rnn import RECURRENCE, RECURRENCE_BACKWARD
from .fused import Maybe, is_transformed

aten = torch.ops.aten

_Result = TypeVar("_Result")


class _Recurrence(torch.autograd.Function):
    """`spmd::recurrence` with its gradient.

    Results: output, final state, the values saved for the gradient.
    """

    @staticmethod
    def forward(
        mode: str,
        reverse: bool,
        gates: Tensor,
        h: Tensor,
        c: Maybe,
        weight: Tensor,
        bias: Maybe,
        projection: Maybe,
        mask: Maybe,
    ) -> tuple[Tensor, ...]:
        state = [h] if c is None else [h, c]
        return tuple(RECURRENCE(mode, gates, state, weight, bias, projection, mask, reverse))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple[Tensor, ...]) -> None:
        """Saves the operands, the output and the results that only the gradient reads."""
        ctx.mode, ctx.reverse, gates, h, c, *operands = inputs
        ctx.num_state = 1 if c is None else 2
        saved = output[1 + ctx.num_state :]
        ctx.mark_non_differentiable(*saved)
        ctx.save_for_backward(gates, h, c, *operands, output[0], *saved)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Maybe, ...]:
        """The gradients of the operands; under create_graph by the unrolled layer."""
        grads = grads[: 1 + ctx.num_state]
        gates, h, c, weight, bias, projection, mask, output, *saved = ctx.saved_tensors
        inputs = gates, h, c, weight, bias, projection
        if torch.is_grad_enabled():  # create_graph
            results = _unrolled(ctx.mode, ctx.reverse, *inputs, mask=mask)
            differentiated = [
                value for value in inputs if value is not None and value.requires_grad
            ]
            input_grads = torch.autograd.grad(results, differentiated, grads, create_graph=True)
            grad_of = dict(zip(map(id, differentiated), input_grads, strict=True))
            return None, None, *(grad_of.get(id(value)) for value in inputs), None
        state = [h] if c is None else [h, c]
        operands = weight, bias, projection, mask, output, saved, ctx.reverse
        # A gradient for each input that is no None.
        queue: Iterator[Tensor] = iter(RECURRENCE_BACKWARD(ctx.mode, list(grads), state, *operands))
        return None, None, *(None if value is None else next(queue) for value in inputs), None


def _step(
    mode: str, gates: Tensor, h: Tensor, c: Maybe, weight: Tensor, bias: Maybe, projection: Maybe
) -> tuple[Tensor, Maybe]:
    """(h, c) after one step, in torch's ops."""
    hidden = F.linear(h, weight, bias)
    if c is not None:  # LSTM
        i, f, g, o = (gates + hidden).chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        return (h if projection is None else F.linear(h, projection)), c
    if mode == "gru":
        (xr, xz, xn), (hr, hz, hn) = gates.chunk(3, -1), hidden.chunk(3, -1)
        n = (xn + (xr + hr).sigmoid() * hn).tanh()
        return (h - n) * (xz + hz).sigmoid() + n, c
    return torch.tanh(gates + hidden) if mode == "tanh" else torch.relu(gates + hidden), c


def _unrolled(
    mode: str,
    reverse: bool,
    gates: Tensor,
    h: Tensor,
    c: Maybe,
    weight: Tensor,
    bias: Maybe,
    projection: Maybe,
    mask: Maybe,
) -> tuple[Tensor, ...]:
    """`_Recurrence` step by step, differentiable any number of times."""
    outputs = []
    for step in reversed(range(len(gates))) if reverse else range(len(gates)):
        new_h, new_c = _step(mode, gates[step], h, c, weight, bias, projection)
        is_active = None if mask is None else mask[step][:, None]
        h = new_h if is_active is None else torch.where(is_active, new_h, h)
        c = (
            new_c
            if is_active is None or c is None or new_c is None
            else torch.where(is_active, new_c, c)
        )
        outputs.append(h)
    output = torch.stack(outputs[::-1] if reverse else outputs)
    return (output, h) if c is None else (output, h, c)


class _Packed:
    """The positions of a packed sequence's rows in a padded one; the host has the batch sizes."""

    def __init__(self, batch_sizes: Tensor, device: torch.device):
        sizes = batch_sizes.cpu()
        steps, batch = sizes.numel(), int(sizes[0])
        mask = torch.arange(batch, device="cpu")[None] < sizes[:, None]
        self.shape = (steps, batch)
        self.mask = mask.to(device)
        self.to_padded = (mask.reshape(-1).cumsum(0) - 1).clamp(min=0).to(device)
        self.to_packed = mask.reshape(-1).nonzero()[:, 0].to(device)

    def pad(self, rows: Tensor) -> Tensor:
        """The packed rows as [T, B, ...]; the mask excludes the padding."""
        return rows.index_select(0, self.to_padded).reshape(*self.shape, *rows.shape[1:])

    def pack(self, padded: Tensor) -> Tensor:
        """The filled rows of a padded sequence, in packed order."""
        return padded.flatten(0, 1).index_select(0, self.to_packed)


def pack(padded: Tensor, lengths: Tensor, batch_first: bool) -> tuple[Tensor, Tensor]:
    """`pack_padded_sequence`: (rows in packed order, batch sizes on the host, where the lengths
    are)."""
    padded = padded.transpose(0, 1) if batch_first else padded
    template = torch.zeros((), dtype=torch.bool, device="cpu").expand(*padded.shape[:2], 1)
    # torch's own batch sizes and errors, on the host
    _, sizes = aten._pack_padded_sequence(template, lengths.cpu(), False)
    return _Packed(sizes, padded.device).pack(padded[: len(sizes)]), sizes


def _direction(
    mode: str,
    x: Tensor,
    state: list[Tensor],
    weights: Sequence[Tensor],
    has_biases: bool,
    reverse: bool,
    packed: _Packed | None,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """(output, final state) of one layer in one direction; x is [T, B, F], or packed rows."""
    w_ih, w_hh, *optional = weights
    b_ih, b_hh = (optional.pop(0), optional.pop(0)) if has_biases else (None, None)
    gates = F.linear(x, w_ih, b_ih)  # one product for all steps
    gates = gates if packed is None else packed.pad(gates)
    recurrent = [w_hh, b_hh, optional[0] if optional else None]
    h, c, weight, bias, projection = (
        None if value is None else value.to(gates.dtype)
        for value in [*state, *[None] * (2 - len(state)), *recurrent]
    )
    mask = None if packed is None else packed.mask
    run: Layer = _unrolled if is_transformed() else _Recurrence.apply
    result = run(mode, reverse, gates, h, c, weight, bias, projection, mask)
    output = result[0] if packed is None else packed.pack(result[0])
    return output, result[1 : 1 + len(state)]


def _layers(
    mode: str,
    x: Tensor,
    hx: Tensor | Sequence[Tensor],
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    packed: _Packed | None = None,
) -> tuple[Tensor, ...]:
    """(output, *final states): states are [layers * directions, B, H] each."""
    states = [hx] if isinstance(hx, Tensor) else hx
    directions = 2 if bidirectional else 1
    per_direction = len(params) // (num_layers * directions)
    finals: list[tuple[Tensor, ...]] = []
    for layer in range(num_layers):
        if layer and dropout and train:
            x = F.dropout(x, dropout, True)
        outputs = []
        for direction in range(directions):
            index = layer * directions + direction
            # The parameters are listed layer by layer, the backward direction after the forward.
            weights = params[index * per_direction : (index + 1) * per_direction]
            state = [part[index] for part in states]
            output, final_state = _direction(
                mode, x, state, weights, has_biases, direction == 1, packed
            )
            outputs.append(output)
            finals.append(final_state)
        x = outputs[0] if directions == 1 else torch.cat(outputs, -1)
    return x, *(torch.stack(parts) for parts in zip(*finals, strict=True))


Layer = Callable[..., tuple[Tensor, ...]]


def _on_inputs(layers: Layer, mode: str, input: Tensor, *settings: object) -> tuple[Tensor, ...]:
    """Runs layers on a padded input. settings: the arguments of `_layers` from `hx` on, then
    `batch_first`."""
    *layer_settings, batch_first = settings
    output, *finals = layers(mode, input.transpose(0, 1) if batch_first else input, *layer_settings)
    return output.transpose(0, 1) if batch_first else output, *finals


def _on_packed(
    layers: Layer, mode: str, data: Tensor, batch_sizes: Tensor, *settings: object
) -> tuple[Tensor, ...]:
    """Runs layers on the rows of a packed sequence. settings: the arguments of `_layers` from `hx`
    on."""
    return layers(mode, data, *settings, _Packed(batch_sizes, data.device))


def _single_step(
    mode: str,
    input: Tensor,
    hx: Tensor | Sequence[Tensor],
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Maybe = None,
    b_hh: Maybe = None,
) -> tuple[Tensor, ...] | Tensor:
    """`lstm_cell` and `gru_cell`: one step of a layer."""
    state = [hx] if isinstance(hx, Tensor) else [*hx]
    fits = input.shape[1:] == w_ih.shape[1:] and {x.shape for x in state} == {
        (len(input), w_hh.shape[1])
    }
    if not fits:  # torch's own error
        composite = getattr(aten, f"{mode}_cell").default
        return composite._op_dk(
            torch._C.DispatchKey.CompositeImplicitAutograd, input, hx, w_ih, w_hh, b_ih, b_hh
        )
    weights = [w_ih, w_hh] if b_ih is None or b_hh is None else [w_ih, w_hh, b_ih, b_hh]
    _, final_state = _direction(mode, input[None], state, weights, len(weights) == 4, False, None)
    return final_state if mode == "lstm" else final_state[0]


def _bound(function: Callable[..., _Result], *first: object) -> Callable[..., _Result]:
    """A `partial` of the function, under its name, so that messages find its line."""
    return update_wrapper(partial(function, *first), function)


_MODES = {"lstm": "lstm", "gru": "gru", "rnn_tanh": "tanh", "rnn_relu": "relu"}

# By torch's name of the overload; autograd is inside.
KERNELS: dict[str, Callable[..., tuple[Tensor, ...] | Tensor]] = {
    **{f"{name}.input": _bound(_on_inputs, _layers, mode) for name, mode in _MODES.items()},
    **{f"{name}.data": _bound(_on_packed, _layers, mode) for name, mode in _MODES.items()},
    **{f"{mode}_cell": _bound(_single_step, mode) for mode in ("lstm", "gru")},
}
