"""Pickling, torch.save and torch.load, copy, dlpack, numpy, hashing."""

import copy
import io
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from support import run_script
from torch import nn

import spmd


def saved(value: Any) -> io.BytesIO:
    """The bytes that torch.save writes."""
    made = io.BytesIO()
    torch.save(value, made)
    made.seek(0)
    return made


def tied() -> nn.Module:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3)).to("xla")
    model[2].weight = model[0].weight
    return model


class TestSave:
    """A file holds plain CPU tensors, which every torch reads; where the library is, they come back
    onto the device."""

    def test_tensors(self) -> None:
        x = torch.arange(6.0).to("xla").view(2, 3)
        for tensor in (
            x,
            x.t(),
            x[1],
            x.to(torch.bfloat16),
            x.to(torch.float8_e4m3fn),
            x > 2,
            x + 1j,
            (x + 1j).conj(),
        ):
            pickled = pickle.loads(pickle.dumps(tensor))
            on_cpu = torch.load(saved(tensor), map_location="cpu")
            assert type(on_cpu) is torch.Tensor and on_cpu.device.type == "cpu"
            for loaded in (torch.load(saved(tensor)), on_cpu, pickled):
                assert loaded is on_cpu or loaded.device.type == "xla"
                assert loaded.dtype == tensor.dtype and loaded.stride() == tensor.stride()
                assert torch.equal(
                    loaded.cpu().float() if loaded.dtype.itemsize == 1 else loaded.cpu(),
                    tensor.cpu().float() if loaded.dtype.itemsize == 1 else tensor.cpu(),
                )
                assert loaded.requires_grad == tensor.requires_grad

    def test_what_came_from_the_cpu_stays_there(self) -> None:
        for value in (torch.ones(2), nn.Linear(2, 2).weight):
            for loaded in (torch.load(saved(value)), pickle.loads(pickle.dumps(value))):
                assert loaded.device.type == "cpu" and type(loaded) is type(value)
        both = torch.load(saved({"here": torch.ones(2).to("xla"), "there": torch.ones(2)}))
        assert (both["here"].device.type, both["there"].device.type) == ("xla", "cpu")

    @pytest.mark.parametrize("zipped", [True, False])
    def test_map_location(self, zipped: bool) -> None:
        """Nothing, or a dict that does not name the device, leaves it where it was; all else is as
        in torch."""
        x, made = torch.arange(3.0).to("xla"), io.BytesIO()
        torch.save([x, nn.Parameter(x)], made, _use_new_zipfile_serialization=zipped)
        places: list[tuple[Any, str]] = [
            (None, "xla"),
            ({"cuda:0": "cpu"}, "xla"),
            ({"xla:0": "xla"}, "xla"),
            ("xla:0", "xla"),
            ("cpu", "cpu"),
            ({"xla:0": "cpu"}, "cpu"),
            (torch.device("cpu"), "cpu"),
            (lambda storage, location: storage, "cpu"),
            ("meta", "meta"),
        ]
        for place, expected in places:
            made.seek(0)
            loaded, parameter = torch.load(made, map_location=place)
            assert loaded.device.type == parameter.device.type == expected, place
            assert isinstance(parameter, nn.Parameter) and (
                expected == "meta" or loaded.tolist() == [0.0, 1.0, 2.0]
            )
        made.seek(0)
        with pytest.raises(RuntimeError, match="there is no device xla:1"):
            torch.load(made, map_location="xla:1")

    def test_files_of_earlier_versions(self) -> None:
        """They do not say where their tensors were."""
        x = torch.arange(3.0).to("xla")
        assert torch.load(saved(x.cpu())).device.type == "cpu"
        assert torch.load(saved(x.cpu()), map_location="xla").device.type == "xla"

    def test_parameters(self) -> None:
        weight = nn.Parameter(torch.ones(3, device="xla"))
        for place in (None, "cpu"):
            loaded = torch.load(saved(weight), map_location=place)
            assert (
                isinstance(loaded, nn.Parameter)
                and loaded.device.type == (place or "xla")
                and loaded.requires_grad
            )
            frozen = torch.load(
                saved(nn.Parameter(weight.detach(), requires_grad=False)), map_location=place
            )
            assert isinstance(frozen, nn.Parameter) and not frozen.requires_grad
        assert torch.load(saved(torch.ones(3, device="xla", requires_grad=True))).requires_grad

    def test_attributes(self) -> None:
        x = torch.ones(3, device="xla")
        x.note = {"a": [1]}
        assert torch.load(saved(x)).note == {"a": [1]}

    @pytest.mark.parametrize(
        "place", ["xla", "xla:0", torch.device("xla"), {"cpu": "xla"}], ids=str
    )
    def test_onto_the_device(self, place: Any) -> None:
        x = torch.arange(6.0).view(2, 3)
        for source in (x, x.to("xla")):
            loaded = torch.load(saved({"x": source.t(), "n": 3}), map_location=place)
            assert (
                loaded["x"].device.type == "xla"
                and torch.equal(loaded["x"].cpu(), x.t())
                and loaded["n"] == 3
            )

    def test_state_dicts(self) -> None:
        model = tied()
        optimizer = torch.optim.Adam(model.parameters())
        model(torch.randn(4, 3).to("xla")).sum().backward()
        optimizer.step()
        for place in (None, "cpu", "xla"):
            loaded = torch.load(
                saved({"model": model.state_dict(), "optimizer": optimizer.state_dict()}),
                map_location=place,
            )
            fresh = tied().to("cpu") if place == "cpu" else tied()
            fresh.load_state_dict(loaded["model"])
            other = torch.optim.Adam(fresh.parameters())
            other.load_state_dict(loaded["optimizer"])
            for one, two in zip(
                fresh.state_dict().values(), model.state_dict().values(), strict=True
            ):
                assert torch.equal(one.cpu(), two.cpu())
            for one, two in zip(other.state.values(), optimizer.state.values(), strict=True):
                assert all(torch.equal(one[name].cpu(), two[name].cpu()) for name in two)

    def test_ties_are_written_once(self) -> None:
        model = tied()
        x = torch.arange(6.0).to("xla").view(2, 3)
        for place in (None, "cpu", "xla"):
            state = torch.load(saved(model.state_dict()), map_location=place)
            assert state["0.weight"].data_ptr() == state["2.weight"].data_ptr()
            base, row, across = torch.load(saved([x, x[1], x.t()[1:]]), map_location=place)
            row.zero_()
            across.add_(10)
            assert base.tolist() == [[0.0, 11.0, 12.0], [0.0, 10.0, 10.0]]
            rows = torch.load(saved([x[0], x[1]]), map_location=place)
            rows[0].zero_()
            assert rows[1].tolist() == [3.0, 4.0, 5.0]

    @pytest.mark.parametrize("place", [None, "cpu", "xla"])
    def test_modules(self, place: str | None) -> None:
        model = tied()
        x = torch.randn(4, 3).to("xla")
        model(x)
        loaded = torch.load(saved(model.eval()), map_location=place, weights_only=False)
        assert loaded[0].weight is loaded[2].weight and isinstance(loaded[0].weight, nn.Parameter)
        where = loaded[0].weight.device.type
        assert where == (place or "xla")
        torch.testing.assert_close(loaded(x.to(where)).cpu(), model(x).cpu())
        assert all(
            parameter.requires_grad and parameter.is_leaf for parameter in loaded.parameters()
        )

    def test_sharded(self, mesh8: spmd.Mesh) -> None:
        x = torch.arange(40.0).view(10, 4)
        cut = spmd.mark_sharding(x.to("xla"), mesh8, ("fsdp", None))
        assert torch.equal(torch.load(saved(cut)).cpu(), x)

    def test_resume(self) -> None:
        """Model, optimizer, schedule and random states in one file, loaded without a word about the
        device."""

        def parts() -> tuple[Any, ...]:
            model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(), nn.Linear(8, 1)).to("xla")
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
            return model, optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 8)

        def train(model: Any, optimizer: Any, schedule: Any) -> list[float]:
            losses = []
            for _ in range(3):
                optimizer.zero_grad()
                loss = model(torch.ones(4, 4, device="xla")).square().mean()
                loss.backward()
                optimizer.step()
                schedule.step()
                losses.append(loss.item())
            return losses

        first = parts()
        train(*first)
        file = saved(
            {"parts": [part.state_dict() for part in first], "random": torch.xla.get_rng_state()}
        )
        expected = train(*first)
        second, loaded = parts(), torch.load(file)
        for part, state in zip(second, loaded["parts"], strict=True):
            part.load_state_dict(state)
        torch.xla.set_rng_state(loaded["random"])
        assert all(state["exp_avg"].device.type == "xla" for state in second[1].state.values())
        assert train(*second) == expected

    def test_after_a_write(self) -> None:
        x = torch.zeros(3, device="xla")
        first = pickle.loads(pickle.dumps([x, x[1:]]))
        x.add_(1)
        second = pickle.loads(pickle.dumps([x, x[1:]]))
        assert (
            first[0].tolist() == [0.0] * 3
            and second[0].tolist() == [1.0] * 3
            and second[1].tolist() == [1.0] * 2
        )

    def test_without_this_library(self, tmp_path) -> None:
        torch.save({"model": tied(), "state": tied().state_dict()}, tmp_path / "all.pt")
        torch.save(
            {**tied().state_dict(), "eight": torch.ones(2).to("xla", torch.float8_e5m2)},
            tmp_path / "state.pt",
        )
        with open(tmp_path / "x.pickle", "wb") as file:
            pickle.dump(tied(), file)
        run_script(f"""
            import pickle, sys, torch

            loaded = torch.load({str(tmp_path / "all.pt")!r}, weights_only=False)
            assert loaded["model"](torch.ones(2, 3)).shape == (2, 3)
            assert loaded["state"]["0.weight"].device.type == "cpu"
            state = torch.load({str(tmp_path / "state.pt")!r}, weights_only=True)
            assert state["0.weight"].device.type == state["eight"].device.type == "cpu"
            torch.load({str(tmp_path / "all.pt")!r}, weights_only=False, map_location="cpu")
            pickle.load(open({str(tmp_path / "x.pickle")!r}, "rb"))(
                torch.ones(2, 3)
            ).sum().backward()
            assert "spmd" not in sys.modules and "jax" not in sys.modules
        """)


class TestCopy:
    """copy.copy is another tensor over the same memory, copy.deepcopy one over memory of its
    own."""

    def test_shallow(self) -> None:
        x = nn.Parameter(torch.ones(3, device="xla"))
        other = copy.copy(x)
        with torch.no_grad():
            x.add_(1)
        assert (
            other is not x
            and other.tolist() == [2.0] * 3
            and isinstance(other, nn.Parameter)
            and other.requires_grad
        )

    def test_deep(self) -> None:
        pair = [x := torch.ones(3, device="xla"), x]
        copied = copy.deepcopy(pair)
        x.zero_()
        assert copied[0] is copied[1] and copied[0].tolist() == [1.0] * 3
        state = copy.deepcopy(tied().state_dict())
        assert all(tensor.device.type == "xla" for tensor in state.values())

    def test_deep_views(self) -> None:
        """Views in one deep copy share their copied memory; what the user hung on a tensor is
        copied, too."""
        for device in ("cpu", "xla"):
            x = torch.arange(12.0, device=device).view(4, 3)
            x.note = ["kept"]
            whole, row, wide = copy.deepcopy([x, x[1], x.t()[1:].expand(2, 2, 4)])
            row.zero_()
            assert whole[1].tolist() == [0.0] * 3 and x[1].tolist() == [3.0, 4.0, 5.0]
            assert (
                wide[1, :, 1].tolist() == [0.0, 0.0]
                and wide.stride() == (0, 1, 3)
                and wide.storage_offset() == 1
            )
            assert whole.note == ["kept"] and whole.note is not x.note


class TestExchange:
    """dlpack, numpy, hashing, equality."""

    def test_dlpack(self) -> None:
        x = torch.arange(6.0).to("xla").view(2, 3) * 1
        for source in (x, x.t(), x[1]):
            assert torch.equal(torch.from_dlpack(source), source.cpu())
            assert np.array_equal(np.from_dlpack(source), source.cpu().numpy())
        held = torch.from_dlpack(x)
        x.add_(1)
        spmd.sync()
        assert held.tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
        with pytest.raises((BufferError, RuntimeError), match=r"requires? grad"):
            torch.from_dlpack(torch.ones(2, device="xla", requires_grad=True))

    def test_dlpack_sharded(self, mesh8: spmd.Mesh) -> None:
        cut = spmd.mark_sharding(torch.arange(16.0).to("xla"), mesh8, ("fsdp",))
        assert torch.from_dlpack(cut).tolist() == list(range(16))

    def test_numpy(self) -> None:
        x = torch.arange(3.0, device="xla")
        assert x.cpu().numpy().tolist() == x.detach().numpy(force=True).tolist() == [0.0, 1.0, 2.0]
        with pytest.raises(TypeError, match="cpu"):
            x.numpy()
        with pytest.raises(TypeError, match="cpu"):
            np.asarray(x)

    def test_hash(self) -> None:
        x, y = torch.ones(3, device="xla"), torch.ones(3, device="xla")
        table = {x: 1, y: 2}
        assert table[x] == 1 and table[y] == 2 and len({x, y, x}) == 2 and x in {x}
        x.add_(1)
        assert table[x] == 1

    def test_storages_are_of_the_host(self) -> None:
        """There is none on the device to make; a program that tried ended without a word."""
        for make in (torch.UntypedStorage, torch.UntypedStorage._new_shared):
            assert make(8, device="cpu").device.type == "cpu"
        for make in (torch.UntypedStorage, torch.ones(1)._typed_storage()._new_shared):
            with pytest.raises(NotImplementedError, match="an xla tensor has no storage"):
                make(8, device="xla")

    def test_equal(self) -> None:
        x = torch.tensor([1.0, float("nan")], device="xla")
        assert not torch.equal(x, x.clone()) and torch.equal(x[:1], x[:1].clone())
        assert not torch.equal(torch.ones(2, device="xla"), torch.ones(3, device="xla"))
        assert torch.equal(torch.ones(0, 3, device="xla"), torch.ones(0, 3, device="xla"))
        torch.testing.assert_close(x, x.clone(), equal_nan=True)
