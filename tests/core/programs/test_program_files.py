"""Programs as files: those written by one process are taken by another, or the difference is
named."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support import run_script

import spmd
from spmd.core.base import messages
from spmd.core.files.disk import readable_setting
from spmd.core.programs import cache
from spmd.tensors import sealed_json
from spmd.tools.explain import program_folder

# A GPT-like stack of equal layers under FSDP, whose weights the compiled step takes as stacks.
JOB = """
    import json, sys
    from functools import partial
    import torch, spmd, fsdp

    spmd.simulate(8)
    spmd.config.scan_layers = "always"
    {before}
    torch.manual_seed(0)
    mesh = spmd.Mesh(range(8), (8,), ("fsdp",))
    with torch.device("xla"):
        model = torch.nn.Sequential(
            *(torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Tanh()) for _ in range(6))
        )
    policy = partial(fsdp.size_based_auto_wrap_policy, min_num_params=200)
    model = fsdp.FullyShardedDataParallel(model, mesh=mesh, auto_wrap_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)


    def step(x):
        x = spmd.mark_sharding(x.to("xla"), mesh, spmd.P("fsdp", None))
        loss = model(x).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss


    x = torch.arange(16.0 * {rows}).reshape({rows}, 16) / 100
"""
SAVE = "    print(json.dumps(spmd.plan(step, x).save_program({folder!r})))\n"
TRAIN = """
    losses = []
    for _ in range(2):
        loss = step(x)
        spmd.sync()
        losses.append(loss.item())
    print(json.dumps([losses, spmd.metrics.num_compiles(), spmd.metrics.num_loaded()]))
"""


def job(rest: str, *, before: str = "", rows: int = 8) -> str:
    return JOB.format(before=before, rows=rows) + rest


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that another process has planned and written, with nothing run."""
    folder = tmp_path_factory.mktemp("job") / "programs"
    number = json.loads(run_script(job(SAVE.format(folder=str(folder))), SPMD_PROGRAM_CACHE="0"))
    assert number == len(list(folder.glob("*.program"))) >= 2
    return folder


def load(folder: Path) -> str:
    return f"print(spmd.load_programs({str(folder)!r}))"


class TestJob:
    """A process that has the folder trains without compiling; its losses are those of a process
    that compiles."""

    def test_first_step_compiles_nothing(self, saved: Path) -> None:
        number, printed = run_script(
            job(TRAIN, before=load(saved)), SPMD_PROGRAM_CACHE="0"
        ).splitlines()
        losses, compiled, loaded = json.loads(printed)
        assert compiled == 0 and loaded == len(list(saved.glob("*.program"))) > int(number) >= 2
        expected, by_itself, _ = json.loads(run_script(job(TRAIN), SPMD_PROGRAM_CACHE="0"))
        assert losses == expected and by_itself > 0

    def test_another_batch_is_named(self, saved: Path) -> None:
        report = "\n    print(spmd.metrics.report())\n"
        printed = run_script(
            job(TRAIN + report, before=load(saved), rows=16), SPMD_PROGRAM_CACHE="0"
        )
        assert (
            "lacks: input " in printed
            and "is now float32[16,16], in the saved program float32[8,16]" in printed
        )
        # the initial values are those that were saved
        assert json.loads(printed.splitlines()[1])[1] == 1


class TestSetting:
    """Programs of another setting are refused at once, with the first thing that differs."""

    @pytest.fixture(autouse=True)
    def forgotten(self) -> Iterator[None]:
        yield
        program_folder._folders.clear()
        messages.forget()

    @pytest.mark.parametrize(
        ("name", "was", "says"),
        [
            ("jaxlib", "0.0.1", "jaxlib is .* here, and was '0.0.1' where they were compiled"),
            ("torch", "1.0", "torch is"),
            ("XLA_FLAGS", "--xla_foo", "XLA_FLAGS is"),
            ("jax_enable_x64", "maybe", "jax_enable_x64 is"),
            ("devices", "4 x TPU v5e", "devices is '8 x cpu' here, and was '4 x TPU v5e'"),
            ("source", "0", "this library's own source differs"),
        ],
    )
    def test_difference(self, saved: Path, tmp_path: Path, name: str, was: str, says: str) -> None:
        found = json.loads((saved / "programs.json").read_text())
        spmd.device_ids()  # the devices have started
        found["setting"] = {**readable_setting(), name: was}
        del found["sha256"]
        (tmp_path / "programs.json").write_text(sealed_json.text(found))
        before = program_folder.known()  # folders that earlier tests have given
        with pytest.raises(ValueError, match=says):
            spmd.load_programs(tmp_path)
        assert program_folder.known() == before

    def test_version_of_the_manifest(self, tmp_path: Path) -> None:
        (tmp_path / "programs.json").write_text(sealed_json.text({"version": 9}))
        with pytest.raises(ValueError, match=r"of version 1; .* has version 9"):
            spmd.load_programs(tmp_path)

    def test_a_damaged_file_is_compiled(
        self, tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        def double() -> list[float]:
            return (torch.ones(3, device="xla") * 2.5).tolist()

        model = torch.nn.Linear(3, 2, device="xla")
        folder = tmp_path / "programs"
        spmd.warm(lambda: model(torch.ones(4, 3, device="xla")).sum().backward(), folder=folder)
        for file in folder.glob("*.program"):
            file.write_bytes(file.read_bytes()[:-1] + b"?")
        assert spmd.load_programs(folder) >= 1
        cache.clear_cache()
        before = spmd.metrics.num_compiles()
        model(torch.ones(4, 3, device="xla")).sum().backward()
        spmd.sync()
        assert spmd.metrics.num_compiles() > before and double() == [2.5] * 3
        assert "damaged or of another setting" in capfd.readouterr().err


class TestGraph:
    """The nearest saved program is compared with a graph that is none of them."""

    @pytest.fixture(autouse=True)
    def forgotten(self) -> Iterator[None]:
        cache.clear_cache()
        yield
        program_folder._folders.clear()
        messages.forget()

    def says(
        self, capfd: pytest.CaptureFixture[str], folder: Path, change: str, mesh8: spmd.Mesh
    ) -> str:
        """Saves a step, changes something and runs it; what stderr then has."""
        x = torch.arange(64.0).reshape(8, 8)

        def step(spec: spmd.P, dtype: torch.dtype, more: bool) -> torch.Tensor:
            y = spmd.mark_sharding(x.to(dtype).to("xla"), mesh8, spec)
            z = (y @ y).tanh().sum(0)
            return (z + 1 if more else z) * 3

        plain = (spmd.P("fsdp", None), torch.float32, False)
        spmd.warm(step, *plain, folder=folder)
        spmd.load_programs(folder)
        cache.clear_cache()
        spec, dtype, more = plain
        flag = spmd.config.scan_layers
        if change == "dtype":
            dtype = torch.float64
        elif change == "sharding":
            spec = spmd.P(None, "fsdp")
        elif change == "op":
            more = True
        elif change == "flag":
            spmd.config.scan_layers = "never"
        try:
            before = spmd.metrics.num_compiles()
            made = step(spec, dtype, more)
            spmd.sync()
            assert (spmd.metrics.num_compiles() > before) is (change != "nothing")
            del made
        finally:
            spmd.config.scan_layers = flag
        return capfd.readouterr().err + "\n".join(spmd.metrics.report().splitlines())

    @pytest.mark.parametrize(
        ("change", "says"),
        [
            ("dtype", "is now float64[8,8], in the saved program float32[8,8]"),
            ("sharding", "in the saved program"),
            ("op", "is now aten.add.Tensor"),
            ("flag", "spmd.config.scan_layers is now 'never', in the saved program 'auto'"),
        ],
    )
    def test_difference(
        self,
        change: str,
        says: str,
        tmp_path: Path,
        capfd: pytest.CaptureFixture[str],
        mesh8: spmd.Mesh,
    ) -> None:
        printed = self.says(capfd, tmp_path / "programs", change, mesh8)
        assert "lacks" in printed and says in printed

    def test_no_difference(
        self, tmp_path: Path, capfd: pytest.CaptureFixture[str], mesh8: spmd.Mesh
    ) -> None:
        assert (
            "lacks"
            not in self.says(capfd, tmp_path / "programs", "nothing", mesh8).partition("\n")[0]
        )

    def test_manifest_is_readable(
        self, tmp_path: Path, mesh8: spmd.Mesh, capfd: pytest.CaptureFixture[str]
    ) -> None:
        self.says(capfd, tmp_path / "programs", "nothing", mesh8)
        found = json.loads((tmp_path / "programs" / "programs.json").read_text())
        (program,) = found["programs"]
        assert program["inputs"][0][0] == "float32[8,8]" and program["bytes"]["arguments"] > 0
        assert [op[0] for op in program["ops"]].count("aten.mm") == 1
        assert any("def" not in line and "y @ y" in line for line in program["lines"])
        assert found["setting"]["torch"] == str(torch.__version__)


class TestRefused:
    def test_plan_from_json(self) -> None:
        model = torch.nn.Linear(3, 2, device="meta")
        made = spmd.plan(lambda x: model(x).sum().backward(), torch.ones(4, 3))
        with pytest.raises(ValueError, match="a plan of a step that this process made"):
            spmd.Plan.from_json(made.to_json()).save_program("nowhere")

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"peak": "x"}, "expected the plan.peak as int, got 'x'"),
            ({"peak": 10**30}, "expected the plan.peak as int"),
            ({"peak": True}, "expected the plan.peak as int"),
            ({"mesh": []}, "expected the plan.mesh as "),
            ({"collectives": [3]}, "expected the plan.collectives as Collective"),
            ({"other": 1}, "expected the plan.other"),
            ({"terms": [{"name": "x"}]}, "the plan.terms: .* missing 4 required"),
            ({"notes": 3}, "expected the plan.notes"),
        ],
    )
    def test_json_of_strangers(self, change: dict[str, Any], words: str) -> None:
        model = torch.nn.Linear(3, 2, device="meta")
        text = spmd.plan(lambda x: model(x).sum().backward(), torch.ones(4, 3)).to_json()
        with pytest.raises(ValueError, match=words):
            spmd.Plan.from_json(json.dumps(json.loads(text) | change))
        with pytest.raises(ValueError, match="expected JSON"):
            spmd.Plan.from_json("[" * 200_000)

    def test_users_function(self, tmp_path: Path) -> None:
        made = spmd.plan(lambda x: spmd.call_jax(lambda a: a + 1, x.to("xla")), torch.ones(3))
        with pytest.raises(
            ValueError, match=r"cannot be a file: it holds a user's function \(spmd.call_jax"
        ):
            made.save_program(tmp_path / "programs")

    def test_devices_elsewhere(self, tmp_path: Path) -> None:
        model = torch.nn.Linear(3, 2, device="meta")
        made = spmd.plan(lambda x: model(x).sum().backward(), torch.ones(4, 3), target="cpu:16")
        with pytest.raises(ValueError, match="its devices are not here"):
            made.save_program(tmp_path / "programs")

    def test_data_on_the_devices(self, tmp_path: Path) -> None:
        x = torch.ones(3).to("xla") + 1
        spmd.sync()
        with pytest.raises(ValueError, match="reads data that is on the devices already"):
            spmd.plan(lambda: x * 2).save_program(tmp_path / "programs")

    def test_a_folder_with_other_files(self, tmp_path: Path) -> None:
        (tmp_path / "thesis.txt").write_text("mine")
        with pytest.raises(ValueError, match="expected a new or an empty folder"):
            spmd.warm(lambda: torch.ones(3, device="xla") * 2, folder=tmp_path)
        assert (tmp_path / "thesis.txt").read_text() == "mine"
