"""PackedDocuments: documents of any length, put together to rows of one length."""

import copy
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset

from ...core import ends_at_user_line
from .resumable import Position, Resumable, set_epoch

_Document = dict[str, torch.Tensor]


@ends_at_user_line
class PackedDocuments(IterableDataset[_Document]):
    """Rows of `length` tokens, each of one or more documents, in their order; a dataset for torch's
    loaders.

    A row is a dict of tensors of shape (length,): the documents' tokens, `sequence_ids` (1, 2, ...
    for the documents of the row, 0 for padding) and `position_ids` (from 0 on in each document).
    Attention that stays inside a document compares sequence ids:
    `(ids[:, None, :, None] == ids[:, None, None, :])` is a mask for `scaled_dot_product_attention`,
    together with a causal one.

    Args:
        documents: an iterable of documents: one-dimensional tensors, arrays or lists of token ids,
            whose rows have them under "input_ids"; or mappings of such (token ids, labels), of one
            length. Other values are left out.
        length: the tokens of a row.
        split: True cuts a document where a row is full and goes on in the next one, as a sequence
            of its own: only the last row has padding. False keeps documents whole: a row ends where
            the next one does not fit.
        padding: the value of padding, a number or a dict by key (0 where it has none).

    With workers, each has all documents unless they split themselves by
    `torch.utils.data.get_worker_info`, as a stream of `datasets` does. `state_dict` and
    `load_state_dict` continue after the last row, also by way of a StatefulDataLoader. Raises
    ValueError, while it is iterated, for a document longer than a row where `split` is False, and
    for one whose values differ in length.

    >>> import spmd
    >>> for row in spmd.data.PackedDocuments([[5, 6, 7], [8], [9, 9]], length=5):
    ...     print(*(row[key].tolist() for key in ("input_ids", "sequence_ids", "position_ids")))
    [5, 6, 7, 8, 0] [1, 1, 1, 2, 0] [0, 1, 2, 0, 0]
    [9, 9, 0, 0, 0] [1, 1, 0, 0, 0] [0, 1, 0, 0, 0]
    """

    def __init__(
        self,
        documents: Iterable[Any],
        length: int,
        *,
        split: bool = False,
        padding: float | Mapping[str, float] = 0,
    ) -> None:
        if isinstance(length, bool) or not isinstance(length, int) or length < 1:
            raise ValueError(
                f"PackedDocuments: expected a length of 1 or more tokens, got {length!r}"
            )
        self.length = length
        self.split = split
        self.padding = padding
        self._source = Resumable(documents)
        self._position: Position | None = None
        self._waiting: list[_Document] = []  # documents that are in no row yet
        self._resumed = False

    def set_epoch(self, epoch: int) -> None:
        """Passes the number of the epoch on to the documents, or to their dataset and samplers,
        where they have it."""
        set_epoch(self._source.source, epoch)

    def state_dict(self) -> dict[str, Any]:
        """The position after the last row: that of the documents, and those that are in no row
        yet."""
        position = self._source.start() if self._position is None else self._position
        return copy.deepcopy({"documents": position, "waiting": self._waiting})

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Lets the next iteration begin at a position that `state_dict` gave."""
        state = copy.deepcopy(dict(state_dict))
        self._position, self._waiting, self._resumed = state["documents"], state["waiting"], True

    def __iter__(self) -> Iterator[_Document]:
        if not self._resumed:
            self._position, self._waiting = None, []
        self._resumed = False
        for document, position in self._source.iteration(self._position):
            self._position = position
            self._waiting.append(self._checked(document))
            while (row := self._full_row()) is not None:
                yield row
        documents, self._waiting = self._waiting, []
        if any(map(_size, documents)):
            yield self._row(documents)
        self._position = self._source.between()

    def _checked(self, document: Any) -> _Document:
        """The document's tokens by key.

        Raises ValueError where their numbers differ, or none fits in a row.
        """
        named = document if isinstance(document, Mapping) else {"input_ids": document}
        tokens = {
            key: torch.as_tensor(value)
            for key, value in named.items()
            if isinstance(value, (torch.Tensor, np.ndarray, list, tuple))
        }
        sizes = {key: tuple(value.shape) for key, value in tokens.items()}
        if len(set(sizes.values())) != 1 or len(next(iter(sizes.values()))) != 1:
            raise ValueError(
                "PackedDocuments: expected one-dimensional values of one length in a document, "
                f"got {sizes}"
            )
        if not self.split and _size(tokens) > self.length:
            raise ValueError(
                f"PackedDocuments: a document of {_size(tokens)} tokens does not fit in a row of "
                f"{self.length}; cut it, or give split=True"
            )
        return tokens

    def _full_row(self) -> _Document | None:
        """Takes the documents of a full row out of those that wait; None where more documents
        fit."""
        total = sum(map(_size, self._waiting))
        if total < self.length:
            return None
        over = total - self.length
        documents, self._waiting = self._waiting, []
        if over and self.split:
            last, split_size = documents[-1], _size(documents[-1]) - over
            documents[-1] = {key: value[:split_size] for key, value in last.items()}
            self._waiting = [{key: value[split_size:] for key, value in last.items()}]
        elif over:
            self._waiting = [documents.pop()]
        return self._row(documents)

    def _row(self, documents: list[_Document]) -> _Document:
        documents = [document for document in documents if _size(document)]
        row = {}
        for key in documents[0]:
            padding = (
                self.padding.get(key, 0) if isinstance(self.padding, Mapping) else self.padding
            )
            row[key] = self._padded([document[key] for document in documents], padding)
        sizes = [*map(_size, documents)]
        row["sequence_ids"] = self._padded(
            [torch.full((size,), i) for i, size in enumerate(sizes, 1)], 0
        )
        row["position_ids"] = self._padded([*map(torch.arange, sizes)], 0)
        return row

    def _padded(self, parts: list[torch.Tensor], padding: float) -> torch.Tensor:
        tokens = torch.cat(parts)
        return torch.nn.functional.pad(tokens, (0, self.length - len(tokens)), value=padding)


def _size(document: _Document) -> int:
    return len(next(iter(document.values())))
