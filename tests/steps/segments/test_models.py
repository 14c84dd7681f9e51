"""Played loops by their models: equal bits to the same loops recorded."""

import collections
import contextlib
import copy
from dataclasses import dataclass
from typing import Any

import played_loops
import pytest
import torch
from played_loops import CLASSES, STEPS, WIDTH, Block, Net, Trace
from torch import nn
from torch.utils.checkpoint import checkpoint

import spmd


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)


def check(make: Any, *, but: int = 0, **how: Any) -> Trace:
    """Trains what `make` returns, which must be played."""

    def loop(trace: Trace) -> None:
        model = make().to("xla")
        played_loops.classify(trace, model, sgd(model), **how)

    return played_loops.check_same_programs(loop, but=but)


class Outer(Net):
    """A net that is called by a method of its own, which Dynamo traces through torch's."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(*args, **kwargs)


class TestCompiled:
    """Under `torch.compile` Dynamo sees no segment, and what it returns is one."""

    @pytest.mark.parametrize("kind", [Net, Outer])
    def test_a_module(self, kind: type[Net]) -> None:
        check(lambda: torch.compile(kind().to("xla"), backend="xla", fullgraph=True))

    @pytest.mark.parametrize("kind", [Net, Outer])
    def test_a_function(self, kind: type[Net]) -> None:
        def loop(trace: Trace) -> None:
            model = kind().to("xla")
            logits = torch.compile(lambda x: model(x), backend="xla", fullgraph=True)
            played_loops.classify(trace, model, sgd(model), logits=logits)
            assert trace.segment(model) is None

        played_loops.compare(loop)

    def test_clipping(self) -> None:
        weight = nn.Parameter(torch.ones(4, device="xla"))
        weight.grad = torch.ones(4, device="xla")
        clip = torch.compile(
            lambda: nn.utils.clip_grad_norm_([weight], 1.0), backend="xla", fullgraph=True
        )
        for is_on in (False, True):
            with played_loops.played(is_on):
                torch.testing.assert_close(clip().cpu(), torch.tensor(1.0 if is_on else 2.0))


class TestModels:
    """A forward with its backward is one op, whatever layers stand in it."""

    def test_dropout_follows_the_stream(self) -> None:
        check(lambda: Net(dropout=0.25))

    def test_draws_between_calls(self) -> None:
        """Draws of the loop itself take their places in the stream."""

        def loop(trace: Trace) -> None:
            model = Net(dropout=0.25).to("xla")

            def draw(_: int) -> None:
                trace.read("draw", torch.rand(3, device="xla"))

            played_loops.classify(trace, model, sgd(model), before=draw)

        played_loops.check_played(loop)

    def test_the_stream_set_anew(self) -> None:
        def loop(trace: Trace) -> None:
            model = Net(dropout=0.25).to("xla")

            def seed(number: int) -> None:
                if number % 3 == 0:
                    torch.manual_seed(number)
                    spmd.manual_seed(number)

            played_loops.classify(trace, model, sgd(model), before=seed)

        played_loops.check_played(loop)

    def test_batch_norm(self) -> None:
        check(lambda: nn.Sequential(
            nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU(), nn.Linear(WIDTH, CLASSES)
        ))  # fmt: skip

    def test_convolutions(self) -> None:
        def make() -> nn.Module:
            return nn.Sequential(
                nn.Unflatten(1, (1, WIDTH)), nn.Conv1d(1, 4, 3, padding=1), nn.BatchNorm1d(4),
                nn.GELU(), nn.MaxPool1d(2), nn.Flatten(), nn.Linear(2 * WIDTH, CLASSES),
            )  # fmt: skip

        check(make)

    def test_embeddings_and_attention(self) -> None:
        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.embedding = nn.Embedding(16, WIDTH)
                layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, 0.1, batch_first=True)
                self.layers = nn.TransformerEncoder(layer, 2)
                self.head = nn.Linear(WIDTH, CLASSES)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                tokens = (x * 4).long().remainder(16)
                return self.head(self.layers(self.embedding(tokens)).mean(1))

        check(Model)

    @pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
    def test_recurrent_layers(self, kind: type[nn.Module]) -> None:
        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layers: Any = kind(1, WIDTH, batch_first=True)
                self.head = nn.Linear(WIDTH, CLASSES)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.head(self.layers(x.unsqueeze(-1))[0][:, -1])

        check(Model)

    def test_frozen_parameters(self) -> None:
        def make() -> nn.Module:
            net = Net()
            net.blocks[0].requires_grad_(False)
            return net

        check(make)

    def test_unfrozen_after_some_steps(self) -> None:
        def loop(trace: Trace) -> None:
            model = Net(num_blocks=1).to("xla")
            model.blocks.requires_grad_(False)

            def unfreeze(number: int) -> None:
                if number == 6:
                    model.blocks.requires_grad_(True)

            played_loops.classify(trace, model, sgd(model), steps=12, before=unfreeze)

        trace = played_loops.check_played(loop)
        assert all(trace.segment(part).num_replayed >= 5 for part in trace.parts), trace.explain()

    def test_shared_parameters(self) -> None:
        def make() -> nn.Module:
            net = Net()
            net.blocks[1].layer.weight = net.blocks[0].layer.weight
            return net

        check(make)

    def test_a_parameter_without_a_gradient(self) -> None:
        def make() -> nn.Module:
            net = Net()
            net.register_parameter("unused", nn.Parameter(torch.ones(3)))
            return net

        check(make)

    def test_parametrizations(self) -> None:
        def make() -> nn.Module:
            net = Net()
            torch.nn.utils.parametrizations.weight_norm(net.head)
            return net

        check(make)

    def test_spectral_norm(self) -> None:
        """Its buffers are written in forward."""

        def make() -> nn.Module:
            net = Net()
            torch.nn.utils.parametrizations.spectral_norm(net.head)
            return net

        check(make)

    def test_a_buffer_counts(self) -> None:
        class Model(Net):
            def __init__(self) -> None:
                super().__init__()
                self.register_buffer("count", torch.zeros(()))

            def forward(self, x: torch.Tensor) -> Any:
                self.count += 1
                return super().forward(x) / self.count

        check(Model)

    def test_a_custom_function(self) -> None:
        class Double(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
                ctx.save_for_backward(x)
                return x * 2

            @staticmethod
            def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
                (x,) = ctx.saved_tensors
                return gradient * 2 + x * 0.01

        class Model(Net):
            def forward(self, x: torch.Tensor) -> Any:
                return Double.apply(super().forward(x))

        check(Model)

    def test_activation_checkpoints(self) -> None:
        class Model(Net):
            def forward(self, x: torch.Tensor) -> Any:
                x = self.blocks[0](x)
                for block in self.blocks[1:]:
                    x = checkpoint(block, x, use_reentrant=False)
                return self.head(x)

        check(lambda: Model(num_blocks=3, dropout=0.25))


class TestForms:
    """Arguments and results are any pytrees."""

    def test_results(self) -> None:
        @dataclass
        class Output:
            logits: torch.Tensor
            hidden: torch.Tensor | None = None

        torch.utils._pytree.register_dataclass(Output)
        Named = collections.namedtuple("Named", ["logits", "hidden"])
        forms = {
            "tuple": (lambda y, x: (y, x), lambda out: out[0]),
            "list": (lambda y, x: [y, (x, None)], lambda out: out[0]),
            "dict": (lambda y, x: {"logits": y, "hidden": x}, lambda out: out["logits"]),
            "named tuple": (Named, lambda out: out.logits),
            "dataclass": (Output, lambda out: out.logits),
        }
        for name, (made, logits_of) in forms.items():

            class Model(Net):
                form = staticmethod(made)

                def forward(self, x: torch.Tensor) -> Any:
                    return self.form(super().forward(x), x * 2)

            def loop(trace: Trace, kind: Any = Model, read: Any = logits_of) -> None:
                model = kind().to("xla")
                played_loops.classify(trace, model, sgd(model), logits=lambda x: read(model(x)))

            trace = played_loops.check_played(loop)
            assert trace.segment(trace.parts[0]).num_replayed >= 4, name

    def test_keyword_arguments(self) -> None:
        class Model(Net):
            def forward(self, x: torch.Tensor, *, scale: float, mask: Any = None) -> Any:  # type: ignore[override]
                return super().forward(x) * scale * (1 if mask is None else mask["rows"])

        def loop(trace: Trace) -> None:
            model = Model().to("xla")
            mask = {"rows": torch.ones(8, 1, device="xla") / 2}
            played_loops.classify(
                trace, model, sgd(model), logits=lambda x: model(x, scale=0.5, mask=mask)
            )

        played_loops.check_played(loop)

    def test_the_loss_inside(self) -> None:
        class Model(Net):
            def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:  # type: ignore[override]
                logits = super().forward(x)
                return nn.functional.cross_entropy(logits, y), logits

        def loop(trace: Trace) -> None:
            model = Model().to("xla")
            optimizer = sgd(model)
            trace.watch(model, optimizer)
            for _ in range(STEPS):
                loss, logits = model(*trace.batch())
                loss.backward()
                optimizer.step()
                trace.read("logits", logits)
                trace.step(loss)
                optimizer.zero_grad()

        played_loops.check_played(loop)

    def test_two_losses_of_two_results(self) -> None:
        class Model(Net):
            def forward(self, x: torch.Tensor) -> Any:
                return super().forward(x), x @ self.head.weight.T

        def loop(trace: Trace) -> None:
            model = Model().to("xla")
            optimizer = sgd(model)
            trace.watch(model, optimizer)
            for number in range(2 * STEPS):
                x, y = trace.batch()
                first, second = model(x)
                loss = nn.functional.cross_entropy(first, y)
                if number % 2:  # gradients come to one result, then to both
                    loss = loss + second.square().mean()
                loss.backward()
                optimizer.step()
                trace.step(loss)
                optimizer.zero_grad()

        played_loops.compare(loop)

    def test_sizes_that_alternate(self) -> None:
        def loop(trace: Trace) -> None:
            model = Net().to("xla")
            optimizer = sgd(model)
            trace.watch(model, optimizer)
            for number in range(12):
                x, y = trace.batch(8 if number % 2 else 16)
                loss = nn.functional.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
                trace.step(loss)
                optimizer.zero_grad()

        played_loops.check_played(loop)

    def test_inputs_with_a_history(self) -> None:
        """A layer of the loop's own stands in front of the model."""

        def loop(trace: Trace) -> None:
            model, first = Net().to("xla"), nn.Linear(WIDTH, WIDTH).to("xla")
            optimizer = torch.optim.SGD([*model.parameters(), *first.parameters()], 0.1)
            trace.watch(first)
            played_loops.classify(
                trace, model, optimizer, logits=lambda x: model(torch.tanh(first(x)))
            )

        played_loops.check_played(loop)

    def test_an_input_is_a_view(self) -> None:
        def loop(trace: Trace) -> None:
            model = Net().to("xla")
            played_loops.classify(
                trace, model, sgd(model), logits=lambda x: model(x.T.contiguous().T[:, :])
            )

        played_loops.check_played(loop)

    def test_cpu_tensors_among_arguments(self) -> None:
        class Model(Net):
            def forward(self, x: torch.Tensor, scale: Any) -> Any:  # type: ignore[override]
                return super().forward(x) * scale

        def loop(trace: Trace) -> None:
            model = Model().to("xla")
            scales = iter(torch.arange(1.0, 20.0))
            played_loops.classify(trace, model, sgd(model), logits=lambda x: model(x, next(scales)))

        played_loops.compare(loop)


class TestPrecision:
    """Autocast and GradScaler."""

    @pytest.mark.parametrize("where", ["outside", "inside"])
    def test_autocast(self, where: str) -> None:
        class Model(Net):
            def forward(self, x: torch.Tensor) -> Any:
                with torch.autocast("xla", torch.bfloat16):
                    return super().forward(x).float()

        def loop(trace: Trace) -> None:
            model = (Model if where == "inside" else Net)().to("xla")

            def logits(x: torch.Tensor) -> torch.Tensor:
                is_outside = where == "outside"
                with torch.autocast("xla", torch.bfloat16, enabled=is_outside):
                    return model(x).float()

            played_loops.classify(trace, model, sgd(model), logits=logits)

        played_loops.check_played(loop)

    def test_bfloat16_weights(self) -> None:
        check(lambda: nn.Sequential(Net().to(torch.bfloat16), nn.Flatten()),
              place=lambda x: x.to(torch.bfloat16) if x.is_floating_point() else x)  # fmt: skip

    def test_a_gradient_scaler(self) -> None:
        """Its third step overflows, and is left out."""

        def loop(trace: Trace) -> None:
            model = Net().to("xla")
            optimizer = sgd(model)
            scaler = torch.amp.GradScaler("xla", init_scale=1024.0, growth_interval=4)
            trace.watch(model, optimizer)
            for number in range(STEPS + 2):
                x, y = trace.batch()
                with torch.autocast("xla", torch.float16):
                    loss = nn.functional.cross_entropy(model(x).float(), y)
                scaler.scale(loss * (1e30 if number == 5 else 1)).backward()
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
                trace.step(loss)
                trace.read("scale", scaler.get_scale())
                optimizer.zero_grad()

        trace = played_loops.compare(loop)
        assert trace.segment(trace.parts[0]).num_replayed >= 4, trace.explain()


class TestLoops:
    """What else happens in a step."""

    @pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
    def test_evaluations(self, context: Any) -> None:
        def loop(trace: Trace) -> None:
            model = Net(dropout=0.25).to("xla")

            def evaluate(_: int) -> None:
                model.eval()
                with context():
                    x, y = trace.batch()
                    trace.read("evaluation", nn.functional.cross_entropy(model(x), y))
                model.train()

            played_loops.classify(trace, model, sgd(model), after=evaluate)

        played_loops.check_played(loop)

    def test_two_models(self) -> None:
        """A generator and a discriminator, each with an optimizer."""

        def loop(trace: Trace) -> None:
            generator, critic = Net().to("xla"), nn.Linear(CLASSES, 1).to("xla")
            first, second = sgd(generator), torch.optim.Adam(critic.parameters(), 0.01)
            trace.watch(generator, critic, first, second)
            for _ in range(STEPS):
                noise, _ = trace.batch()
                real = trace.batch()[0][:, :CLASSES]
                fake = generator(noise)
                second.zero_grad()
                loss = nn.functional.softplus(critic(fake.detach())).mean()
                loss = loss + nn.functional.softplus(-critic(real)).mean()
                loss.backward()
                second.step()
                trace.step(loss)
                first.zero_grad()
                loss = nn.functional.softplus(-critic(fake)).mean()
                loss.backward()
                first.step()
                trace.step(loss)

        trace = played_loops.compare(loop)
        counts = [trace.segment(part).num_replayed for part in trace.parts]
        assert min(counts[0], *counts[2:]) >= 4, trace.explain()

    def test_a_teacher(self) -> None:
        def loop(trace: Trace) -> None:
            model = Net().to("xla")
            teacher = copy.deepcopy(model).requires_grad_(False)

            def logits(x: torch.Tensor) -> torch.Tensor:
                with torch.no_grad():
                    wanted = teacher(x)
                return model(x) - wanted

            played_loops.classify(trace, model, sgd(model), logits=logits)

        played_loops.check_played(loop)

    def test_a_layer_replaced(self) -> None:
        def loop(trace: Trace) -> None:
            model = Net().to("xla")

            def replace(number: int) -> None:
                if number == 6:
                    model.blocks[0] = Block().to("xla")

            played_loops.classify(trace, model, sgd(model), steps=12, before=replace)

        trace = played_loops.check_played(loop)
        assert trace.segment(trace.parts[0]).num_replayed >= 6, trace.explain()

    def test_an_attribute_changed(self) -> None:
        def loop(trace: Trace) -> None:
            model = Net().to("xla")

            def change(number: int) -> None:
                if number == 6:
                    model.blocks[0].scale = 0.5

            played_loops.classify(trace, model, sgd(model), steps=12, before=change)

        trace = played_loops.check_played(loop)
        assert trace.segment(trace.parts[0]).num_replayed >= 6, trace.explain()

    def test_a_layer_added(self) -> None:
        def loop(trace: Trace) -> None:
            model = Net().to("xla")
            optimizer = sgd(model)

            def add(number: int) -> None:
                if number == 6:
                    model.blocks.append(Block().to("xla"))
                    optimizer.add_param_group({"params": model.blocks[-1].parameters()})

            played_loops.classify(trace, model, optimizer, steps=13, before=add)

        trace = played_loops.check_played(loop)
        assert all(trace.segment(part).num_replayed >= 6 for part in trace.parts), trace.explain()

    def test_a_method_replaced(self) -> None:
        def loop(trace: Trace) -> None:
            model = Net().to("xla")

            def change(number: int) -> None:
                if number == 6:
                    block = model.blocks[0]
                    block.forward = lambda x: torch.relu(block.layer(x))

            played_loops.classify(trace, model, sgd(model), steps=12, before=change)

        trace = played_loops.check_played(loop)
        assert trace.segment(trace.parts[0]).num_replayed >= 6, trace.explain()

    def test_called_twice_in_a_step(self) -> None:
        def loop(trace: Trace) -> None:
            model = Net().to("xla")
            optimizer = sgd(model)
            trace.watch(model, optimizer)
            for _ in range(STEPS):
                (x, y), (other, _) = trace.batch(), trace.batch()
                loss = nn.functional.cross_entropy(model(x), y) + model(other).square().mean()
                loss.backward()
                optimizer.step()
                trace.step(loss)
                optimizer.zero_grad()

        played_loops.check_played(loop)

    def test_a_model_that_is_called_on_its_result(self) -> None:
        def loop(trace: Trace) -> None:
            model = Block().to("xla")
            head = nn.Linear(WIDTH, CLASSES).to("xla")
            optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], 0.1)
            trace.watch(head)
            played_loops.classify(trace, model, optimizer, logits=lambda x: head(model(model(x))))

        played_loops.compare(loop)

    def test_no_sync_between_steps(self) -> None:
        """All steps are one graph."""

        def loop(trace: Trace) -> None:
            model = Net().to("xla")
            optimizer = sgd(model)
            trace.watch(model, optimizer)
            losses = []
            for _ in range(STEPS):
                x, y = trace.batch()
                loss = nn.functional.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                losses.append(loss.detach())
            for loss in losses:
                trace.read("loss", loss)

        played_loops.check_played(loop, but=1)

    def test_copies_of_a_model(self) -> None:
        """A copy has a segment of its own."""

        def loop(trace: Trace) -> None:
            model = Net().to("xla")
            played_loops.classify(trace, model, sgd(model))
            other = copy.deepcopy(model)
            played_loops.classify(trace, other, sgd(other))

        trace = played_loops.check_played(loop)
        model, other = (trace.segment(trace.parts[place]) for place in (0, 2))
        assert model is not other

    def test_a_model_dies(self) -> None:
        def loop(trace: Trace) -> None:
            for _ in range(2):
                model = Net().to("xla")
                played_loops.classify(trace, model, sgd(model))
                trace.parts.clear()

        played_loops.compare(loop)

    def test_losses_that_nobody_differentiates(self) -> None:
        def loop(trace: Trace) -> None:
            model = Net(dropout=0.25).to("xla")

            def look(_: int) -> None:
                trace.read("logits", model(trace.batch()[0]))

            played_loops.classify(trace, model, sgd(model), before=look)

        played_loops.check_played(loop)

    def test_profiled(self) -> None:
        def loop(trace: Trace) -> None:
            model = Net().to("xla")
            with contextlib.suppress(StopIteration), torch.profiler.profile() as profile:
                played_loops.classify(trace, model, sgd(model), after=lambda _: profile.step())

        played_loops.check_played(loop)


class TestStates:
    """Results and states of several kinds."""

    def test_a_dataclass_unknown_to_torch(self) -> None:
        """It is no pytree."""

        @dataclass
        class Output:
            logits: torch.Tensor
            kind: str = "logits"

        class Model(Net):
            def forward(self, x: torch.Tensor) -> Any:
                return Output(super().forward(x))

        def loop(trace: Trace) -> None:
            model = Model().to("xla")
            played_loops.classify(trace, model, sgd(model), logits=lambda x: model(x).logits)

        played_loops.check_played(loop)

    def test_keyword_arguments(self) -> None:
        class Model(Net):
            def forward(self, x: torch.Tensor, *, scale: float, mask: Any = None) -> Any:  # type: ignore[override]
                return super().forward(x) * scale * (1 if mask is None else mask["rows"])

        def loop(trace: Trace) -> None:
            model = Model().to("xla")
            mask = {"rows": torch.ones(8, 1, device="xla") / 2}
            rates = iter([0.5, 0.5, 0.5, 0.5, 0.25, 0.125, 2.0, 3.0, 4.0, 5.0])
            played_loops.classify(
                trace, model, sgd(model), steps=10,
                logits=lambda x: model(x, scale=next(rates), mask=mask),
            )  # fmt: skip

        played_loops.check_played(loop, but=1)

    def test_evaluations_with_gradients(self) -> None:
        def loop(trace: Trace) -> None:
            model = Net(dropout=0.25).to("xla")

            def evaluate(_: int) -> None:
                model.eval()
                trace.read("evaluation", model(trace.batch()[0]))
                model.train()

            played_loops.classify(trace, model, sgd(model), after=evaluate)

        played_loops.check_played(loop)
