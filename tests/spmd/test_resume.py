"""Resuming on another mesh by `torch.save`, `torch.load` and `load_state_dict`: what is loaded lies
like its target."""

import io
from typing import Any

import pytest
import torch
from support import run_script
from torch import nn

import fsdp
import spmd

MESHES = {
    "8": spmd.Mesh(range(8), (8,), ("fsdp",)),
    "2x4": spmd.Mesh(range(8), (2, 4), ("data", "fsdp")),
    "4": spmd.Mesh(range(4), (4,), ("fsdp",)),
    "last 2": spmd.Mesh([6, 7], (2,), ("fsdp",)),
}
# How a model lies: by marks, by FSDP, or unmarked.
LAYOUTS = {
    "rows": ("8", ("fsdp",)),
    "tiles": ("2x4", ("fsdp", "data")),
    "columns of 4": ("4", (None, "fsdp")),
    "the last 2": ("last 2", ("fsdp",)),
    "fsdp over 8": ("8", None),
    "fsdp over 2x4": ("2x4", None),
    "fsdp over 4": ("4", None),
    "unmarked": (None, None),
}
PAIRS = [
    ("rows", "tiles"), ("rows", "columns of 4"), ("rows", "fsdp over 4"), ("rows", "unmarked"),
    ("rows", "the last 2"), ("tiles", "rows"), ("tiles", "fsdp over 8"), ("tiles", "columns of 4"),
    ("columns of 4", "rows"), ("columns of 4", "the last 2"), ("columns of 4", "fsdp over 2x4"),
    ("the last 2", "columns of 4"), ("the last 2", "fsdp over 8"), ("fsdp over 8", "fsdp over 4"),
    ("fsdp over 8", "tiles"), ("fsdp over 8", "unmarked"), ("fsdp over 2x4", "fsdp over 4"),
    ("fsdp over 4", "fsdp over 2x4"), ("unmarked", "fsdp over 8"), ("unmarked", "columns of 4"),
]  # fmt: skip


class Run:
    """A small model and its optimizer, of which parameters, buffers and moments have several
    ranks."""

    def __init__(self, layout: str | None):
        torch.manual_seed(0)
        self.model: Any = nn.Sequential(
            nn.Linear(8, 16, bias=False), nn.BatchNorm1d(16), nn.Linear(16, 8)
        )
        self.device = "cpu" if layout is None else "xla"
        if layout is not None:
            name, spec = LAYOUTS[layout]
            self.model.to("xla")
            if spec is not None:
                norm = self.model[1]
                for tensor in (*self.model.parameters(), norm.running_mean, norm.running_var):
                    own = spec if tensor.dim() == 2 else spec[:1]
                    spmd.mark_sharding(
                        tensor, MESHES[name], (*own, *[None] * (tensor.dim() - len(own)))
                    )
            elif name is not None:
                self.model = fsdp.FullyShardedDataParallel(self.model, MESHES[name])
        self.optimizer = torch.optim.Adam(self.model.parameters(), 0.05)

    def train(self, begin: int, end: int) -> list[float]:
        losses = []
        for step in range(begin, end):
            x = torch.randn(8, 8, generator=torch.Generator().manual_seed(step)).to(self.device)
            self.optimizer.zero_grad()
            loss = self.model(x).square().mean()
            loss.backward()
            self.optimizer.step()
            losses.append(loss.item())
        return losses

    def saved(self) -> bytes:
        file = io.BytesIO()
        torch.save(
            {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}, file
        )
        return file.getvalue()

    def load(self, saved: bytes, *, assign: bool) -> dict[str, Any]:
        found: dict[str, Any] = torch.load(io.BytesIO(saved))
        self.model.load_state_dict(found["model"], assign=assign)
        if assign:  # the optimizer is of the parameters that are there now
            self.optimizer = torch.optim.Adam(self.model.parameters(), 0.05)
        self.optimizer.load_state_dict(found["optimizer"])
        return found

    def moments(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        state = self.optimizer.state
        return [
            (p, state[p][name])
            for p in self.model.parameters()
            for name in ("exp_avg", "exp_avg_sq")
        ]


class TestAnotherMesh:
    """Twenty pairs of layouts: resumed, each goes on as a training on the CPU that never
    stopped."""

    def test_pairs(self) -> None:
        reference = Run(None)
        reference.train(0, 2)
        expected = reference.train(2, 5)
        files: dict[str, bytes] = {}
        for number, (source, target) in enumerate(PAIRS):
            if source not in files:
                first = Run(source)
                first.train(0, 2)
                files[source] = first.saved()
            resumed, assign = Run(target), number % 2 == 1
            before = {
                name: spmd.get_sharding(value) for name, value in resumed.model.state_dict().items()
            }
            found = resumed.load(files[source], assign=assign)
            for name, value in resumed.model.state_dict().items():
                if before[name] is not None:
                    assert spmd.get_sharding(value) is before[name], (source, target, name)
            for parameter, moment in resumed.moments():
                assert spmd.get_sharding(moment) is spmd.get_sharding(parameter), (source, target)
            torch.testing.assert_close(
                resumed.train(2, 5), expected, rtol=1e-5, atol=1e-6, msg=f"{source} -> {target}"
            )
            for name, value in resumed.model.state_dict().items():
                torch.testing.assert_close(
                    value.cpu(),
                    reference.model.state_dict()[name],
                    rtol=1e-4,
                    atol=1e-5,
                    msg=f"{source} {target}",
                )
                if before[name] is not None:
                    assert spmd.get_sharding(value) is before[name], (source, target, name)
            if not assign:  # what was read stays as the file says
                kept = [value for value in found["model"].values() if value.dim()]
                assert all(spmd.residence(value) == "host" for value in kept)

    def test_compiles_the_step_alone(self) -> None:
        """A loaded value is there before the step, whose program is that of every later one."""
        first = Run("rows")
        first.train(0, 1)
        saved = first.saved()
        resumed = Run("tiles")
        resumed.load(saved, assign=False)
        compiled = spmd.metrics.num_compiles()
        resumed.train(1, 2)
        assert spmd.metrics.num_compiles() <= compiled + 1
        compiled = spmd.metrics.num_compiles()
        resumed.train(2, 4)
        assert spmd.metrics.num_compiles() == compiled

    def test_what_is_loaded_from_stays(self) -> None:
        """One optimizer's state loaded into another, on another mesh: the first goes on as it
        was."""
        first, second = Run("rows"), Run("columns of 4")
        first.train(0, 1)
        before = [spmd.get_sharding(moment) for _, moment in first.moments()]
        second.model.load_state_dict(first.model.state_dict())
        second.optimizer.load_state_dict(first.optimizer.state_dict())
        assert [spmd.get_sharding(moment) for _, moment in first.moments()] == before
        torch.testing.assert_close(first.train(1, 2), second.train(1, 2))

    def test_state_of_another_shape(self) -> None:
        """A factored moment joins its parameter's devices, replicated."""
        weight = spmd.mark_sharding(
            torch.zeros(8, 8, device="xla", requires_grad=True), MESHES["4"], ("fsdp", None)
        )
        optimizer = torch.optim.Adafactor([weight], 0.1)
        weight.grad = torch.ones_like(weight)
        optimizer.step()
        state = optimizer.state_dict()
        for value in state["state"][0].values():
            if isinstance(value, torch.Tensor) and value.device.type == "xla":
                spmd.mark_sharding(value, MESHES["8"], [None] * value.dim())
        optimizer.load_state_dict(state)
        weight.grad = torch.ones_like(weight)
        optimizer.step()
        assert weight.isfinite().all().item()


class TestCopy:
    """`copy_` into a marked tensor: it keeps its layout, wherever the source lies."""

    @pytest.mark.parametrize("kind", ["host", "device", "recorded"])
    def test_across_meshes(self, kind: str) -> None:
        source = spmd.mark_sharding(
            torch.arange(32.0).reshape(8, 4).to("xla"), MESHES["8"], ("fsdp", None)
        )
        source = source if kind == "host" else source + 0
        if kind == "device":
            spmd.sync()
        expected = torch.arange(32.0).reshape(8, 4)
        target, row, part, listed = (
            spmd.mark_sharding(torch.zeros(8, 4, device="xla"), MESHES["4"], (None, "fsdp"))
            for _ in range(4)
        )
        target.copy_(source)
        row.copy_(source[1])
        part[2:4] = source[4:6]
        torch._foreach_copy_([listed], [source])
        half = spmd.mark_sharding(
            torch.zeros(8, 4, device="xla", dtype=torch.bfloat16), MESHES["4"], (None, "fsdp")
        )
        half.copy_(source)
        assert torch.equal(target.cpu(), expected) and torch.equal(listed.cpu(), expected)
        assert torch.equal(row.cpu(), expected[1].expand(8, 4)) and torch.equal(
            half.cpu().float(), expected
        )
        assert torch.equal(part.cpu()[2:4], expected[4:6]) and not part.cpu()[4:].any()
        for tensor in (target, row, part, listed, half):
            assert spmd.get_sharding(tensor).text(2) == "{devices=[1,4]0,1,2,3}"
        assert torch.equal(source.cpu(), expected)


def test_fewer_devices(tmp_path: Any) -> None:
    """A file of eight devices where four are: what the process sees decides, and a warning says
    so."""
    first = Run("rows")
    first.train(0, 2)
    (tmp_path / "run.pt").write_bytes(first.saved())
    expected = first.train(2, 3)
    printed = run_script(
        f"""
        import torch, warnings
        import spmd, fsdp

        spmd.simulate(4)
        warnings.simplefilter("ignore")
        nn = torch.nn
        model = nn.Sequential(nn.Linear(8, 16, bias=False), nn.BatchNorm1d(16), nn.Linear(16, 8))
        model = fsdp.FullyShardedDataParallel(model, spmd.Mesh(range(4), (4,), ("fsdp",)))
        optimizer = torch.optim.Adam(model.parameters(), 0.05)
        found = torch.load({str(tmp_path / "run.pt")!r})
        model.load_state_dict(found["model"])
        optimizer.load_state_dict(found["optimizer"])
        for parameter in model.parameters():
            assert spmd.get_sharding(optimizer.state[parameter]["exp_avg"]) is spmd.get_sharding(
                parameter
            )
        x = torch.randn(8, 8, generator=torch.Generator().manual_seed(2)).to("xla")
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        print(loss.item())
        """
    )
    assert float(printed) == pytest.approx(expected[0], rel=1e-5)
