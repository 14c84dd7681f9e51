"""spmd.DataLoader resumed in the midst of an epoch, and packed documents."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from batches import Counting, has_no_threads, numbers, values
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils import data

import spmd
from spmd import Mesh, P
from spmd.data import PackedDocuments

ROWS = P("fsdp")


def shuffled(seed: int | None = 3, **how: Any) -> data.DataLoader[Any]:
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    return data.DataLoader(
        data.TensorDataset(numbers(40)), batch_size=4, shuffle=True, generator=generator, **how
    )


class Drawn(data.Dataset):
    """Samples with an augmentation that draws from torch's default generator."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> torch.Tensor:
        return index + torch.rand(())


def resumed(
    make: Callable[[], Any], mesh: Mesh, before: int, epochs: int = 2, **how: Any
) -> tuple[list[Any], list[Any]]:
    """The batches of an uninterrupted run, and of one that saves after `before` batches and goes on
    in a new loader."""
    torch.manual_seed(5)
    loader = spmd.DataLoader(make(), mesh, ROWS, **how)
    expected = values(batch for _ in range(epochs) for batch in loader)
    torch.manual_seed(5)
    loader, found, epoch, left = spmd.DataLoader(make(), mesh, ROWS, **how), [], 0, before
    while epoch < epochs:
        for batch in loader:
            found += values([batch])
            left -= 1
            if left == 0:
                break
        else:
            epoch += 1
            continue
        state = loader.state_dict()
        assert has_no_threads()
        torch.manual_seed(99)  # another process
        loader = spmd.DataLoader(make(), mesh, ROWS, **how)
        loader.load_state_dict(state)
    return found, expected


class TestResume:
    """A run that stops in an epoch and goes on in another loader has the batches of one that does
    not, bit for bit."""

    @pytest.mark.parametrize("before", [1, 7, 10, 13, 20])
    @pytest.mark.parametrize(
        "make",
        [
            shuffled,
            lambda: shuffled(None),
            lambda: data.DataLoader(Drawn(), batch_size=4, shuffle=True),
            lambda: Counting(10),
        ],
        ids=["generator", "default", "augmented", "iterable"],
    )
    def test_counted(self, make: Callable[[], Any], before: int, mesh1: Mesh) -> None:
        found, expected = resumed(make, mesh1, before)
        assert found == expected and len(expected) == 20

    def test_other_sampler(self, mesh1: Mesh) -> None:
        def make() -> Any:
            dataset = data.TensorDataset(numbers(40))
            sampler = data.RandomSampler(dataset, generator=torch.Generator().manual_seed(8))
            return data.DataLoader(dataset, batch_size=4, sampler=sampler)

        found, expected = resumed(make, mesh1, 13)
        assert found == expected

    @pytest.mark.parametrize("last", ["drop", "pad"])
    def test_rows(self, last: str, mesh1: Mesh) -> None:
        """The rows of a full batch are known after resuming before the last one, too."""
        found, expected = resumed(lambda: [numbers(4), numbers(4), numbers(3)], mesh1, 2, last=last)
        assert found == expected

    def test_between_epochs(self, mesh1: Mesh) -> None:
        first = spmd.DataLoader(shuffled(), mesh1, ROWS)
        list(first)
        second = spmd.DataLoader(shuffled(), mesh1, ROWS)
        second.load_state_dict(first.state_dict())
        assert values(second) == values(first)

    def test_before_the_first(self, mesh1: Mesh) -> None:
        first, second = (spmd.DataLoader(shuffled(seed), mesh1, ROWS) for seed in (1, 2))
        second.load_state_dict(first.state_dict())
        assert values(second) == values(first)

    def test_other_source(self, mesh1: Mesh) -> None:
        loader = spmd.DataLoader(shuffled(), mesh1, ROWS)
        dataset = data.TensorDataset(numbers(4))
        sampler = data.RandomSampler(dataset, generator=torch.Generator())
        other = spmd.DataLoader(data.DataLoader(dataset, sampler=sampler), mesh1, ROWS)
        other.load_state_dict(loader.state_dict())
        with pytest.raises(
            ValueError, match="got that of one with 1 generators, which has 2; resume with the same"
        ):
            iter(other)
        other.load_state_dict(
            {**loader.state_dict(), "position": {"items": 1, "state": {}, "generators": []}}
        )
        with pytest.raises(
            ValueError, match="got that of one with a state of its own, which has none"
        ):
            iter(other)

    def test_is_saved_by_torch(self, mesh1: Mesh, tmp_path: Any) -> None:
        loader = spmd.DataLoader(shuffled(), mesh1, ROWS)
        next(iter(loader))
        torch.save(loader.state_dict(), tmp_path / "loader.pt")
        state = torch.load(tmp_path / "loader.pt")
        assert state["position"]["items"] == 1

    def test_own_state(self, mesh1: Mesh) -> None:
        """A source's own state is that after the last batch given out, whatever the thread has
        pulled since."""

        class Stateful:
            def __init__(self) -> None:
                self.at = {"next": 0}

            def state_dict(self) -> dict[str, int]:
                return self.at

            def load_state_dict(self, state: dict[str, int]) -> None:
                self.at = state

            def __iter__(self) -> Iterator[torch.Tensor]:
                while self.at["next"] < 10:
                    self.at["next"] += 1
                    yield torch.tensor([float(self.at["next"])])
                self.at = {"next": 0}

        found, expected = resumed(Stateful, mesh1, 4)
        assert found == expected and len(found) == 20

    def test_set_epoch(self, mesh1: Mesh) -> None:
        dataset = data.TensorDataset(numbers(16))
        sampler = data.DistributedSampler(dataset, num_replicas=1, rank=0, seed=4)
        loader = spmd.DataLoader(
            data.DataLoader(dataset, batch_size=4, sampler=sampler), mesh1, ROWS
        )
        loader.set_epoch(3)
        assert sampler.epoch == 3
        batches = iter(loader)
        next(batches)
        state, rest = loader.state_dict(), values(batches)
        sampler.set_epoch(0)
        loader.load_state_dict(state)
        assert sampler.epoch == 3 and values(loader) == rest


class TestPacking:
    """Rows of documents: what they hold is what was put in, and attention by sequence ids sees one
    document alone."""

    @settings(max_examples=60, deadline=None)
    @given(
        sizes=st.lists(st.integers(0, 9), max_size=12),
        length=st.integers(9, 20),
        split=st.booleans(),
    )
    def test_any(self, sizes: list[int], length: int, split: bool) -> None:
        length = length if not split else length - 7
        documents = [torch.arange(size) + 100 * i for i, size in enumerate(sizes, 1)]
        rows = [*PackedDocuments(documents, length, split=split, padding=-1)]
        pieces = []
        for row in rows:
            assert all(value.shape == (length,) for value in row.values())
            ids = row["sequence_ids"]
            number = int(ids.max())
            assert (
                number > 0
                and (row["input_ids"][ids == 0] == -1).all()
                and (row["position_ids"][ids == 0] == 0).all()
            )
            for i in range(1, number + 1):
                inside = ids == i
                assert row["position_ids"][inside].tolist() == [*range(int(inside.sum()))]
                pieces.append(row["input_ids"][inside].tolist())
        if split:
            assert all((row["sequence_ids"] > 0).all() for row in rows[:-1])
            assert [token for piece in pieces for token in piece] == torch.cat(
                [torch.empty(0), *documents]
            ).tolist()
        else:
            assert pieces == [document.tolist() for document in documents if len(document)]

    def test_keys(self) -> None:
        document = {"input_ids": [1, 2], "labels": np.array([3, 4]), "text": "ab"}
        (row,) = PackedDocuments([document], 3, padding={"labels": -100})
        assert {key: value.tolist() for key, value in row.items()} == {
            "input_ids": [1, 2, 0],
            "labels": [3, 4, -100],
            "sequence_ids": [1, 1, 0],
            "position_ids": [0, 1, 0],
        }

    def test_errors(self) -> None:
        with pytest.raises(ValueError, match="a document of 4 tokens does not fit in a row of 3"):
            list(PackedDocuments([[1, 2, 3, 4]], 3))
        with pytest.raises(ValueError, match="one-dimensional values of one length"):
            list(PackedDocuments([{"input_ids": [1, 2], "labels": [1]}], 3))
        with pytest.raises(ValueError, match="expected a length of 1 or more tokens, got 0"):
            PackedDocuments([], 0)

    @pytest.mark.parametrize("split", [False, True])
    @pytest.mark.parametrize("before", [1, 2, 5, 6, 7, 8, 9])
    def test_resume(self, split: bool, before: int, mesh1: Mesh) -> None:
        def make() -> data.DataLoader[Any]:
            documents = [torch.full((size,), size) for size in (5, 3, 9, 1, 1, 8, 2, 6, 4, 7, 3, 3)]
            return PackedDocuments(documents, 10, split=split)

        found, expected = resumed(make, mesh1, before)
        assert found == expected

    def test_attention(self, mesh8: Mesh) -> None:
        """A document's attention in a packed row is that of the document by itself."""
        documents = [torch.arange(1, size + 1) for size in (5, 3, 6, 2, 7, 1, 4, 4) * 3]
        rows = data.DataLoader(PackedDocuments(documents, 8), batch_size=8)
        table = torch.randn(8, 4)
        alone = [
            attended(table[document][None], torch.ones(1, len(document)))[0]
            for document in documents
        ]
        found = []
        for row in spmd.DataLoader(rows, mesh8, ROWS, last="pad"):
            out = attended(table.to("xla")[row["input_ids"]], row["sequence_ids"]).cpu()
            ids = row["sequence_ids"].cpu()
            found += [
                out[r][ids[r] == i]
                for r in range(8)
                if row["valid"][r].item()
                for i in range(1, int(ids[r].max()) + 1)
            ]
        assert len(found) == len(alone)
        for one, other in zip(found, alone, strict=True):
            torch.testing.assert_close(one, other, rtol=2e-5, atol=2e-5)


def attended(x: torch.Tensor, sequence_ids: torch.Tensor) -> torch.Tensor:
    """Causal attention over (batch, length, width) inside each sequence."""
    length = x.shape[1]
    causal = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
    mask = (sequence_ids[:, None, :, None] == sequence_ids[:, None, None, :]) & causal
    heads = x[:, None]
    return torch.nn.functional.scaled_dot_product_attention(heads, heads, heads, attn_mask=mask)[
        :, 0
    ]
