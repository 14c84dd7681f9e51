"""Values that the partitioner moves unrequested: named by line, with both layouts, kept with the
program."""

import dataclasses
import math

import pytest
import torch
from support import run_script
from torch import nn

import fsdp
import spmd
from spmd import Mesh, P
from spmd.core.base.compile_record import Move
from spmd.core.programs import cache
from spmd.tools.planning.report import Plan
from spmd.tools.profiler.trace_files import labels_of
from tests.tools.planning import bad_layouts


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests' values are small, and so are their moves."""
    monkeypatch.setattr(spmd.config, "moves_above", 1024)


def marked(mesh: Mesh, spec: tuple[object, ...], *shape: int, num_classes: int = 0) -> torch.Tensor:
    """Data of a shape in a layout; integers below `num_classes`."""
    count = torch.arange(math.prod(shape)).reshape(shape)
    made = count % num_classes if num_classes else torch.sin(count.float())
    return spmd.mark_sharding(made.to("xla"), mesh, P(*spec))


def moves() -> tuple[Move, ...]:
    """Those of the program that was compiled last."""
    spmd.sync()
    return spmd.metrics.compiles()[-1].moves


class TestThreeReports:
    """Moves that users of GSPMD report again and again: the line, the two layouts, the bytes."""

    def test_a_gather_of_a_table_split_by_rows(self, mesh2x4: Mesh) -> None:
        table = marked(mesh2x4, ("fsdp", None), 256, 64)
        tokens = marked(mesh2x4, ("data", None), 16, 32, num_classes=256)
        found = nn.functional.embedding(tokens, table)
        (move,) = moves()
        assert (move.op, move.value, move.shape) == ("aten.embedding", "operand 0", (256, 64))
        assert (move.before, move.after) == ("P('fsdp', None)", "P(None, None)")
        assert move.collectives == ("all-reduce",) and move.axes == ("fsdp",)
        assert move.bytes == 2 * (8 * 32 * 64 * 4) * 3 // 4 and move.largest == 8 * 32 * 64 * 4
        assert (
            "test_moves.py" in move.line and "nn.functional.embedding(tokens, table)" in move.line
        )
        assert found.shape == (16, 32, 64)
        # The mark that it tries first is right here.
        assert "as P(None, None) may remove it" in str(move)
        whole = spmd.mark_sharding(table, mesh2x4, P(None, None))
        again = nn.functional.embedding(tokens, whole)
        assert not moves() and torch.equal(again.cpu(), found.cpu())

    def test_a_gather_of_a_table_split_by_features(self, mesh2x4: Mesh) -> None:
        table = marked(mesh2x4, (None, "data"), 256, 64)
        tokens = marked(mesh2x4, ("data", None), 16, 32, num_classes=256)
        found = nn.functional.embedding(tokens, table)
        assert {move.op for move in moves()} == {"aten.embedding"}
        assert all("nn.functional.embedding(tokens, table)" in move.line for move in moves())
        assert torch.equal(found.cpu(), nn.functional.embedding(tokens.cpu(), table.cpu()))

    def test_a_reshape_across_split_dims(self, mesh2x4: Mesh) -> None:
        x = marked(mesh2x4, ("data", "fsdp", None), 6, 16, 64)
        y = x.reshape(16, 6, 64).sin()
        (move,) = moves()
        assert (move.kind, move.op, move.value) == ("move", "aten.view", "operand 0")
        assert (move.before, move.after) == ("P('data', 'fsdp', None)", "P('data', None, None)")
        assert move.collectives == ("all-gather",) and "x.reshape(16, 6, 64).sin()" in move.line
        assert move.bytes == 3 * 16 * 64 * 4 * 3 // 4
        assert torch.allclose(y.cpu(), x.cpu().reshape(16, 6, 64).sin(), atol=1e-6)

    def test_an_update_of_a_slice_of_a_split_dim(self, mesh2x4: Mesh) -> None:
        cache = marked(mesh2x4, ("data", None, "fsdp", None), 8, 4, 64, 8)
        whole = marked(mesh2x4, ("data", None, None, None), 8, 4, 16, 8)
        cache[:, :, 20:36] = whole * 2
        (move,) = moves()  # the whole cache, for a slice
        assert (move.kind, move.value, move.shape) == ("given up", "operand 0", (8, 4, 64, 8))
        assert (move.before, move.after) == ("P('data', None, 'fsdp', None)",) * 2 and not move.mark
        assert (
            move.bytes == 4 * 4 * 64 * 8 * 4 * 3 // 4
            and "cache[:, :, 20:36] = whole * 2" in move.line
        )
        # With places that are data each device keeps what falls into its part.
        again = cache.index_copy(2, torch.arange(20, 36, device="xla"), whole * 3)
        assert not moves()
        cut = spmd.mark_sharding(whole * 3, mesh2x4, P("data", None, "fsdp", None))
        cache[:, :, 20:36] = cut
        assert {(move.kind, "cache[:, :, 20:36] = cut" in move.line) for move in moves()} == {
            ("given up", True)
        }
        assert torch.equal(cache.cpu()[:, :, 20:36], whole.cpu() * 3) and torch.equal(
            again.cpu(), cache.cpu()
        )

    def test_a_cache_that_is_shifted(self, mesh2x4: Mesh) -> None:
        cache = marked(mesh2x4, ("data", None, "fsdp", None), 8, 4, 64, 8)
        new = marked(mesh2x4, ("data", None, None, None), 8, 4, 4, 8)
        _ = kept = torch.cat([cache[:, :, 4:], new], 2)
        assert moves() and all(
            "torch.cat([cache[:, :, 4:], new], 2)" in move.line for move in moves()
        )
        assert torch.equal(kept.cpu(), torch.cat([cache.cpu()[:, :, 4:], new.cpu()], 2))


class TestBackward:
    """What a backward op reads is named as the forward result that a step can annotate, or no
    annotation is advised."""

    @staticmethod
    def moved(mesh: Mesh, hidden: tuple[object, ...] | None) -> list[Move]:
        x = marked(mesh, ("data", None), 32, 64)
        up, down = (
            marked(mesh, spec, *shape)
            for spec, *shape in ((("fsdp", None), 128, 64), (("fsdp", "data"), 64, 128))
        )
        for weight in (up, down):
            weight.requires_grad_()
        activation = nn.functional.linear(x, up).relu()
        if hidden is not None:
            activation = spmd.mark_sharding(activation, mesh, P(*hidden))
        nn.functional.linear(activation, down).square().sum().backward()
        return [move for move in moves() if move.op == "aten.linear_backward"]

    def test_a_weight(self, mesh2x4: Mesh) -> None:
        found = {move.value: move for move in self.moved(mesh2x4, None) if move.after}
        # The partitioners gather the second weight, which is sharded over both axes, over another
        # one of them.
        after = "P(None, 'data')" if spmd.config.partitioner == "gspmd" else "P('fsdp', None)"
        assert found["operand 2"].after == after and not found["operand 2"].mark

    def test_an_activation(self, mesh2x4: Mesh) -> None:
        found = {move.value: move for move in self.moved(mesh2x4, ("fsdp", "data"))}
        assert (
            found["operand 0"].mark
            == "mark_sharding of the result of aten.relu, [32, 128], as P(None, 'data')"
        )

    def test_one_layout_is_known(self) -> None:
        move = Move(
            "move",
            "aten.mm",
            "operand 0",
            (8, 4),
            collectives=("all-gather",),
            axes=("data",),
            bytes=64,
        )
        rest = ": all-gather over data, moves 64 B"
        assert (
            dataclasses.replace(move, before="P('data',)").text
            == f"operand 0 [8, 4], from P('data',){rest}"
        )
        assert (
            dataclasses.replace(move, after="P('data',)").text
            == f"operand 0 [8, 4], to P('data',){rest}"
        )
        assert move.text == f"operand 0 [8, 4]{rest}"


class TestEqual:
    """Equal moves of a line are one, with their number and the bytes of all."""

    def test_a_python_loop(self, mesh2x4: Mesh) -> None:
        def step(x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
            weights = spmd.mark_sharding(weights.to("xla"), mesh2x4, P("fsdp", None, None))
            x = spmd.mark_sharding(x.to("xla"), mesh2x4, P("data", None))
            for i in range(8):
                x = (x @ weights[i]).tanh()
            return x.sum()

        plan = spmd.plan(
            step, torch.empty(64, 512, device="meta"), torch.empty(8, 512, 512, device="meta")
        )
        found = [finding.move for finding in plan.findings if finding.move is not None]
        assert len({(move.op, move.line, move.before, move.after) for move in found}) == len(found)
        most = max(found, key=lambda move: move.count)
        assert most.count > 1 and f" in {most.count} moves" in most.text


class TestCombined:
    """XLA combines the reductions of several ops into one, which it names after the first."""

    def test_gradients(self, mesh8: Mesh) -> None:
        model = nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16), nn.Linear(16, 8)).to("xla")
        x = spmd.mark_sharding(torch.ones(64, 16).to("xla"), mesh8, P("fsdp", None))
        model(x).square().mean().backward()
        spmd.sync()
        program = cache.last_program()
        assert program is not None
        (row,) = [row for row in spmd.metrics.compiles()[-1].traffic if "combined" in row.op]
        assert row.op == "6 gradients combined, the first of aten.linear_backward"
        assert row.bytes == sum(4 * parameter.numel() for parameter in model.parameters())
        of_profile = [
            label.ops for name, label in labels_of(program).items() if name.startswith("all-reduce")
        ]
        assert {"aten.linear_backward", "aten.native_layer_norm_backward"} in map(set, of_profile)


class TestAsked:
    """A move that annotations say, or that sums need, is no finding."""

    def test_annotated(self, mesh2x4: Mesh) -> None:
        x = marked(mesh2x4, ("data", "fsdp"), 64, 128)
        y = spmd.mark_sharding(x.sin(), mesh2x4, P("fsdp", "data"))
        assert not moves() and spmd.metrics.compiles()[-1].traffic
        z = spmd.reshard(y, (None, None))
        assert not moves()
        assert torch.equal(z.cpu(), y.cpu())

    def test_summed(self, mesh2x4: Mesh) -> None:
        x, w = marked(mesh2x4, ("data", "fsdp"), 64, 128), marked(mesh2x4, ("fsdp", None), 128, 64)
        y = x @ w
        assert not moves() and {row.kind for row in spmd.metrics.compiles()[-1].traffic} == {
            "all-reduce"
        }
        assert y.shape == (64, 64)

    def test_fully_sharded(self, mesh8: Mesh) -> None:
        model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64)).to("xla")
        model = fsdp.FullyShardedDataParallel(model, mesh8)
        model(torch.ones(16, 64, device="xla")).square().mean().backward()
        assert not moves() and spmd.metrics.compiles()[-1].traffic

    def test_small(self, mesh2x4: Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(spmd.config, "moves_above", 1 << 16)
        x = marked(mesh2x4, ("data", "fsdp", None), 6, 16, 32)
        _ = y = x.reshape(16, 6, 32).cos()
        assert not moves() and y.shape == (16, 6, 32)


class TestAttention:
    """`nn.MultiheadAttention` under FSDP, its sequence cut where the batch was meant, gathers keys
    and values whole."""

    def test_is_pointed_at(self, mesh8: Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(spmd.config, "parallel", "off")

        class Block(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.attention = nn.MultiheadAttention(32, 4)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.attention(x, x, x, need_weights=False)[0]

        model = fsdp.FullyShardedDataParallel(Block().to("xla"), mesh8)
        model(torch.ones(16, 8, 32, device="xla")).square().mean().backward()
        (move, *_) = moves()
        assert "attention" in move.op and move.before == "P(None, None, 'fsdp', None)"
        assert move.after == "P(None, None, None, None)" and "self.attention(x, x, x" in move.line
        assert "moves of" in str(spmd.metrics.compiles()[-1]) and str(move) in spmd.explain()


class TestGivenUp:
    """XLA tells on stderr alone, and only when it compiles, that it gave a layout up; the program
    has it, too."""

    def test_as_in_the_log(self) -> None:
        said = run_script(
            """
            import itertools, os, random, sys, tempfile
            import torch, spmd
            from spmd import Mesh, P
            spmd.simulate(8)
            spmd.config.moves_above = 0
            spmd.config.program_cache = False
            mesh = Mesh(range(8), (2, 4), ("data", "model"))
            pairs = [
                ((None, ("data", "model")), ("data", None)), (("data", None), (None, "model")),
                (("model", None), (None, "data")), ((("data", "model"), None), (None, "model")),
                (("data", "model"), ("model", "data")), (("data", None), ("data", "model")),
                (("data", "model"), (None, "model")), ((None, "model"), ("model", None)),
            ]
            for before, after in pairs:
                x = spmd.mark_sharding(torch.ones(64, 128).to("xla"), mesh, P(*before))
                spmd.sync()
                stderr = os.dup(2)
                with tempfile.TemporaryFile() as file:
                    os.dup2(file.fileno(), 2)
                    y = spmd.mark_sharding(x.sin(), mesh, P(*after)).cos()
                    spmd.sync()
                    os.dup2(stderr, 2)
                    file.seek(0)
                    log = file.read().decode()
                kinds = [move.kind for move in spmd.metrics.compiles()[-1].moves]
                print("Involuntary full rematerialization" in log, kinds)
            """,
            TF_CPP_MIN_LOG_LEVEL="0",
        )
        given_up, kept = "True ['given up']", "False []"
        assert said.splitlines() == [given_up] * 4 + [kept] * 4


class TestPlan:
    """A plan lists the moves, and compiles with other annotations until one removes each."""

    def test_the_annotation_removes_the_move(self, mesh2x4: Mesh) -> None:
        x, w = marked(mesh2x4, ("data", None), 64, 128), marked(mesh2x4, ("fsdp", "data"), 128, 64)

        def step(spec: P) -> torch.Tensor:
            hidden = spmd.mark_sharding(torch.relu(x @ w), mesh2x4, spec)
            return hidden.square().sum()

        bad = P("fsdp", "data")
        (first, *_) = [one for one in spmd.plan(step, bad).findings if one.move is not None]
        assert (
            first.kind == "reshard" and not first.move.is_checked and "may remove it" in first.text
        )
        count = spmd.metrics.num_compiles()
        plan = spmd.plan(step, bad, check_marks=True)
        assert (
            spmd.metrics.num_compiles() == count
            and spmd.plan(step, bad).moved_bytes == plan.moved_bytes
        )
        checked = [one for one in plan.findings if one.move is not None]
        assert all(one.move.is_checked for one in checked), [str(one) for one in checked]
        assert "removes it (compiled)" in checked[0].text and "test_moves.py" in checked[0].line
        assert Plan.from_json(plan.to_json()) == plan
        assert "mark_sharding of " in " ".join(str(plan).split())

    @pytest.mark.parametrize("name", ["mlp", "normed"])
    def test_bad_layouts(self, name: str) -> None:
        (outcome,) = bad_layouts.outcomes(1, 1, [name])
        assert outcome.move.is_checked, str(outcome.move)

    def test_the_layouts_of_the_models_are_good(self) -> None:
        mesh = Mesh(range(8), (2, 4), bad_layouts.AXES)
        for name in ("mlp", "cache"):
            model = bad_layouts.MODELS[name]
            assert not bad_layouts.moves(
                bad_layouts.planned(model, mesh, model.layout(), check=False)
            ), name

    @pytest.mark.long
    def test_many_bad_layouts(self) -> None:
        found = bad_layouts.outcomes(3, 20)
        removed = sum(one.move.is_checked for one in found)
        assert removed >= 18, [str(one) for one in found if not one.move.is_checked]
