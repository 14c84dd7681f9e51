"""Played loops by the Python state that decides what a call records: equal bits to the same loops
recorded."""

import enum
import gc
import itertools
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import played_loops
import pytest
import torch
import torch.nn.utils.prune
from played_loops import CLASSES, WIDTH, Block, Net, Trace
from torch import nn

import spmd


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)


def changed_at_the_seventh(make: Callable[[], Any], change: Callable[[Any], None]) -> Any:
    """A loop of twelve steps whose model is changed in front of the seventh."""

    def loop(trace: Trace) -> None:
        model = make().to("xla")

        def before(number: int) -> None:
            if number == 6:
                change(model)

        played_loops.classify(trace, model, sgd(model), steps=12, before=before)

    return loop


class Kind(enum.Enum):
    PLAIN = 1
    HALVED = 2


class Options:
    scale = 1.0


class Reader(Net):
    """It reads state of many kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers, self.options = [1.0, 2.0], {"scale": 1.0}
        self.kind, self.names, self.object = Kind.PLAIN, {"a"}, Options()
        self.chosen: Any = torch.tanh
        self.inner = nn.ParameterDict({"scale": nn.Parameter(torch.ones(CLASSES))})

    def forward(self, x: torch.Tensor) -> Any:
        x = super().forward(x) * self.numbers[-1] * self.options["scale"]
        x = x * (0.5 if self.kind is Kind.HALVED else 1.0) * len(self.names) * self.object.scale
        for scale in self.inner.values():
            x = x * scale
        return self.chosen(x)


CHANGES: dict[str, Callable[[Any], Any]] = {
    "an item of a list": lambda model: model.numbers.__setitem__(1, 3.0),
    "a list that grows": lambda model: model.numbers.append(0.5),
    "a list replaced": lambda model: setattr(model, "numbers", [1.0, 2.0, 0.5]),
    "an item of a dict": lambda model: model.options.update(scale=0.5),
    "an enumeration": lambda model: setattr(model, "kind", Kind.HALVED),
    "a set": lambda model: model.names.add("b"),
    "an attribute of an object": lambda model: setattr(model.object, "scale", 0.5),
    "an object replaced": lambda model: setattr(model, "object", type("O", (), {"scale": 0.5})()),
    "a function": lambda model: setattr(model, "chosen", torch.relu),
    "a layer's eps": lambda model: setattr(model.blocks[0].norm, "eps", 0.5),
    "a layer's forward": lambda model: setattr(model.blocks[0], "forward", lambda x: x * 0.5),
    "a weight that is frozen": lambda model: model.head.weight.requires_grad_(False),
    "a module removed": lambda model: model.blocks.__delitem__(0),
    "a module put in front": lambda model: model.blocks.insert(0, nn.Tanh()),
    "a mode": lambda model: model.eval(),
    "a hook": lambda model: model.head.register_forward_hook(lambda module, args, y: y * 0.5),
    "a hook of a gradient": lambda model: model.head.weight.register_hook(lambda g: g * 0.5),
    "a buffer": lambda model: model.register_buffer("unused", torch.ones(1, device="xla")),
}


class TestChanges:
    """A change between calls is seen at the next one."""

    @pytest.mark.parametrize("name", CHANGES)
    def test_seen(self, name: str) -> None:
        loop = changed_at_the_seventh(Reader, CHANGES[name])
        trace = played_loops.check_played(loop, but=1)
        segment = trace.segment(trace.parts[0])
        assert segment.num_recorded >= (2 if name == "a buffer" else 3), segment.explain()

    def test_a_class(self) -> None:
        """Its forward, and an attribute of it."""

        class Model(Net):
            scale = 1.0

            def forward(self, x: torch.Tensor) -> Any:
                return super().forward(x) * self.scale

        def loop(trace: Trace) -> None:
            model, original = Model().to("xla"), Model.forward

            def change(number: int) -> None:
                if number == 6:
                    Model.scale = 0.5
                elif number == 12:
                    Model.forward = lambda self, x: original(self, x) * 2  # type: ignore[method-assign]

            try:
                played_loops.classify(trace, model, sgd(model), steps=18, before=change)
            finally:
                Model.scale, Model.forward = 1.0, original  # type: ignore[method-assign]

        played_loops.check_played(loop)

    def test_autocast(self) -> None:
        def loop(trace: Trace) -> None:
            model = Net().to("xla")
            settings = iter([*[False] * 5, *[True] * 5, *[False] * 5])

            def logits(x: torch.Tensor) -> torch.Tensor:
                with torch.autocast("xla", torch.bfloat16, enabled=next(settings)):
                    return model(x).float()

            played_loops.classify(trace, model, sgd(model), steps=15, logits=logits)

        played_loops.check_played(loop)

    def test_the_dtype_of_autocast(self) -> None:
        def loop(trace: Trace) -> None:
            model = Net().to("xla")
            dtypes = iter([*[torch.bfloat16] * 6, *[torch.float16] * 6])

            def logits(x: torch.Tensor) -> torch.Tensor:
                with torch.autocast("xla", next(dtypes)):
                    return model(x).float()

            played_loops.classify(trace, model, sgd(model), steps=12, logits=logits)

        played_loops.check_played(loop)

    def test_options_of_an_optimizer(self) -> None:
        """All of them change at each step."""

        def loop(trace: Trace) -> None:
            model = Net().to("xla")
            optimizer = torch.optim.AdamW(model.parameters(), 0.01)

            def change(number: int) -> None:
                (group,) = optimizer.param_groups
                group["lr"], group["weight_decay"] = 0.01 / (number + 1), 0.1 / (number + 1)
                group["betas"] = (0.9 - 0.01 * number, 0.99)

            played_loops.classify(trace, model, optimizer, steps=12, before=change)

        played_loops.compare(loop)


class TestArguments:
    """Arguments that are no tensors."""

    @pytest.mark.parametrize("kind", ["array", "object", "list", "string", "integer", "iterator"])
    def test_read(self, kind: str) -> None:
        class Model(Net):
            def forward(self, x: torch.Tensor, value: Any) -> Any:  # type: ignore[override]
                scale = {
                    "array": lambda: float(value[0]),
                    "object": lambda: value.scale,
                    "list": lambda: sum(value[0]),
                    "string": lambda: float(len(value)),
                    "integer": lambda: value,
                    "iterator": lambda: next(value),
                }[kind]()
                return super().forward(x) * scale

        def loop(trace: Trace) -> None:
            model, array, options = Model().to("xla"), np.ones(2), Options()
            iterator, number = itertools.cycle([1, 2, 3]), 0

            def logits(x: torch.Tensor) -> torch.Tensor:
                nonlocal number
                number += 1
                scale = 1 if number < 7 else 2
                array[0] = options.scale = float(scale)
                return model(x, {
                    "array": array, "object": options, "list": [[scale, 1]], "string": "a" * scale,
                    "integer": scale, "iterator": iterator,
                }[kind])  # fmt: skip

            played_loops.classify(trace, model, sgd(model), steps=12, logits=logits)

        played_loops.compare(loop)

    def test_an_iterator_of_the_model(self) -> None:
        class Model(Net):
            def __init__(self) -> None:
                super().__init__()
                self.scales = itertools.cycle([1.0, 0.5, 2.0])

            def forward(self, x: torch.Tensor) -> Any:
                return super().forward(x) * next(self.scales)

        def loop(trace: Trace) -> None:
            model = Model().to("xla")
            played_loops.classify(trace, model, sgd(model), steps=12)

        played_loops.compare(loop)


class TestModules:
    """Modules with state of their own kind."""

    def test_lazy_layers(self) -> None:
        def loop(trace: Trace) -> None:
            model = nn.Sequential(nn.LazyLinear(WIDTH), nn.ReLU(), nn.LazyLinear(CLASSES)).to("xla")
            model(trace.batch()[0])
            played_loops.classify(trace, model, sgd(model))

        played_loops.check_played(loop)

    @pytest.mark.parametrize("name", ["weight_norm", "spectral_norm"])
    @pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated")
    def test_norms_by_hooks(self, name: str) -> None:
        """Their hooks set a weight that is no parameter."""

        def loop(trace: Trace) -> None:
            model = Net()
            getattr(nn.utils, name)(model.head)
            model.to("xla")
            played_loops.classify(trace, model, sgd(model))

        played_loops.compare(loop)

    def test_pruned_weights(self) -> None:
        def loop(trace: Trace) -> None:
            model = Net().to("xla")
            torch.nn.utils.prune.l1_unstructured(model.head, "weight", 0.5)
            played_loops.classify(trace, model, sgd(model))

        played_loops.compare(loop)

    def test_a_frozen_critic(self) -> None:
        """Gradients go through a model that has none of its own."""

        def loop(trace: Trace) -> None:
            model, critic = Net().to("xla"), nn.Linear(CLASSES, CLASSES).to("xla")
            critic.requires_grad_(False)
            trace.watch(critic)
            played_loops.classify(trace, model, sgd(model), logits=lambda x: critic(model(x)))

        played_loops.check_played(loop)

    def test_a_module_without_weights(self) -> None:
        def loop(trace: Trace) -> None:
            model, noise = Net().to("xla"), nn.Sequential(nn.Dropout(0.5), nn.Softsign())
            trace.watch(noise)
            played_loops.classify(trace, model, sgd(model), logits=lambda x: model(noise(x)))

        played_loops.check_played(loop)

    def test_images(self) -> None:
        def loop(trace: Trace) -> None:
            model = nn.Sequential(
                nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(),
                nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, CLASSES),
            ).to("xla", memory_format=torch.channels_last)  # fmt: skip

            def logits(x: torch.Tensor) -> torch.Tensor:
                images = x.view(8, 1, 2, 4).contiguous(memory_format=torch.channels_last)
                return model(images)

            played_loops.classify(trace, model, sgd(model), logits=logits)

        played_loops.check_played(loop)

    def test_a_call_of_its_own(self) -> None:
        class Model(Net):
            def __call__(self, x: torch.Tensor) -> Any:
                return super().__call__(x) * 0.5

        def loop(trace: Trace) -> None:
            model = Model().to("xla")
            played_loops.classify(trace, model, sgd(model))

        played_loops.compare(loop)

    def test_nested_calls_of_one_model(self) -> None:
        """A module that calls itself."""

        class Model(Net):
            def forward(self, x: torch.Tensor, depth: int = 2) -> Any:  # type: ignore[override]
                if depth:
                    return self(self.blocks[0](x), depth=depth - 1)
                return super().forward(x)

        def loop(trace: Trace) -> None:
            model = Model().to("xla")
            played_loops.classify(trace, model, sgd(model))

        played_loops.check_played(loop)


class TestMemory:
    """Nothing of a step outlives it."""

    def test_what_lives(self) -> None:
        """As many tensors on the device after many steps as after some."""
        with played_loops.played():
            model = nn.Sequential(Block(), nn.Linear(WIDTH, CLASSES)).to("xla")
            optimizer = sgd(model)
            counts = []
            for _ in range(12):
                x, y = Trace().batch()
                loss = nn.functional.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                loss.item()
                del x, y, loss
                gc.collect()
                counts.append(_num_live())
        assert len(set(counts[6:])) == 1, counts

    def test_a_model_is_freed(self) -> None:
        with played_loops.played():
            trace = Trace()
            model = Net().to("xla")
            optimizer = sgd(model)
            played_loops.classify(trace, model, optimizer)
            assert trace.segment(model).num_replayed >= 4
            ref, weight = weakref.ref(model), weakref.ref(model.head.weight)
            trace.parts.clear()
            del model, optimizer
            gc.collect()
        assert ref() is None and weight() is None


def _num_live() -> int:
    return sum(ref() is not None for ref in spmd.core.record.storage.LIVE)
