"""The Llama as a user trains it: a few tiny steps, in this process."""

import contextlib
import copy
import importlib.util
import io
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from support import check

import fsdp
import spmd
from recipes import llama, train_llama
from recipes.llama import Llama, LlamaConfig
from spmd.jobs.checkpoint import preemption
from spmd.jobs.checkpoint.step_reader import StepReader

SIZES = {"layers": 1, "width": 16, "heads": 4, "kv-heads": 2, "sequence": 16, "batch": 16}
TINY = [f"--{name}={value}" for name, value in SIZES.items()]
STEPS = ["--steps=6", "--warmup=1", "--eval-every=3", "--sample=3", "--save-every=3"]


def run(*arguments: str) -> str:
    """The recipe's output."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        train_llama.main([*TINY, *STEPS, *arguments])
    return printed.getvalue()


def saved(folder: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """The values and the tensors of a checkpoint, on the CPU."""
    reader = StepReader(folder)
    return reader.manifest["values"], {name: reader.read(name) for name in reader.tensors}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("run") / "made"


@pytest.fixture(scope="module")
def printed(made: Path) -> str:
    return run("--out", str(made))


class TestReport:
    """It prints units and plan, progress, the held-out loss before and after, and leaves
    loss.png."""

    def test_units(self, printed: str) -> None:
        assert re.search(
            r"\.0\.attention\.query\.weight +\(16, 16\) +float32 +P\('tensor', 'fsdp'\) +128 B",
            printed,
        )
        assert re.search(
            r"\.0\.attention\.key\.weight +\(8, 16\) +float32 +P\('tensor', 'fsdp'\) +64 B", printed
        )
        assert re.search(
            r"\.0\.down\.weight +\(16, 64\) +float32 +P\('fsdp', 'tensor'\) +512 B", printed
        )

    def test_plan(self, printed: str, made: Path) -> None:
        assert "(fsdp=4, tensor=2)" in printed and "optimizer state" in printed
        assert re.search(r"all-gather +fsdp \(4\)", printed) and re.search(
            r"all-gather +tensor \(2\)", printed
        )
        assert (made / "plan.html").read_text().startswith("<!doctype html>")

    def test_loss_falls(self, printed: str) -> None:
        before, after = re.findall(
            r"held-out loss ([\d.]+) nats per byte before, ([\d.]+) after", printed
        )[0]
        assert float(after) < float(before) - 0.1
        assert len(re.findall(r"step +\d+ +held-out [\d.]+ +\(bigram table 2\.\d+\)", printed)) == 3

    def test_programs(self, printed: str) -> None:
        compiles = [int(count) for count in re.findall(r"tokens/s +(\d+) compiles", printed)]
        assert len(compiles) == 2 and compiles[0] == compiles[1], "the step is one program"

    def test_sample_and_picture(self, printed: str, made: Path) -> None:
        assert "A sample" in printed
        assert (made / "loss.png").read_bytes().startswith(b"\x89PNG")


class TestResume:
    """Training continues from a checkpoint bit for bit, also on another mesh."""

    def test_same_losses_and_weights(self, printed: str, made: Path, tmp_path: Path) -> None:
        again = run("--out", str(tmp_path / "again"), "--resume", str(made / "checkpoints" / "3"))
        assert "continues after step 3" in again and "step     1 " not in again
        first, second = (saved(out / "checkpoints" / "6") for out in (made, tmp_path / "again"))
        assert first[0] == second[0] and len(first[0]["history"]["state"]["heldout"]) == 3
        assert sum(name.startswith("optimizer.state") for name in first[1]) > 10
        torch.testing.assert_close(first[1], second[1], rtol=0, atol=0)

    def test_preempted(
        self, printed: str, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Before a preemption the step is saved, and the run ends; another one goes on from
        there."""
        with monkeypatch.context() as patched:
            patched.setattr(preemption, "reached", lambda step: step == 2)
            first = run("--out", str(tmp_path))
        assert (
            f"preempted: --resume {tmp_path / 'checkpoints' / '2'} goes on" in first
            and "A sample" not in first
        )
        run("--out", str(tmp_path), "--resume", str(tmp_path / "checkpoints" / "2"), "--sample=0")
        expected, found = (saved(out / "checkpoints" / "6") for out in (made, tmp_path))
        torch.testing.assert_close(expected[1], found[1], rtol=0, atol=0)

    def test_other_mesh(self, printed: str, made: Path, tmp_path: Path) -> None:
        checkpoint, mesh = str(made / "checkpoints" / "3"), "data=2,fsdp=2,tensor=2"
        other = run(
            "--out",
            str(tmp_path),
            "--resume",
            checkpoint,
            "--mesh",
            mesh,
            "--accumulate=1",
            "--sample=0",
        )
        losses = [re.findall(r"step +6 +loss ([\d.]+)", text) for text in (printed, other)]
        assert "(data=2, fsdp=2, tensor=2)" in other
        # bfloat16, summed in other orders
        assert float(losses[1][0]) == pytest.approx(float(losses[0][0]), rel=2e-3)


class TestStep:
    """Gradients of micro-batches add up to those of the whole batch in plain PyTorch, on any
    mesh."""

    def test_beside_plain_torch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(llama, "PRECISION", fsdp.MixedPrecisionPolicy())
        mesh = spmd.Mesh(range(8), (2, 4), ("fsdp", "tensor"))
        config = LlamaConfig(
            layers=1, width=32, heads=8, kv_heads=4, hidden=32, vocabulary=64, sequence=16
        )
        plain, batch = Llama(config), torch.randint(64, (2, 8, 16))
        model = llama.fully_sharded(copy.deepcopy(plain), mesh)
        parts = zip(*(tokens.chunk(4) for tokens in batch), strict=True)
        micro = [
            (train_llama.put(inputs, mesh), train_llama.put(targets, mesh))
            for inputs, targets in parts
        ]
        ours, theirs = (torch.optim.SGD(module.parameters(), lr=0.5) for module in (model, plain))
        loss = train_llama.train_step(model, ours, micro, clip=1.0)
        check(loss, train_llama.train_step(plain, theirs, [(batch[0], batch[1])], clip=1.0))
        for (name, one), other in zip(model.named_parameters(), plain.parameters(), strict=True):
            assert spmd.get_sharding(one) is not None, name
            check(one, other)


class TestTarget:
    """--target plans the step for other devices; nothing is trained."""

    def test_planned(self, tmp_path: Path) -> None:
        printed = run("--target", "cpu:8", "--out", str(tmp_path))
        assert (
            "cpu:8 (fsdp=4, tensor=2)" in printed
            and "all-gather" in printed
            and "tokens/s" not in printed
        )
        assert (tmp_path / "plan.html").read_text().startswith("<!doctype html>")

    @pytest.mark.skipif(
        importlib.util.find_spec("libtpu") is not None,
        reason="libtpu, which it needs, is installed",
    )
    def test_without_libtpu(self, tmp_path: Path) -> None:
        with pytest.raises(
            SystemExit, match=r"target 'v5e:2x4' is not known: .*with the package libtpu installed"
        ):
            run("--target", "v5e:2x4", "--out", str(tmp_path))

    @pytest.mark.skipif(
        importlib.util.find_spec("libtpu") is None, reason="needs the extra tpu; without: see above"
    )
    def test_chips(self, tmp_path: Path) -> None:
        printed = run("--target", "v5e:2x4", "--out", str(tmp_path))
        assert (
            "v5e:2x4 (fsdp=4, tensor=2)" in printed
            and "cycles" in printed
            and "tokens/s" not in printed
        )


class TestArguments:
    """A wrong command line is an error that says what to do, before anything runs."""

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ("--mesh model=8", "the axes are fsdp and, if wanted, data and tensor, each once"),
            (
                "--batch 12",
                "--batch 12 must be a multiple of 8: 2 micro-batches (--accumulate) over 4 shares",
            ),
            (
                "--kv-heads 3",
                "--width 256, --heads 8, --kv-heads 3: each must divide the one before",
            ),
            ("--mesh fsdp=1,tensor=8", "--kv-heads 4 must be a multiple of the mesh's tensor=8"),
            ("--sequence 33", "--sequence 33 must be a multiple of the mesh's tensor=2"),
            ("--steps 0", "--steps must be at least 1"),
            (
                "--resume nowhere",
                "--resume nowhere is no checkpoint: expected a folder that a run has saved",
            ),
        ],
    )
    def test_refused(
        self, arguments: str, message: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with pytest.raises(SystemExit):
            train_llama.parse(arguments.split())
        assert message in capsys.readouterr().err
