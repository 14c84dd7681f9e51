"""Recurrent layers (LSTM, GRU, RNN): torch's composite ops written with one scan per layer and direction."""

from typing import Any

import torch
from torch.nn import functional as F

from ..ops.rnn import RECURRENCE, RECURRENCE_BACKWARD
from ..record.overloads import by_arguments

aten = torch.ops.aten


class _Recurrence(torch.autograd.Function):
    """`spmd::recurrence` with its gradient. Results: output, final state, the values saved for the gradient."""

    @staticmethod
    def forward(
        mode: str,
        reverse: bool,
        gates: torch.Tensor,
        h: torch.Tensor,
        c: torch.Tensor | None,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        projection: torch.Tensor | None,
        mask: torch.Tensor | None,
    ):
        state = [h] if c is None else [h, c]
        result = RECURRENCE(mode, gates, state, weight, bias, projection, mask, reverse)
        return tuple(result)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mode, ctx.reverse, gates, h, c, weight, bias, projection, mask = inputs
        num_state = 1 if c is None else 2
        ctx.num_state, ctx.num_saved = num_state, len(output) - 1 - num_state
        ctx.mark_non_differentiable(*output[1 + num_state :])
        ctx.save_for_backward(gates, h, c, weight, bias, projection, mask, output[0], *output[1 + num_state :])

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        if torch.is_grad_enabled():
            return _Recurrence._differentiable(ctx, *grads[: 1 + ctx.num_state])
        _, h, c, weight, bias, projection, mask, output, *saved = ctx.saved_tensors
        state = [h] if c is None else [h, c]
        result = RECURRENCE_BACKWARD(
            ctx.mode,
            list(grads[: 1 + ctx.num_state]),
            state,
            weight,
            bias,
            projection,
            mask,
            output,
            saved,
            ctx.reverse,
        )
        gates, *rest = result
        grad_state, rest = rest[: ctx.num_state], rest[ctx.num_state :]
        grad_c = grad_state[1] if ctx.num_state == 2 else None
        optional = iter(rest[1:])
        grad_bias = None if bias is None else next(optional)
        grad_projection = None if projection is None else next(optional)
        return None, None, gates, grad_state[0], grad_c, rest[0], grad_bias, grad_projection, None

    @staticmethod
    def _differentiable(ctx: Any, *grads: torch.Tensor) -> Any:
        """With create_graph: the gradients of the unrolled layer."""
        inputs = gates, h, c, weight, bias, projection = ctx.saved_tensors[:6]
        result = _unrolled(ctx.mode, ctx.reverse, gates, h, c, weight, bias, projection, mask=ctx.saved_tensors[6])
        wanted = [value for value in inputs if value is not None and value.requires_grad]
        found = iter(torch.autograd.grad(result, wanted, grads, create_graph=True))
        return None, None, *(next(found) if any(value is each for each in wanted) else None for value in inputs), None


def _step(mode: str, gates: Any, h: Any, c: Any, weight: torch.Tensor, bias: Any, projection: Any) -> tuple[Any, Any]:
    """(h, c) after one step, in torch's ops."""
    hidden = F.linear(h, weight, bias)
    if mode == "lstm":
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
    mode: str, reverse: bool, gates: Any, h: Any, c: Any, weight: torch.Tensor, bias: Any, projection: Any, mask: Any
) -> tuple[torch.Tensor, ...]:
    """`_Recurrence` one step after the other, which can be differentiated any number of times."""
    outputs = []
    for step in reversed(range(len(gates))) if reverse else range(len(gates)):
        new_h, new_c = _step(mode, gates[step], h, c, weight, bias, projection)
        kept = None if mask is None else mask[step][:, None]
        h = new_h if kept is None else torch.where(kept, new_h, h)
        c = new_c if kept is None or c is None else torch.where(kept, new_c, c)
        outputs.append(h)
    output = torch.stack(outputs[::-1] if reverse else outputs)
    return (output, h) if c is None else (output, h, c)


class _Packed:
    """The places of a packed sequence's rows in a padded one: the batch sizes are known on the host."""

    def __init__(self, batch_sizes: torch.Tensor, device: torch.device):
        sizes = batch_sizes.cpu()
        steps, batch = sizes.numel(), int(sizes[0])
        mask = torch.arange(batch, device="cpu")[None] < sizes[:, None]
        self.shape = (steps, batch)
        self.mask = mask.to(device)
        places = (mask.reshape(-1).cumsum(0) - 1).clamp(min=0)
        self.to_padded = places.to(device)
        self.to_packed = mask.reshape(-1).nonzero()[:, 0].to(device)

    def pad(self, rows: torch.Tensor) -> torch.Tensor:
        """The packed rows as [T, B, ...]; the mask excludes the places without a row."""
        return rows.index_select(0, self.to_padded).reshape(*self.shape, *rows.shape[1:])

    def pack(self, padded: torch.Tensor) -> torch.Tensor:
        """The rows of a padded sequence that are filled, in the packed order."""
        return padded.flatten(0, 1).index_select(0, self.to_packed)


def _batch_sizes(lengths: torch.Tensor, batch: int) -> torch.Tensor:
    """The number of sequences with a row at each step; refuses what torch refuses."""
    if lengths.numel() != batch:
        raise RuntimeError(
            f"Expected `len(lengths)` to be equal to batch_size, but got {lengths.numel()} (batch_size={batch})"
        )
    if lengths.numel() and int(lengths.min()) <= 0:
        raise RuntimeError(
            "Length of all samples has to be greater than 0, but found an element in 'lengths' that is <= 0"
        )
    if bool((lengths[1:] > lengths[:-1]).any()):
        raise RuntimeError("`lengths` array must be sorted in decreasing order when `enforce_sorted` is True")
    return (torch.arange(int(lengths[0]), device="cpu")[:, None] < lengths).sum(1)


def _pack(padded: torch.Tensor, lengths: torch.Tensor, batch_first: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """`pack_padded_sequence`: (rows in packed order, batch sizes on the host, where the lengths are)."""
    padded = padded.transpose(0, 1) if batch_first else padded
    sizes = _batch_sizes(lengths.cpu(), padded.shape[1])
    return _Packed(sizes, padded.device).pack(padded[: len(sizes)]), sizes


def _direction(
    mode: str, x: torch.Tensor, state: list[Any], weights: Any, has_biases: bool, reverse: bool, packed: Any
):
    """(output, final state) of one layer in one direction; x is [T, B, F], or packed rows."""
    w_ih, w_hh, *rest = weights
    b_ih, b_hh = (rest.pop(0), rest.pop(0)) if has_biases else (None, None)
    gates = F.linear(x, w_ih, b_ih)  # one product for all steps
    gates = gates if packed is None else packed.pad(gates)
    recurrent = [w_hh, b_hh, rest[0] if rest else None]
    h, c, w_hh, b_hh, projection = (
        None if value is None else value.to(gates.dtype) for value in [*state, *[None] * (2 - len(state)), *recurrent]
    )
    mask = None if packed is None else packed.mask
    result = _Recurrence.apply(mode, reverse, gates, h, c, w_hh, b_hh, projection, mask)
    output = result[0] if packed is None else packed.pack(result[0])
    return output, result[1 : 1 + len(state)]


def _layers(
    mode: str, x: torch.Tensor, states: list[Any], params: torch.Tensor, has_biases: bool, num_layers: int, dropout:
    float, train: bool,
    bidirectional: bool, packed: Any = None,
) -> tuple[torch.Tensor, list[torch.Tensor]]:  # fmt: skip
    """(output, final states): states are [layers * directions, B, H] each."""
    directions = 2 if bidirectional else 1
    per_direction = len(params) // (num_layers * directions)
    finals: list[list[torch.Tensor]] = []
    for layer in range(num_layers):
        if layer and dropout and train:
            x = F.dropout(x, dropout, True)
        outputs = []
        for direction in range(directions):
            index = layer * directions + direction
            weights = params[index * per_direction : (index + 1) * per_direction]
            state = [part[index] for part in states]
            output, last = _direction(mode, x, state, weights, has_biases, direction == 1, packed)
            outputs.append(output)
            finals.append(list(last))
        x = outputs[0] if directions == 1 else torch.cat(outputs, -1)
    return x, [torch.stack(parts) for parts in zip(*finals, strict=True)]


def _on_inputs(mode: str) -> Any:
    def layer(
        input: torch.Tensor, hx: torch.Tensor, params: torch.Tensor, has_biases: bool, num_layers: int, dropout: float,
        train: bool,
        bidirectional: bool, batch_first: bool,
    ) -> Any:  # fmt: skip
        x = input.transpose(0, 1) if batch_first else input
        states = list(hx) if mode == "lstm" else [hx]
        output, finals = _layers(mode, x, states, params, has_biases, num_layers, dropout, train, bidirectional)
        return output.transpose(0, 1) if batch_first else output, *finals

    return layer


def _on_packed(mode: str) -> Any:
    def layer(
        data: torch.Tensor, batch_sizes: Any, hx: torch.Tensor, params: torch.Tensor, has_biases: bool, num_layers: int,
        dropout: float,
        train: bool, bidirectional: bool,
    ) -> Any:  # fmt: skip
        states = list(hx) if mode == "lstm" else [hx]
        packed = _Packed(batch_sizes, data.device)
        output, finals = _layers(
            mode, data, states, params, has_biases, num_layers, dropout, train, bidirectional, packed
        )
        return output, *finals

    return layer


_MODES = {"lstm": "lstm", "gru": "gru", "rnn_tanh": "tanh", "rnn_relu": "relu"}

# By torch's name of the overload; autograd is inside.
KERNELS: dict[str, Any] = {
    **{f"{name}.input": _on_inputs(mode) for name, mode in _MODES.items()},
    **{f"{name}.data": _on_packed(mode) for name, mode in _MODES.items()},
}


# The layers, for calls that arrive undecomposed (in inference mode), and packing.
HANDLERS: dict[torch._ops.OpOverload, Any] = {
    aten._pack_padded_sequence.default: by_arguments(_pack),
    **{
        getattr(getattr(aten, name.split(".")[0]), name.split(".")[1]): by_arguments(kernel)
        for name, kernel in KERNELS.items()
    },
}
