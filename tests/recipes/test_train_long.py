"""`recipes/train_long.py` on short rows: it learns to copy, with the losses of one device, and
draws planned memory."""

import contextlib
import io
import re
from pathlib import Path

import pytest
import torch

import spmd
from recipes import text, train_long
from recipes.training import make_console

SHORT = ["--lengths", "512", "--steps", "4", "--width=16"]


@pytest.fixture(autouse=True)
def exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    """The recipe sets it for the process."""
    monkeypatch.setattr(spmd.config, "parallel", "auto")


def printed_by(arguments: list[str]) -> str:
    """The recipe's output, in this process."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        train_long.main(arguments)
    return output.getvalue()


class TestRows:
    """A row is packed from five documents, each of which ends with the bytes that it begins
    with."""

    def test_documents_and_labels(self) -> None:
        row = next(train_long.rows(4_096, text.load().train, seed=0))
        tokens, ids, labels = (tensor[0] for tensor in row.values())
        sizes = ids.bincount()[1:].tolist()
        assert len(tokens) == sum(sizes) == 4_096 and len(sizes) == 5 and max(sizes) > 2_000
        for number, size in enumerate(sizes, 1):
            document, label = tokens[ids == number], labels[ids == number]
            key = max(8, size // 16)
            assert torch.equal(document[:key], document[-key:])
            predicted = (label >= 0).nonzero().flatten()
            assert len(predicted) == key - train_long.RECENT and predicted[0] >= size - key
            assert torch.equal(label[predicted], document[predicted + 1])

    def test_copies_reach_across_30_000_bytes(self) -> None:
        row = next(train_long.rows(65_536, text.load().heldout, seed=0))
        size = int(row["sequence_ids"].flatten().bincount().max())
        assert size - size // 16 > 30_000


class TestTraining:
    """Losses do not depend on the number of devices, and fall until most bytes are copied right."""

    @pytest.mark.parametrize("exchange", ["auto", pytest.param("ring", marks=pytest.mark.long)])
    def test_losses_of_one_device(self, exchange: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(spmd.config, "parallel", exchange)
        args = train_long.parse(SHORT)
        losses = [
            train_long.train(train_long.Run(context, args), args, make_console())
            for context in (1, 8)
        ]
        torch.testing.assert_close(*map(torch.tensor, losses), rtol=0, atol=1e-5)
        assert len(losses[0]) == 4

    def test_learns_to_copy(self) -> None:
        spmd.metrics.clear()  # of the tests before
        printed = printed_by(["--lengths", "1024", "--steps", "60"])
        before, after = (
            float(share) for share in re.findall(r"held-out row of 1,024: ([\d.]+) of all", printed)
        )
        assert before < 0.1 and after > 0.8, printed
        assert (
            len(
                re.findall(
                    r"length +1024 +step +\d+ +loss [\d.]+ +copied [\d.]+ +[\d,]+ tokens/s", printed
                )
            )
            == 5
        )
        assert "3 compiles, " in printed, (
            "initialization with the first accuracy, later ones, the step"
        )


class TestPicture:
    """`--picture` plans a step for each length and context: more devices, fewer bytes on each."""

    def test_table_and_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(train_long, "CONTEXTS", (1, 8))
        path = tmp_path / "drawn.png"
        printed = printed_by(
            ["--lengths", "2048", "8192", "--exchange", "ring", "--picture", str(path)]
        )
        rows = [
            re.findall(r"[\d.,]+", line)
            for line in printed.splitlines()
            if re.match(r"│ +[28],", line)
        ]
        short, long = ([float(size) for size in row[1:]] for row in rows)
        assert len(short) == 2 and long[0] > 3 * short[0] and long[0] > 3 * long[1]
        assert path.read_bytes().startswith(b"\x89PNG")


class TestFlags:
    """A wrong command line is an error that says what to do, before anything runs."""

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ("--lengths 2048 --steps 1 2", "--steps needs a number for each of --lengths"),
            ("--lengths 2052 --steps 1", "--lengths 2052 must be a multiple of the 8 devices"),
            ("--lengths 64 --steps 1", "at least 512"),
        ],
    )
    def test_wrong_lengths(
        self, arguments: str, message: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with pytest.raises(SystemExit):
            train_long.parse(arguments.split())
        assert message in capsys.readouterr().err
