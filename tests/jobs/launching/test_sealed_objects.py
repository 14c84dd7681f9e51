"""Objects between processes: plain values, tensors and plans come back; the bytes of a stranger run
nothing."""

import io
import os
import pickle
import uuid
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint import CheckpointException, DefaultSavePlanner, metadata
from torch.distributed.checkpoint.api import _is_wrapped_exception, _wrap_exception

import spmd
from spmd.jobs.launching import sealed_objects as objects


class Hostile:
    """An object whose unpickling writes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> object:
        return os.mkdir, (str(self.path),)


class TestRestricted:
    """What processes without a secret exchange."""

    @pytest.mark.parametrize(
        "value",
        [
            None,
            1,
            2.5,
            "text",
            b"bytes",
            {"a": [1, (True, None)], 3: {4}},
            torch.float32,
            torch.Size([2, 3]),
            1j,
            Path("a/b"),
        ],
        ids=str,
    )
    def test_plain(self, value: object) -> None:
        back = objects.loads(objects.dumps(value))
        assert back == value and type(back) is type(value)

    def test_tensors(self) -> None:
        back = objects.loads(objects.dumps([torch.arange(3), torch.ones(2, device="xla")]))
        assert back[0].tolist() == [0, 1, 2] and back[1].cpu().tolist() == [1, 1]

    def test_plans(self) -> None:
        planner = DefaultSavePlanner()
        planner.set_up_planner({"x": torch.ones(4), "y": 3}, None, is_coordinator=True)
        plan = planner.create_local_plan()
        assert objects.loads(objects.dumps(plan)) == plan
        _, whole = planner.create_global_plan([plan])
        assert isinstance(whole, metadata.Metadata) and objects.loads(objects.dumps(whole)) == whole

    def test_errors(self) -> None:
        class OwnError(Exception):
            pass

        pairs = {}
        for rank, error in enumerate(
            (ValueError("a value"), OwnError("of a class that nobody else has"))
        ):
            try:
                raise error
            except Exception as caught:
                pairs[rank] = _wrap_exception(caught)
        back = objects.loads(objects.dumps(pairs))
        assert all(map(_is_wrapped_exception, back.values())) and type(back[0][0]) is ValueError
        failure = objects.loads(objects.dumps(CheckpointException("save", pairs)))
        assert isinstance(failure, CheckpointException)
        assert "ValueError: a value" in str(
            failure
        ) and "OwnError: of a class that nobody else has" in str(failure)

    @pytest.mark.parametrize(
        ("module", "name"),
        [
            ("os", "system"),
            ("builtins", "eval"),
            ("builtins", "getattr"),
            ("torch", "load"),
            ("torch", "ops.x"),
            ("torch.distributed.checkpoint.filesystem", "os.system"),
            ("spmd.jobs.launching.sealed_objects", "pickle.loads"),
            ("torch.distributed.checkpoint.filesystem", "FileSystemWriter"),
            ("builtins", "bytearray"),
        ],
    )
    def test_other_names(self, module: str, name: str) -> None:
        with pytest.raises(
            pickle.UnpicklingError, match="is no part of a plain value or of a checkpoint's plan"
        ):
            objects.Reader(io.BytesIO()).find_class(module, name)

    def test_hostile(self, tmp_path: Path) -> None:
        with pytest.raises(pickle.UnpicklingError, match="mkdir is no part of a plain value"):
            objects.loads(pickle.dumps(Hostile(tmp_path / "made")))
        tensor = io.BytesIO()
        torch.save(Hostile(tmp_path / "made"), tensor)
        with pytest.raises(pickle.UnpicklingError, match="Weights only load failed"):
            objects._tensor(tensor.getvalue())
        assert not (tmp_path / "made").exists()


class TestSealed:
    """The secret of a job lets any object pass, from its own processes."""

    def test_secret(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("SPMD_JOB_SECRET", "one")
        content = objects.sealed(Hostile(tmp_path / "made"))
        for secret in ("another", ""):
            monkeypatch.setenv("SPMD_JOB_SECRET", secret)
            with pytest.raises(spmd.ProcessError, match="without their secret"):
                objects.opened(content)
        assert not (tmp_path / "made").exists()
        monkeypatch.setenv("SPMD_JOB_SECRET", "one")
        objects.opened(content)
        assert (tmp_path / "made").exists()

    def test_without_a_secret(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """What anybody can seal is read by the restricted reader."""
        monkeypatch.delenv("SPMD_JOB_SECRET", raising=False)
        assert objects.opened(objects.sealed({"rank": 1})) == {"rank": 1}
        with pytest.raises(spmd.ProcessError, match=r"UUID is no part of .* Set SPMD_JOB_SECRET"):
            objects.opened(objects.sealed([uuid.uuid4()]))
