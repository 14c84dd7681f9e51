"""A tensor's next value while its pieces come in, from a file or wherever: no host ever holds more than one piece."""

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import torch

from ..ir.errors import AbstractError
from ..ir.graph import Leaf
from ..ir.meta import dense_meta
from ..ir.source import user_frame, user_line
from ..lazy.annotate import current_sharding
from ..lazy.cell import LOCK
from ..lazy.tensor import XlaTensor
from ..pjrt import devices, transfer
from ..pjrt.transfer import Piece
from .abstract import recording


def can_fill(tensor: XlaTensor) -> bool:
    """Whether a tensor's memory can be taken piece by piece: all of it, in torch's own order."""
    meta = tensor._meta
    return tensor._view is None and meta.numel > 0 and meta is dense_meta(meta.shape, meta.dtype)


class Filling:
    """The pieces of one tensor's next value; the tensor takes it when the last of them is here."""

    def __init__(self, tensor: XlaTensor, when_done: Callable[[], Any] = lambda: None):
        if recording() is not None:
            raise AbstractError(f"loading data at {user_line()}: spmd.plan records the step and runs nothing")
        self.tensor = tensor
        self.shape = tensor._meta.shape
        self.sharding = current_sharding(tensor) or devices.default_sharding()
        self.pieces = transfer.pieces_here(self.shape, self.sharding)
        self._when_done = when_done
        self._parts: list[jax.Array] = []
        self._missing = len(self.pieces)
        self._lock = threading.Lock()  # readers of files may be several

    def put(self, piece: Piece, data: torch.Tensor) -> None:
        """Uploads one piece, a CPU tensor of the tensor's dtype that nobody else writes any more."""
        parts = transfer.upload_piece(transfer.host_array(data), piece, self.shape, self.sharding)
        with self._lock:
            self._parts += parts
            self._missing -= 1
            is_last = not self._missing
        if is_last:
            self._finish()

    def _finish(self) -> None:
        buffer = transfer.joined(self._parts, self.shape, self.sharding)
        torch.autograd.graph.increment_version(self.tensor)
        with LOCK:
            self.tensor._cell.write(Leaf(self.tensor._meta, buffer=buffer, sharding=self.sharding, source=user_frame()))
            self.tensor._cell.home = self.sharding
        self._when_done()


class Target:
    """A piece of a filling while parts of it are written: what is behind `staged` goes up when all of it has come."""

    def __init__(self, filling: Filling, piece: Piece):
        self.filling, self.piece = filling, piece
        self._data: torch.Tensor | None = None
        self._left = max(1, torch.Size(piece.shape).numel())
        self._lock = threading.Lock()

    def staged(self) -> "Staged":
        """The piece as a CPU tensor to be written, whole or part by part."""
        with self._lock:
            if self._data is None:
                self._data = torch.empty(self.piece.shape, dtype=self.filling.tensor.dtype, device="cpu")
            made = self._data.as_subclass(Staged)
        made.target = self
        return made

    def written(self, numel: int) -> None:
        """Counts what was written; nothing is written twice."""
        with self._lock:
            self._left -= numel
            data, done = self._data, self._left <= 0
            self._data = None if done else data
        if done:
            assert data is not None
            self.filling.put(self.piece, data)


class Staged(torch.Tensor):
    """A CPU tensor, or a part of one, that tells its target when it is copied into."""

    target: Target

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = super().__torch_function__(func, types, args, kwargs)
        if func is torch.Tensor.copy_:
            args[0].target.written(args[0].numel())
        elif isinstance(made, Staged) and args and isinstance(args[0], Staged):
            made.target = args[0].target
        return made


def targets(filling: Filling) -> Iterator[tuple[tuple[int, ...], Target]]:
    """Each piece that has data under where it begins; those of padding alone are made here."""
    for piece in filling.pieces:
        if 0 in piece.shape:
            filling.put(piece, torch.empty(piece.shape, dtype=filling.tensor.dtype, device="cpu"))
        else:
            yield begins(piece.indices), Target(filling, piece)


def begins(indices: Sequence[slice]) -> tuple[int, ...]:
    """Where a piece begins, dim by dim."""
    return tuple(index.start for index in indices)
