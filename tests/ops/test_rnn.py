"""Recurrent layers and cells, and the blocks of a transformer without gradients, against torch on
CPU."""

import copy

import pytest
import torch
from support import Batch, check
from torch import nn
from torch.func import functional_call, grad
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

LAYERS = [nn.LSTM, nn.GRU, nn.RNN]


def with_parameters(batch: Batch, name: str, module: nn.Module, *inputs: torch.Tensor) -> None:
    """Gradients of the inputs and of every parameter."""
    names, values = zip(*module.named_parameters(), strict=True)

    def run(*args):
        parameters = dict(zip(names, args[len(inputs) :], strict=True))
        made = functional_call(module, parameters, args[: len(inputs)])
        return made if isinstance(made, torch.Tensor) else tuple(_flat(made))

    batch.case(name, run, *inputs, *(value.detach() for value in values))


def _flat(made):
    for part in made:
        if isinstance(part, (tuple, list)):
            yield from _flat(part)
        elif part is not None:
            yield part


def layers(batch: Batch, dtype: torch.dtype, width: int) -> None:
    for cls in LAYERS:
        for settings in (
            {},
            {"num_layers": 2, "bidirectional": True},
            {"bias": False, "batch_first": True},
        ):
            layer = cls(4, 6, **settings).to(dtype)
            with_parameters(
                batch, f"{cls.__name__} {settings}", layer, torch.randn(width, 3, 4, dtype=dtype)
            )


class TestLayers:
    """A layer is one scan; its gradient another."""

    def test_against_cpu(self):
        batch = Batch()
        layers(batch, torch.float64, 5)
        with_parameters(batch, "relu", nn.RNN(4, 6, nonlinearity="relu"), torch.randn(5, 3, 4))
        with_parameters(batch, "float32", nn.LSTM(4, 6), torch.randn(5, 3, 4))
        batch.check()

    @pytest.mark.filterwarnings("ignore:LSTM with projections")
    def test_projection_and_first_state(self):
        batch = Batch()
        with_parameters(
            batch,
            "projection",
            nn.LSTM(4, 6, proj_size=2, num_layers=2).double(),
            torch.randn(5, 3, 4).double(),
        )
        with_parameters(
            batch,
            "state",
            nn.GRU(4, 6).double(),
            torch.randn(5, 3, 4).double(),
            torch.randn(1, 3, 6).double(),
        )
        batch.check()

    @pytest.mark.parametrize("cls", LAYERS)
    def test_packed_sequences(self, cls):
        layer = cls(4, 6, num_layers=2, bidirectional=True).double()
        packed = pack_padded_sequence(torch.randn(5, 3, 4).double(), [5, 3, 2])
        names, values = zip(*layer.named_parameters(), strict=True)

        def run(data, *args):
            output, state = functional_call(
                layer,
                dict(zip(names, args, strict=True)),
                (PackedSequence(data, packed.batch_sizes),),
            )
            return tuple(_flat((output.data, state)))

        batch = Batch()
        batch.case(cls.__name__, run, packed.data, *(value.detach() for value in values))
        batch.check()

    def test_inference_mode(self):
        layer, x = nn.LSTM(4, 6), torch.randn(5, 3, 4)
        with torch.inference_mode():
            expected = layer(x)[0]
            actual = layer.to("xla")(x.to("xla"))[0]
        torch.testing.assert_close(actual.cpu(), expected)

    def test_dropout_between_layers(self):
        layer = nn.LSTM(4, 6, num_layers=2, dropout=0.5).to("xla")
        x = torch.ones(5, 3, 4, device="xla")
        assert not torch.equal(layer(x)[0].cpu(), layer(x)[0].cpu())
        layer.eval()
        assert torch.equal(layer(x)[0].cpu(), layer(x)[0].cpu())


class TestPacking:
    """Packing and padding on the device: a whole encoder of sequences of unequal lengths."""

    @pytest.mark.parametrize("batch_first", [False, True])
    @pytest.mark.parametrize("lengths", [[5, 3, 3], [2, 4, 1]], ids=["sorted", "unsorted"])
    def test_round_trip_and_gradients(self, batch_first, lengths):
        layer, x = (
            nn.LSTM(4, 6, batch_first=batch_first).double(),
            torch.randn(3, 5, 4, dtype=torch.float64),
        )
        is_sorted = lengths == sorted(lengths, reverse=True)

        def run(layer, x):
            given = x if batch_first else x.transpose(0, 1)
            packed = pack_padded_sequence(
                given, torch.tensor(lengths), batch_first, enforce_sorted=is_sorted
            )
            made, sizes = pad_packed_sequence(layer(packed)[0], batch_first, padding_value=7.0)
            made.square().sum().backward()
            return made, sizes, x.grad, *(parameter.grad for parameter in layer.parameters())

        expected = run(layer, x.clone().requires_grad_())
        found = run(copy.deepcopy(layer).to("xla"), x.to("xla").requires_grad_())
        for one, other in zip(found, expected, strict=True):
            check(one, other)

    @pytest.mark.parametrize(
        ("lengths", "message"),
        [
            ([3, 5, 1], "sorted in decreasing order"),
            ([5, 3, 0], "greater than 0"),
            ([5, 3], "equal to batch_size"),
        ],
    )
    def test_errors(self, lengths, message):
        for device in ("cpu", "xla"):
            with pytest.raises(RuntimeError, match=message):
                pack_padded_sequence(torch.randn(5, 3, 4, device=device), torch.tensor(lengths))


class TestSecondGradients:
    """A gradient penalty on a recurrent layer: the gradient of gradients, of the input and of every
    weight."""

    @pytest.mark.parametrize(
        "module",
        [
            lambda: nn.RNN(3, 4, num_layers=2),
            lambda: nn.RNN(3, 4, nonlinearity="relu", bias=False),
            lambda: nn.GRU(3, 4, bidirectional=True),
            lambda: nn.LSTM(3, 4, num_layers=2, bidirectional=True),
            lambda: nn.LSTM(3, 4, proj_size=2),
        ],
        ids=["rnn", "relu", "gru", "lstm", "projection"],
    )
    @pytest.mark.parametrize("lengths", [None, [5, 3]], ids=["padded", "packed"])
    def test_against_cpu(self, module, lengths):
        made, x = module().double(), torch.randn(5, 2, 3, dtype=torch.float64)

        def penalty(module, x):
            given = x if lengths is None else pack_padded_sequence(x, lengths)
            output = module(given)[0]
            total = (output if lengths is None else output.data).square().sum()
            (grad,) = torch.autograd.grad(total, x, create_graph=True)
            grad.square().sum().backward()
            return [x.grad, *(parameter.grad for parameter in module.parameters())]

        expected = penalty(made, x.clone().requires_grad_())
        found = penalty(copy.deepcopy(made).to("xla"), x.to("xla").requires_grad_())
        for one, other in zip(found, expected, strict=True):
            assert (one is None) == (other is None)
            if one is not None:
                check(one, other)


class TestCells:
    """One step at a time."""

    def test_against_cpu(self):
        batch = Batch()
        for cls in (nn.LSTMCell, nn.GRUCell, nn.RNNCell):
            for bias in (True, False):
                with_parameters(
                    batch,
                    f"{cls.__name__} {bias}",
                    cls(4, 6, bias=bias).double(),
                    torch.randn(3, 4).double(),
                )
        batch.check()

    @pytest.mark.parametrize("cls", [nn.LSTMCell, nn.GRUCell, nn.LSTM])
    def test_transforms(self, cls):
        """torch.func has no rule for an autograd function: there a cell, or a layer, is composed of
        torch's ops."""
        module = cls(4, 6).double()
        x = torch.randn(2, 3, 4).double() if cls is nn.LSTM else torch.randn(3, 4).double()

        def loss(parameters, x):
            result = functional_call(module, parameters, (x,))
            return (result if isinstance(result, torch.Tensor) else result[0]).square().sum()

        expected = grad(loss)(dict(module.named_parameters()), x)
        found = grad(loss)(dict(module.to("xla").named_parameters()), x.to("xla"))
        for name, gradient in expected.items():
            check(found[name], gradient)


class TestTransformerBlocks:
    """The ops that torch calls instead of the module's own code when no gradient is asked for."""

    @pytest.mark.parametrize("settings", [{}, {"norm_first": True, "activation": "gelu"}])
    def test_encoder_layer(self, settings):
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, **settings).eval()
        x, padding = torch.randn(2, 5, 8), torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
        causal = torch.ones(5, 5).triu(1).bool()
        with torch.no_grad():
            expected = (
                layer(x),
                layer(x, src_key_padding_mask=padding)[:, :3],
                layer(x, src_mask=causal),
            )
            layer, x = layer.to("xla"), x.to("xla")
            actual = (
                layer(x),
                layer(x, src_key_padding_mask=padding.to("xla"))[:, :3],
                layer(x, src_mask=causal.to("xla")),
            )
        for one, other in zip(actual, expected, strict=True):
            torch.testing.assert_close(one.cpu(), other, rtol=1e-5, atol=1e-5)

    def test_attention(self):
        attention, x = nn.MultiheadAttention(8, 2, batch_first=True).eval(), torch.randn(2, 5, 8)
        with torch.no_grad():
            expected = attention(x, x, x)
            moved = x.to("xla")
            actual = attention.to("xla")(moved, moved, moved)
        for one, other in zip(actual, expected, strict=True):
            torch.testing.assert_close(one.cpu(), other, rtol=1e-5, atol=1e-5)


class TestSharded:
    """The batch (dim 0 of batch-first inputs) split over eight devices."""

    def test_partitioned(self, mesh8):
        batch = Batch(mesh=mesh8, axis="fsdp")
        layers(batch, torch.float64, 8)
        batch.check()
