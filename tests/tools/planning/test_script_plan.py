"""`python -m spmd plan`: a training script runs unmodified and without data, and its steady step is
planned."""

import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from planned import tokens, training
from support import ROOT, own_environment
from torch import nn

import spmd
from spmd import Mesh, Plan
from spmd import __main__ as shell
from spmd.command_line import split
from spmd.tools.planning.script_plan import plan_script

NANOGPT = ROOT / "tests/examples/nanogpt_script.py"
# libtpu, if installed, says on stderr that it finds no TPU.
PLACE = {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}


def shown(*arguments: str | Path, cwd: Path, code: int = 0) -> tuple[str, str]:
    """What the command prints on stdout and stderr."""
    done = subprocess.run(
        [sys.executable, "-m", "spmd", "plan", *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=own_environment() | PLACE,
        timeout=300,
    )
    assert done.returncode == code, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout, done.stderr


def planned(script: Callable[[], Any], target: str | None = None) -> Plan:
    """The plan of a function as a script, which runs in this process."""

    def run() -> int:
        script()
        return 0

    return plan_script(run, "script.py", target)


def figures(plan: Plan) -> tuple[Any, ...]:
    return tuple(
        getattr(plan, name)
        for name in ("parameters", "optimizer_state", "arguments", "temporaries", "flops")
    )


class TestNanoGPT:
    """A script in nanoGPT's shape: mapped data, evaluation before the first step, accumulation,
    logging."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        for split_name in ("train", "val"):
            numbers = np.random.RandomState(0).randint(0, 64, 2000)
            numbers.astype(np.uint16).tofile(tmp_path / f"{split_name}.bin")
        return tmp_path

    def test_figures(self, folder: Path) -> None:
        out, said = shown(
            "--target", "cpu:8", "--json", NANOGPT, "--data_dir=.", "--device=xla", cwd=folder
        )
        plan = Plan.from_json(out)
        width, layers, vocabulary, block = 32, 2, 64, 16
        count = (
            vocabulary * width + block * width + width + layers * (2 * width + 12 * width * width)
        )
        assert (
            plan.parameters == 4 * count
            and plan.optimizer_state == 8 * count
            and plan.gradients == 0
        )
        # Of each row of 4 x 16 tokens and of each weight of a product 2 operations forward and 4
        # backward, twice; of attention's two products 4 x 16 x 32 operations a token and layer.
        products = layers * 12 * width * width + vocabulary * width
        attention = layers * 2 * 2 * block * width
        expected = 2 * 4 * block * 3 * (2 * products + attention)
        assert expected <= plan.flops <= 1.5 * expected
        assert (
            plan.num_programs == 1 and plan.target == "cpu:8" and plan.line.startswith(str(NANOGPT))
        )
        assert {row.path for row in plan.layout} >= {
            "wte.weight",
            "h.1.c_attn.weight",
            "ln_f.weight",
        }
        assert "step 0: train loss 1.0000, val loss 1.0000" in said and "iter 0: loss" in said
        assert "iter 1:" not in said and not [*(folder / "out").iterdir()], (
            "it stops, and saves nothing"
        )
        assert plan.planning_seconds > plan.compile_seconds and plan.planning_bytes > 1 << 27

    def test_without_the_device(self, folder: Path) -> None:
        out, said = shown(NANOGPT, "--data_dir=.", "--device=cpu", cwd=folder, code=1)
        (line,) = (line for line in said.splitlines() if line.startswith("plan: "))
        assert "recorded nothing on the device" in line and "--device=xla" in line
        assert "parameters" not in out and "iter 10:" not in out, "it stops at the third step"


class TestRecipes:
    """Recipes over eight simulated devices: their loaders, tables of shards, torch.compile and
    transformers."""

    @staticmethod
    def plan_of(folder: Path, recipe: str, *arguments: str) -> Plan:
        sizes = ("--layers=1", "--width=16", "--heads=2", "--out=out", *arguments)
        return Plan.from_json(shown("--json", ROOT / "recipes" / recipe, *sizes, cwd=folder)[0])

    @staticmethod
    def sharded(plan: Plan) -> int:
        """The bytes of float32 parameters that are each cut into eight along one dim, padded where
        none is divided."""
        count = 0
        for row in plan.layout:
            dims = [dim for dim in row.shape if dim % 8 == 0]
            count += 4 * int(np.prod(row.shape)) // 8 if dims else 4 * -(-max(row.shape) // 8)
        return count

    def test_main_job(self, tmp_path: Path) -> None:
        plan = self.plan_of(tmp_path, "train_gpt.py", "--sequence=16")
        width, vocabulary = 16, 256
        # embedding, head, positions, last norm
        count = 2 * vocabulary * width + 16 * width + 2 * width
        count += 12 * width * width + 4 * width + 9 * width  # a block's products, norms, biases
        assert sum(int(np.prod(row.shape)) for row in plan.layout) == count
        assert plan.parameters == self.sharded(plan) and plan.optimizer_state == 2 * plan.parameters
        assert plan.mesh == {"fsdp": 8} and any(
            row.kind == "all-gather" for row in plan.collectives
        )
        products = 12 * width * width + vocabulary * width
        assert plan.flops > 16 * 16 / 8 * 6 * products

    @pytest.mark.long
    def test_vision_transformer(self, tmp_path: Path) -> None:
        plan = self.plan_of(tmp_path, "train_vit.py")
        assert plan.parameters == self.sharded(plan) and plan.optimizer_state == 2 * plan.parameters
        assert plan.inputs == 64 // 8 * (16 * 16 * 4 + 8) and plan.num_programs == 1

    @pytest.mark.long
    def test_hugging_face(self, tmp_path: Path) -> None:
        """A mask is read by transformers' code: its values are those of the batch, so that
        attention has a mask."""
        plan = self.plan_of(tmp_path, "train_t5.py", "--batch=8")
        assert plan.parameters == self.sharded(plan) and plan.optimizer_state == 2 * plan.parameters
        assert plan.inputs == 3 * 8 * 8 and any(
            ".SelfAttention.q" in row.path for row in plan.collectives
        )


def mlp(
    batch: torch.Tensor, *, steps: int, before: Callable[[int, Any], Any] = lambda step, loss: None
) -> None:
    """A training loop in a function, whose model is a local variable."""
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)).to("xla")
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(steps):
        loss = model(batch.to("xla")).square().mean()
        loss.backward()
        before(step, loss)
        optimizer.step()
        optimizer.zero_grad()
        spmd.sync()


STATE = (8 * 16 + 16 + 16 * 4 + 4) * 4


@pytest.fixture(autouse=True)
def nothing_pending() -> None:
    """What other tests of this process have recorded would be in the first program of a script."""
    spmd.sync()


class TestTheStep:
    """What is planned of a script: its steady step where it has one."""

    def test_same_figures_as_of_a_plan_of_the_step(self, mesh8: Mesh) -> None:
        def script() -> None:
            _, _, step = training(mesh8)
            for _ in range(9):
                loss = step(tokens())
                kept.append(loss.item())

        kept: list[float] = []
        plan = planned(script)
        _, _, step = training(mesh8)
        expected = spmd.plan(step, tokens())
        assert figures(plan) == figures(expected) and plan.collectives and kept == [1.0]
        assert {row.path for row in plan.collectives} == {row.path for row in expected.collectives}
        assert plan.layout == expected.layout and not plan.diff(expected)

    def test_state_without_an_annotation(self, mesh8: Mesh) -> None:
        """Momentum is in the layout that the compiler chooses in the first step."""

        def trained() -> Callable[[], torch.Tensor]:
            model = nn.Linear(64, 64).to("xla")
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

            def step() -> torch.Tensor:
                x = spmd.mark_sharding(torch.ones(16, 64).to("xla"), mesh8, ("fsdp", None))
                h = spmd.mark_sharding(model(x), mesh8, (None, "fsdp"))
                h.square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
                return h

            return step

        def script() -> None:
            step = trained()
            for _ in range(3):
                h = step()
                spmd.sync()
                del h

        assert figures(planned(script)) == figures(spmd.plan(trained()))

    def test_no_sync(self) -> None:
        """A loop that reads nothing is cut where the next step begins, and a note says so."""

        def loop() -> None:
            model = nn.Linear(8, 4).to("xla")
            optimizer = torch.optim.AdamW(model.parameters())
            for _ in range(9):
                model(torch.ones(2, 8).to("xla")).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                counts.append(1)

        counts: list[int] = []
        plan = planned(loop)
        assert (plan.parameters, plan.gradients, plan.optimizer_state) == (36 * 4, 0, 2 * 36 * 4)
        assert (
            len(counts) == 3 and plan.num_programs == 1 and "ends without a sync" in plan.notes[-1]
        )

    def test_two_optimizers_are_one_cycle(self) -> None:
        def gan() -> None:
            models = [nn.Linear(8, 8).to("xla") for _ in range(2)]
            optimizers = [torch.optim.Adam(model.parameters()) for model in models]
            for _ in range(9):
                for model, optimizer in zip(models, optimizers, strict=True):
                    loss = model(torch.ones(2, 8).to("xla")).sum()
                    loss.backward()
                    optimizer.step()
                    optimizer.zero_grad()
                    losses.append(loss.item())

        losses: list[float] = []
        plan = planned(gan)
        assert plan.num_programs == 2 and len(losses) == 3
        assert plan.parameters == 2 * 72 * 4 and plan.optimizer_state == 4 * 72 * 4

    def test_one_step(self) -> None:
        plan = planned(lambda: mlp(torch.ones(3, 8), steps=1))
        assert (plan.parameters, plan.optimizer_state) == (
            STATE,
            2 * STATE,
        ) and plan.num_programs == 1
        assert "of the first step" in plan.notes[-1] and "the script has no more" in plan.notes[-1]
        assert figures(plan) == figures(planned(lambda: mlp(torch.ones(3, 8), steps=2)))

    def test_inference(self) -> None:
        """The longest program, which a short one follows; initial values are left out."""

        def script() -> None:
            with torch.device("xla"):
                model = nn.Linear(8, 4)
            hits = torch.zeros((), device="xla")
            with torch.no_grad():
                for _ in range(repeats):
                    hits += (model(torch.ones(16, 8).to("xla")).relu().argmax(-1) == 1).sum()
                    spmd.sync()
            hits.add(1).item()

        repeats = 1  # the sync has the program of the initial values, too
        plan = planned(script)
        assert (
            plan.parameters == 36 * 4
            and plan.gradients == plan.optimizer_state == 0
            and plan.num_programs == 1
        )
        assert plan.inputs == 16 * 8 * 4 + 4 and plan.flops > 2 * 16 * 8 * 4
        assert "no optimizer has made a step" in plan.notes[-1]
        repeats = 3
        assert figures(planned(script)) == figures(plan)

    def test_nothing_is_left(self) -> None:
        """Of a script that ends in an error, in a process that goes on."""
        before = torch.ones(2, device="xla") * 3

        def fail() -> int:
            assert before.add_(1).sum().item() == 1
            return 7

        with pytest.raises(SystemExit, match="7"):
            plan_script(fail, "script.py", None)
        assert before.tolist() == [3, 3] and torch.save.__module__ == "torch.serialization"


class TestReads:
    """What a script reads of the device: ones, except where ones would say that a number is not
    finite."""

    def test_kinds(self, tmp_path: Path) -> None:
        def look(step: int, loss: torch.Tensor) -> None:
            read.append(
                (
                    loss.item(),
                    loss.isnan().any().item(),
                    bool(loss.isinf()),
                    bool(loss.isfinite().all()),
                )
            )
            torch.save(loss, tmp_path / "loss.pt")
            sizes.append([shard.data.shape for shard in spmd.local_shards(loss.detach() * 2)])

        read: list[Any] = []
        sizes: list[Any] = []
        planned(lambda: mlp(torch.ones(3, 8), steps=9, before=look))
        assert read == [(1.0, False, False, True)] * 2 and sizes == [[torch.Size([])]] * 2
        assert not [*tmp_path.iterdir()]

    def test_values_of_the_host(self) -> None:
        """Data that comes from the host has its values."""

        def look(step: int, loss: torch.Tensor) -> None:
            read.append(torch.arange(3).to("xla").tolist())

        read: list[Any] = []
        planned(lambda: mlp(torch.ones(3, 8), steps=9, before=look))
        assert read == [[0, 1, 2]] * 2

    def test_scaler(self) -> None:
        """A gradient scaler reads that gradients are finite, and has its optimizer make the
        step."""

        def script() -> None:
            model = nn.Linear(8, 4).to("xla")
            optimizer, scaler = torch.optim.AdamW(model.parameters()), torch.amp.GradScaler("xla")
            for _ in range(9):
                scaler.scale(model(torch.ones(2, 8).to("xla")).sum()).backward()
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()

        plan = planned(script)
        assert plan.optimizer_state == 2 * 36 * 4 and "no optimizer" not in " ".join(plan.notes)

    def test_a_checkpoint_is_an_error(self, tmp_path: Path) -> None:
        def save(step: int, loss: torch.Tensor) -> None:
            spmd.CheckpointManager(tmp_path / "steps").save(step, {"loss": loss.detach()})

        with pytest.raises(spmd.AbstractError, match=r"saving a checkpoint at .*test_script_plan"):
            planned(lambda: mlp(torch.ones(3, 8), steps=2, before=save))


class TestCommand:
    """The command's own options, output and exit status."""

    SCRIPT = """
        import sys
        import spmd, torch

        model = torch.nn.Linear(8, 4).to("xla")
        with torch.no_grad():
            print(
                "read",
                model(torch.ones(2, 8).to("xla")).sum().item(),
                sys.argv,
                len(spmd.device_ids()),
            )
        if "fail" in sys.argv:
            raise KeyError("of the script")
        sys.exit(int(sys.argv[1]))
    """

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        (tmp_path / "script.py").write_text(
            "\n".join(line[8:] for line in self.SCRIPT.splitlines())
        )
        return tmp_path

    def test_table(self, folder: Path) -> None:
        out, _ = shown("--devices", "3", "-m", "script", "0", "--json", cwd=folder)
        assert out.startswith("read 1.0 ") and "'0', '--json'] 3\n" in out
        assert (
            "1 device(s) here" in out
            and "floating-point operations" in out
            and "of the host's memory" in out
        )

    def test_error_of_the_script(self, folder: Path) -> None:
        out, said = shown("--target", "cpu:4", "script.py", "fail", cwd=folder, code=1)
        assert out == "read 1.0 ['script.py', 'fail'] 4\n"
        lines = [line for line in said.splitlines() if "TPU" not in line]
        assert lines[0].startswith("Traceback") and lines[1].startswith(
            '  File "script.py", line 14'
        )
        assert lines[-1] == "KeyError: 'of the script'"

    def test_exit_status_of_the_script(self) -> None:
        def script() -> None:
            mlp(torch.ones(3, 8), steps=1)
            sys.exit(code)

        code = 5
        with pytest.raises(SystemExit) as ended:
            planned(script)
        assert ended.value.code == 5
        code = 0
        assert planned(script).parameters == STATE

    def test_unknown_target(self, folder: Path) -> None:
        with pytest.raises(SystemExit, match="target 'abacus:2x2' is not known"):
            shell.main(["plan", "--target", "abacus:2x2", str(folder / "script.py"), "0"])

    def test_arguments(self) -> None:
        assert split(["--target", "cpu:8", "--json", "a.py", "--target"]) == (
            ["--target", "cpu:8", "--json", "a.py"],
            ["--target"],
        )


class TestJson:
    """The JSON of a plan: documented, and read by later versions."""

    def test_fields_are_documented(self) -> None:
        page = (ROOT / "docs/planning.md").read_text()
        section = page.split("## The JSON of a plan")[1].split("\n## ")[0]
        rows = [line.split("|")[1:4] for line in section.splitlines() if line.startswith("| `")]
        names = [name for row in rows for name in row[0].replace("`", "").replace(",", " ").split()]
        fields = [field.name for field in dataclasses.fields(Plan) if field.name != "recorded"]
        assert sorted(names) == sorted(["version", *fields])
        written = json.loads(planned(lambda: mlp(torch.ones(3, 8), steps=2)).to_json())
        assert {*written} == {*names} and all(row[1].strip() and row[2].strip() for row in rows)

    def test_a_plan_of_version_1(self) -> None:
        plan = planned(lambda: mlp(torch.ones(3, 8), steps=2))
        values = json.loads(plan.to_json())
        del values["planning_seconds"], values["planning_bytes"]
        for row in values["collectives"]:
            del row["core"], row["seconds"], row["waiting"]
        read = Plan.from_json(json.dumps(values | {"version": 1}))
        assert read == dataclasses.replace(
            plan, planning_seconds=0.0, planning_bytes=0, recorded=None
        )
        assert "planned in" not in str(read) and "planned in" in str(plan)
