"""Guards by versions and counts: a change is seen at once, without a check, also after other writes
to the same containers, which change nothing."""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from typing import Any

import compiled_steps as steps
import jax
import pytest
import torch
from compiled_steps import Training, training
from support import check
from torch import nn

import spmd
from spmd.core.graph.errors import LostError
from spmd.core.run import executables


@pytest.fixture(autouse=True)
def no_checks() -> Iterator[None]:
    """Has no call be checked, which would find what a guard misses."""
    num_replays, spmd.config.check_replays = spmd.config.check_replays, 0
    yield
    spmd.config.check_replays = num_replays


def set_(name: str, value: Any) -> Callable[[Any], None]:
    return lambda thing: setattr(thing, name, value)


def scale(*, of_all: float = 1.5) -> float:
    return of_all


class Holder:
    """Containers of each kind that a function reads in order."""

    factor = 1.0

    def __init__(self) -> None:
        self.listed: list[Any] = [2.0, [3.0, {"deep": 5.0}]]
        self.named = {"a": 2.0, "b": 3.0}
        self.ordered = OrderedDict(self.named)
        self.queue = deque([2.0, 2.0, 3.0])
        self.empty: tuple[Any, ...] = ({}, [], set(), deque(), OrderedDict())
        self.cell: Any = None
        self.bias = torch.zeros(3, device="xla")
        self.unread = 0

    def numbers(self) -> list[float]:
        first, (second, inner) = self.listed
        deep = [value for box in self.empty for value in box]
        numbers = [first, second, inner["deep"], *self.named.values(), *self.ordered.values()]
        return [*numbers, *self.queue, *deep, scale()]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        for number in self.numbers():  # the order counts
            x = x * number + self.factor
        return x + self.bias


def reinsert(box: Any) -> None:
    box["a"] = box.pop("a")


CHANGES: dict[str, Callable[[Any], Any]] = {
    "an element": lambda own: own.listed.__setitem__(0, 7.0),
    "an element of a nested list": lambda own: own.listed[1].__setitem__(0, 7.0),
    "an element of a nested dict": lambda own: own.listed[1][1].update(deep=7.0),
    "a nested container": lambda own: own.listed[1].__setitem__(1, {"deep": 7.0}),
    "a container": set_("listed", [7.0, [3.0, {"deep": 5.0}]]),
    "an item": lambda own: own.named.update(b=7.0),
    "the order of a dict": lambda own: reinsert(own.named),
    "the order of an ordered dict": lambda own: own.ordered.move_to_end("a"),
    "the order of a deque": lambda own: own.queue.rotate(1),
    "keyword defaults": lambda own: setattr(scale, "__kwdefaults__", {"of_all": 7.0}),
    "a new key": lambda own: own.named.update(c=7.0),
    "a key less": lambda own: own.named.pop("a"),
    "an empty dict": lambda own: own.empty[0].update({7.0: 0}),
    "an empty list": lambda own: own.empty[1].append(7.0),
    "an empty set": lambda own: own.empty[2].add(7.0),
    "an empty deque": lambda own: own.empty[3].append(7.0),
    "an empty ordered dict": lambda own: own.empty[4].update({7.0: 0}),
    "an attribute of the class": lambda own: setattr(Holder, "factor", 7.0),
    "an attribute that hides the class's": set_("factor", 7.0),
    "a method": set_("numbers", lambda: [7.0]),
    "a method of the class": lambda own: setattr(Holder, "numbers", lambda self: [7.0]),
    "a tensor": lambda own: setattr(own, "bias", torch.ones(3, device="xla")),
    "a tensor's data": lambda own: setattr(own.bias, "data", torch.ones(3, device="xla")),
    "a tensor in place": lambda own: own.bias.add_(1),
}


@pytest.mark.parametrize("name", CHANGES)
def test_python_state(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for attribute in ("factor", "numbers"):
        monkeypatch.setattr(Holder, attribute, vars(Holder)[attribute])
    monkeypatch.setattr(scale, "__kwdefaults__", scale.__kwdefaults__)
    own, x = Holder(), torch.ones(3)
    compiled = spmd.compile(lambda x: own(x))
    for _ in range(3):
        compiled(x.to("xla"))
    num_recorded = compiled.num_recorded
    # equal values, other objects, and what nothing reads
    own.unread, own.named["a"], own.listed[0] = 1, float("2.0"), float("2.0")
    own.ordered["b"], own.empty[0]["gone"] = float("3.0"), 1
    del own.empty[0]["gone"]
    Holder.factor = float("1.0")
    for _ in range(2):
        compiled(x.to("xla"))
    assert compiled.num_recorded == num_recorded, compiled.explain()
    CHANGES[name](own)
    for _ in range(2):
        result = compiled(x.to("xla"))
        expected = x
        for number in own.numbers():
            expected = expected * number + own.factor
        check(result, expected + own.bias.cpu())


@pytest.mark.parametrize("kind", [dict, OrderedDict])
def test_the_order_of_a_dict_that_a_call_writes(kind: Any) -> None:
    def results(device: str, compiled: Callable[[Any], Any]) -> list[torch.Tensor]:
        box = kind(a=2.0, b=3.0, hidden=torch.ones(3).to(device))

        def step(x: torch.Tensor) -> torch.Tensor:
            for key in box:
                x = x if key == "hidden" else x * box[key] + 1
            box["hidden"] = box["hidden"] * 0.5 + x
            return box["hidden"] * 1

        step = compiled(step)
        values = [step(torch.ones(3).to(device)) for _ in range(4)]
        reinsert(box)
        return [*values, *[step(torch.ones(3).to(device)) for _ in range(3)]]

    for mine, expected in zip(
        results("xla", spmd.compile), results("cpu", lambda f: f), strict=True
    ):
        check(mine, expected)


def test_state_of_a_compiled_function_inside() -> None:
    own, x = Holder(), torch.ones(3)
    inner = spmd.compile(lambda x: x * own.unread)
    outer = spmd.compile(lambda x: inner(x) + 1)
    for own.unread in (2, 2, 2, 7, 7):
        check(outer(x.to("xla")), x * own.unread + 1)
    assert outer.num_replayed >= 2, outer.explain()


def test_data_that_a_failed_replay_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    total, launch = torch.zeros(3).to("xla"), executables.launch
    compiled = spmd.compile(lambda x: total.add_(x) * 1)
    for _ in range(3):
        compiled(torch.ones(3).to("xla"))
    assert compiled.num_replayed, compiled.explain()

    def failing(*arguments: Any) -> None:
        launch(*arguments)
        raise jax.errors.JaxRuntimeError("INTERNAL: no end")

    with monkeypatch.context() as patch:
        patch.setattr(executables, "launch", failing)
        with pytest.raises(RuntimeError, match="no end"):
            compiled(torch.ones(3).to("xla"))
    with pytest.raises(LostError, match="did not finish"):
        compiled(torch.ones(3).to("xla"))
    total.data = torch.full((3,), 3.0).to("xla")
    check(compiled(torch.ones(3).to("xla")), torch.full((3,), 4.0))


def _weight(own: Training) -> torch.Tensor:
    return own.model.last.weight


def _counters(own: Training) -> list[torch.Tensor]:
    return [state["step"] for state in own.optimizer.state.values()]


def _with_alias(own: Training) -> None:
    """Gives a counter other memory while its old memory is read elsewhere."""
    first = _counters(own)[0]
    own.extra["alias"] = first.data
    first.data = first + 10.0


def _two_hooks(own: Training) -> None:
    own.model.last.register_forward_hook(lambda *args: args[-1] * 2)
    own.model.last.register_forward_hook(lambda *args: args[-1].square())
    _weight(own).register_hook(lambda gradient: gradient * 2)
    _weight(own).register_hook(lambda gradient: gradient + 0.5)


def hooked() -> Training:
    own = training()
    _two_hooks(own)
    return own


def _first_as_last(hooks: Any) -> None:
    hooks.move_to_end(next(iter(hooks)))


def _group(own: Training) -> dict[str, Any]:
    return own.optimizer.param_groups[0]


def _doubled(parameter: torch.Tensor) -> None:
    assert parameter.grad is not None
    parameter.grad.mul_(2)


def _freeze(own: Training) -> None:
    torch.Tensor.requires_grad_(_weight(own), False)  # past the class's own attributes


OF_TRAINING: dict[str, tuple[Callable[[], Training], Callable[[Training], Any]]] = {
    "a parameter": (
        training,
        lambda own: set_("weight", nn.Parameter(torch.ones(3, 8, device="xla")))(own.model.last),
    ),
    "data": (training, lambda own: setattr(_weight(own), "data", torch.ones(3, 8, device="xla"))),
    "requires_grad": (training, _freeze),
    "a buffer": (
        training,
        lambda own: set_("running_mean", torch.ones(8, device="xla"))(own.model.norm),
    ),
    "data of a buffer": (
        training,
        lambda own: set_("data", torch.ones(8, device="xla"))(own.model.norm.running_mean),
    ),
    "a mode": (training, lambda own: own.model.norm.eval()),
    "a number": (training, lambda own: set_("p", 0.9)(own.model.dropout)),
    "a learning rate": (training, lambda own: _group(own).update(lr=0.5)),
    "a decay": (training, lambda own: _group(own).update(weight_decay=0.5)),
    "a switch": (training, lambda own: _group(own).update(maximize=True)),
    "a gradient": (
        training,
        lambda own: setattr(_weight(own), "grad", torch.ones(3, 8, device="xla")),
    ),
    "a gradient by its other name": (
        training,
        lambda own: setattr(_weight(own), "_grad", torch.ones(3, 8, device="xla")),
    ),
    "a gradient by a backward": (
        training,
        lambda own: _weight(own).backward(torch.ones(3, 8, device="xla")),
    ),
    "a module's hook": (
        training,
        lambda own: own.model.last.register_forward_hook(lambda *args: args[-1] * 2),
    ),
    "a parameter's hook": (training, lambda own: _weight(own).register_hook(lambda g: g * 2)),
    "a hook after accumulation": (
        training,
        lambda own: _weight(own).register_post_accumulate_grad_hook(_doubled),
    ),
    "the order of a module's hooks": (
        hooked,
        lambda own: _first_as_last(own.model.last._forward_hooks),
    ),
    "one hook less": (hooked, lambda own: _weight(own)._backward_hooks.popitem()),
    "a counter": (training, lambda own: _counters(own)[0].add_(10)),
    "all counters": (training, lambda own: [one.add_(10) for one in _counters(own)]),
    "a counter's memory": (training, _with_alias),
    "a counter of another state": (
        training,
        lambda own: own.optimizer.state[_weight(own)].update(step=torch.tensor(90.0)),
    ),
    "a moment": (
        training,
        lambda own: own.optimizer.state[_weight(own)]["exp_avg"].fill_(3.0),
    ),
    "data of a moment": (
        training,
        lambda own: set_("data", torch.ones(3, 8, device="xla"))(
            own.optimizer.state[_weight(own)]["exp_avg"]
        ),
    ),
}


@pytest.mark.parametrize("name", OF_TRAINING)
def test_state_of_a_training(name: str) -> None:
    make, change = OF_TRAINING[name]

    def benign(own: Training) -> None:
        """Writes that change nothing: attributes of tensors and modules, a hook that comes and
        goes, a gradient that does, data read and written."""
        _weight(own).unread = own.model.unread = 1
        _weight(own).grad = torch.ones(3, 8, device="xla")
        del _weight(own).grad
        _weight(own).register_hook(lambda gradient: gradient * 3).remove()
        own.model.last.register_forward_hook(lambda *args: args[-1] * 3).remove()
        with torch.no_grad():
            own.model.first.weight.mul_(1.5)

    plain, own = make(), make()
    compiled = spmd.compile(own.step)
    expected = steps.run(
        plain.step, 9, before=[(4, lambda: benign(plain)), (6, lambda: change(plain))]
    )
    num_recorded: list[int] = []
    changes: list[tuple[int, Callable[[], Any]]] = [
        (4, lambda: num_recorded.append(compiled.num_recorded)),
        (4, lambda: benign(own)),
        (6, lambda: num_recorded.append(compiled.num_recorded)),
        (6, lambda: change(own)),
    ]
    assert steps.run(compiled, 9, before=changes) == expected, compiled.explain()
    assert num_recorded[0] == num_recorded[1] <= 3, compiled.explain()


@pytest.mark.parametrize("spec", [("fsdp", None), (None, "fsdp"), (None, None)])
def test_a_sharding(spec: Any, mesh8: spmd.Mesh) -> None:
    """A parameter that lies in another sharding stays in it, and its values are right."""

    def make() -> Training:
        own = training(dropout=0.0)
        spmd.mark_sharding(own.model.first.weight, mesh8, ("fsdp", None))
        return own

    own, plain = make(), make()
    compiled = spmd.compile(own.step)
    expected = steps.run(plain.step, 8)
    losses = steps.run(
        compiled, 8, before=[(5, lambda: spmd.mark_sharding(own.model.first.weight, mesh8, spec))]
    )
    assert losses == pytest.approx(expected, rel=1e-5)
    assert spmd.get_sharding(own.model.first.weight).partition_spec(2) == spec


def test_a_sharding_of_state_that_a_call_only_reads(mesh8: spmd.Mesh) -> None:
    weight = torch.arange(64.0).reshape(8, 8)
    moved = spmd.mark_sharding(weight.to("xla"), mesh8, ("fsdp", None))
    compiled, x = spmd.compile(lambda x: x @ moved), torch.ones(2, 8)
    for spec in [("fsdp", None)] * 3 + [(None, "fsdp")] * 2 + [(None, None)] * 2:
        spmd.mark_sharding(moved, mesh8, spec)
        check(compiled(x.to("xla")), x @ weight)
    assert compiled.num_recorded >= 2, compiled.explain()


def test_inside_use_sharding(mesh8: spmd.Mesh) -> None:
    """A call inside of the context is recorded, one after it is replayed."""
    weight = torch.arange(64.0).reshape(8, 8)
    held = spmd.mark_sharding(weight.to("xla"), mesh8, ("fsdp", None))
    compiled, x = spmd.compile(lambda x: x @ held), torch.ones(2, 8)
    with spmd.use_sharding([held], mesh8, (None, None)):
        check(compiled(x.to("xla")), x @ weight)
    for _ in range(3):
        check(compiled(x.to("xla")), x @ weight)
    num_replayed = compiled.num_replayed
    with spmd.use_sharding([held], mesh8, (None, None)):
        check(compiled(x.to("xla")), x @ weight)
    assert compiled.num_replayed == num_replayed, compiled.explain()


@torch.no_grad()
def test_a_row_that_leaves_its_stack() -> None:
    """Another program moves one of the weights that the call takes as a stack to its own mesh."""
    torch.manual_seed(0)
    layers, x = nn.ModuleList(nn.Linear(8, 8) for _ in range(6)), torch.randn(4, 8)

    def forward(x: torch.Tensor) -> torch.Tensor:
        for layer in layers:
            x = torch.tanh(layer(x))
        return x

    expected, product = forward(x), layers[2].weight @ torch.ones(8, 8)
    layers = layers.to("xla")
    compiled = spmd.compile(forward)
    for _ in range(3):
        check(compiled(x.to("xla")), expected)
    mesh = spmd.Mesh(range(4), (4,), ("rows",))
    ones = spmd.mark_sharding(torch.ones(8, 8).to("xla"), mesh, ("rows", None))
    check(layers[2].weight @ ones, product)
    for _ in range(2):
        check(compiled(x.to("xla")), expected)
    assert compiled.num_replayed >= 2, compiled.explain()
