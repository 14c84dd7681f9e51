"""Calls without gradients of a module that writes a cache in place are recorded by themselves, and
no others."""

import array
import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import spmd
from spmd.steps.replay.replay import Replay


class Summing(nn.Module):
    """Adds its input to a buffer at a position."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("seen", torch.zeros(8, 4))

    def forward(self, x: Tensor, position: Tensor) -> Tensor:
        self.seen.index_copy_(0, position, self.linear(x))
        return self.seen.sum(0)


def call_of(module: nn.Module) -> Any:
    """The recorded calls of a module, or None; the slot of the class is that of all modules for a
    moment."""
    return vars(module).get("_compiled_call_impl")


def run(module: nn.Module, device: str, count: int = 6, *, reads: bool = True) -> list[Tensor]:
    found, position, x = (
        [],
        torch.zeros(1, dtype=torch.long, device=device),
        torch.ones(1, 4, device=device),
    )
    for _ in range(count):
        result = module(x, position)
        position = position + 1
        x = result[None] * 0.5
        found.append(result.cpu() if reads else result)
    return [one.cpu() for one in found]


def pair() -> tuple[Summing, Any]:
    torch.manual_seed(0)
    module = Summing()
    return module, copy.deepcopy(module).to("xla")


@pytest.mark.parametrize("reads", [True, False])
def test_loop_of_ones_own(reads: bool) -> None:
    module, on_xla = pair()
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(run(on_xla, "xla", reads=reads), run(module, "cpu"))
    call = call_of(on_xla)
    assert call.num_recorded == 1
    assert call.num_replayed >= 10
    torch.testing.assert_close(on_xla.seen.cpu(), module.seen)


def test_gradients_are_those_of_the_module() -> None:
    module, on_xla = pair()
    for one, device in ((module, "cpu"), (on_xla, "xla")):
        with torch.no_grad():
            run(one, device)
        one.seen.zero_()
        one.linear(torch.ones(1, 4, device=device)).sum().backward()
    torch.testing.assert_close(on_xla.linear.weight.grad.cpu(), module.linear.weight.grad)


class Rows:
    """An object of tensors, which a call writes."""

    def __init__(self, device: str) -> None:
        self.first, self.second = (torch.zeros(2, 4, device=device) for _ in range(2))


class Filling(nn.Module):
    def forward(self, x: Tensor, rows: Rows) -> Tensor:
        rows.first.add_(x)
        rows.second.mul_(0.5).add_(rows.first)
        return rows.second.sum()


def test_tensors_of_an_argument_are_written_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """They keep their data objects, in turns of two objects, too; views see each write, and a copy
    stays as it was."""
    replayed_writes = Replay._own_data
    num_in_place: list[int] = []

    def counted(replay: Replay, flat: Any) -> Any:
        own = replayed_writes(replay, flat)
        num_in_place.append(len(own))
        return own

    monkeypatch.setattr(Replay, "_own_data", counted)
    found = []
    for device in ("cpu", "xla"):
        module, objects = Filling().to(device), [Rows(device) for _ in range(2)]
        x, view = torch.ones(2, 4, device=device), objects[0].first[1]
        with torch.no_grad():
            results = [module(x, rows).cpu() for _ in range(4) for rows in objects]
            copied = objects[1].second.clone()
            results += [view.cpu() + 0, *(module(x * 2, rows).cpu() for rows in objects)]
            objects[1].first = objects[1].first * 2
            results += [view.cpu() + 0, *(module(x, rows).cpu() for rows in objects), copied.cpu()]
        found.append(results)
    torch.testing.assert_close(found[1], found[0])
    assert len(num_in_place) >= 6 and {*num_in_place} == {2}
    assert call_of(module).num_recorded == 1, call_of(module).explain()


def test_what_changes_is_seen() -> None:
    """A weight that is written, one that is replaced, and a hook."""
    module, on_xla = pair()
    with torch.no_grad():
        run(on_xla, "xla"), run(module, "cpu")
        for one in (module, on_xla):
            one.linear.weight.mul_(0.5)
        torch.testing.assert_close(run(on_xla, "xla"), run(module, "cpu"))
        for one in (module, on_xla):
            one.linear.weight = nn.Parameter(one.linear.weight.detach() * 2)
        torch.testing.assert_close(run(on_xla, "xla"), run(module, "cpu"))
        for one in (module, on_xla):
            one.linear.register_forward_hook(lambda _module, _args, result: result + 1)
        torch.testing.assert_close(run(on_xla, "xla"), run(module, "cpu"))


def test_copies_and_pickles_are_plain() -> None:
    _, on_xla = pair()
    with torch.no_grad():
        for _ in range(3):
            run(on_xla, "xla")
        assert call_of(on_xla) is not None
        for other in (
            copy.deepcopy(on_xla),
            pickle.loads(pickle.dumps(copy.deepcopy(on_xla).cpu())),
        ):
            assert call_of(other) is None


def test_a_module_without_a_cache_stays() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).to("xla")
    module(torch.randn(8, 4, device="xla")).sum().backward()
    module.eval()
    with torch.no_grad():
        for _ in range(4):
            module(torch.randn(8, 4, device="xla")).sum().item()
    assert call_of(module) is None


def test_why_not_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    class Reading(Summing):
        def forward(self, x: Tensor, position: Tensor) -> Tensor:
            result = super().forward(x, position)
            return result if result.sum().item() < 1e9 else -result

    module = Reading().to("xla")
    with torch.no_grad():
        run(module, "xla"), run(module, "xla")
    assert capsys.readouterr().err.count("Reading runs uncompiled: it reads a value") == 1
    assert call_of(module) is None


def test_calls_are_checked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """State that no guard sees ends the replay of the module's calls, within the bound."""

    class Scaled(Summing):
        scale = array.array("d", [2.0])

        def forward(self, x: Tensor, position: Tensor) -> Tensor:
            return super().forward(x, position) * self.scale[0]

    def rows(module: nn.Module, device: str, count: int) -> list[Tensor]:
        """Rows of calls from a line of its own: whether a module is looked at goes by how often a
        line has run."""
        place, x = torch.zeros(1, dtype=torch.long, device=device), torch.ones(1, 4, device=device)
        return [module(x, place).cpu() for _ in range(count)]

    monkeypatch.setattr(spmd.config, "check_replays", 3)
    module = Scaled()
    on_xla = copy.deepcopy(module).to("xla")
    with torch.no_grad():
        torch.testing.assert_close(rows(on_xla, "xla", 18), rows(module, "cpu", 18))
        call = call_of(on_xla)
        assert call.num_checked >= 4 and call.num_recorded == 1, call.explain()
        Scaled.scale[0] = 3.0
        rows(on_xla, "xla", 3)
        assert (
            "Scaled runs uncompiled: what no guard sees has changed: aten.mul"
            in capsys.readouterr().err
        )
        assert call_of(on_xla) is None
        torch.testing.assert_close(rows(on_xla, "xla", 3), rows(module, "cpu", 3))
