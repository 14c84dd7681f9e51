"""The objects that a step reaches: what is found, what is restored, and the names of its
tensors."""

import collections
from typing import Any

import pytest
import torch
from torch import nn

from spmd.core import storage_of
from spmd.core.step.objects import Objects, outermost
from spmd.core.step.state_names import StateNames


class Holder:
    """An object with attributes."""

    def __init__(self) -> None:
        self.count, self.names = 0, ["a"]

    def step(self) -> None:
        """Reaches the object itself."""


class Refusing(dict[str, Any]):
    """A dict whose own methods refuse writes, as those of the outputs of transformers do."""

    def update(self, *args: Any, **kwargs: Any) -> None:
        raise TypeError("update is refused")

    clear = update  # type: ignore[assignment]


class TestRestore:
    """Containers have their contents, in their order, and the same objects, after `restore`."""

    @pytest.mark.parametrize(
        ("container", "change"),
        [
            ([1, 2], lambda box: box.append(3)),
            ({"a": 1, "b": 2}, lambda box: (box.pop("a"), box.setdefault("a", 1))),
            (collections.OrderedDict(a=1), lambda box: box.update(b=2)),
            (collections.OrderedDict(a=1, b=2), lambda box: box.move_to_end("a")),
            (Refusing(a=1), lambda box: box.__setitem__("b", 2)),
            ({1, 2}, lambda box: box.add(3)),
            (collections.deque([1, 2], maxlen=2), lambda box: box.append(3)),
        ],
        ids=[
            "list",
            "order of a dict",
            "OrderedDict",
            "its order",
            "dict that refuses",
            "set",
            "deque",
        ],
    )
    def test_containers(self, container: Any, change: Any) -> None:
        def step() -> Any:
            return container

        before = list(container.items() if isinstance(container, dict) else container)
        objects = Objects.of_step(step, ())
        change(container)
        assert list(container.items() if isinstance(container, dict) else container) != before
        objects.restore()
        assert list(container.items() if isinstance(container, dict) else container) == before

    def test_attributes(self) -> None:
        holder = Holder()
        names = holder.names
        objects = Objects.of_step(holder.step, ())
        holder.count, holder.names, holder.more = 1, ["b"], 2  # type: ignore[attr-defined]
        names.append("c")
        objects.restore()
        assert vars(holder) == {"count": 0, "names": ["a"]} and holder.names is names

    def test_variables(self) -> None:
        total = 0

        def step() -> None:
            nonlocal total
            total += 1

        objects = Objects.of_step(step, ())
        step()
        assert total == 1
        objects.restore()
        assert total == 0

    def test_a_variable_without_a_value(self) -> None:
        def step() -> Any:
            return later

        objects = Objects.of_step(step, ())
        later = 1
        objects.restore()
        assert step() == 1  # it is left as it is

    def test_globals_of_the_step_alone(self) -> None:
        mine: dict[str, Any] = {"count": 0, "other": 0}
        exec("def step():\n    global count\n    count += 1\n", mine)
        objects = Objects.of_step(mine["step"], ())
        mine["step"]()
        mine["other"] = 1
        objects.restore()
        assert mine["count"] == 0 and mine["other"] == 1  # the step does not name it


class TestFound:
    """Tensors are found through keys, methods and partial functions; each object once."""

    def test_a_parameter_that_is_only_a_key(self) -> None:
        weight = nn.Parameter(torch.zeros(2))
        objects = Objects.of_step(lambda: None, {weight: {"step": 1}})
        assert [tensor for _, tensor in objects.tensors.values()] == [weight]

    def test_outermost(self) -> None:
        model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2)))
        found = Objects.of_step(model, ()).of(nn.Module)
        assert len(found) == 4 and outermost(found) == [model]


class TestStateNames:
    """Each storage has one name: by the path in its module, then by its optimizer."""

    def test_roles(self) -> None:
        model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).to("xla")
        extra = torch.ones(2, device="xla", requires_grad=True)
        other = torch.ones(3, device="xla")
        optimizer = torch.optim.SGD([*model.parameters(), extra], lr=0.1, momentum=0.9)
        (model(torch.ones(4, 2, device="xla")) * extra).sum().backward()
        optimizer.step()

        def step() -> Any:
            return model, optimizer, other

        names = StateNames(Objects.of_step(step, ()))
        rows = {named.name: named.role for named in names.named.values()}
        assert rows["0.weight"] == "parameter" and rows["1.running_mean"] == "buffer"
        assert (
            rows["0.weight.grad"] == "gradient"
            and rows["optimizer.0.weight.momentum_buffer"] == "optimizer state"
        )
        named = names.of(storage_of(extra))  # type: ignore[arg-type]
        assert named is not None and named.role == "parameter" and named.tensor is extra
        named = names.of(storage_of(other))  # type: ignore[arg-type]
        assert named is not None and named.role == "state"
        assert names.of(None) is None

    def test_one_name_for_two_modules(self) -> None:
        first, second = nn.Linear(2, 2, device="xla"), nn.Linear(2, 2, device="xla")
        names = StateNames(Objects.of_step(lambda: (first, second), ()))
        assert sorted(named.name for named in names.named.values()) == [
            "bias",
            "bias.2",
            "weight",
            "weight.2",
        ]

    def test_a_wrapper_has_no_name(self) -> None:
        model = nn.DataParallel(nn.Linear(2, 2, device="xla"))
        names = StateNames(Objects.of_step(model, ()))
        assert sorted(named.name for named in names.named.values()) == ["bias", "weight"]

    def test_a_view_stands_for_all_of_its_memory(self) -> None:
        view = torch.ones(4, 2, device="xla")[1:]
        (named,) = StateNames(Objects.of_step(lambda: view, ())).named.values()
        assert named.tensor.shape == (4, 2)
