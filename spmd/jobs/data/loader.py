"""DataLoader: any source of batches, whose next batches are uploaded while the step runs."""

import copy
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from ...core import ends_at_user_line
from ...mesh.global_mesh import needed_mesh
from ...mesh.mesh import Mesh
from .ahead import Ahead, going_on
from .last_rows import HostBatch, RowCounts
from .placing import Placing, Specs, tensors
from .resumable import Position, Resumable, set_epoch

MASK = "valid"


@ends_at_user_line
class DataLoader:
    """A loader of batches on the device: a thread uploads the next ones, shard by shard, while the
    step runs.

    It takes the batches of any iterable: torch's DataLoader, torchdata's StatefulDataLoader, a
    stream of `datasets` with torch's format, grain's DataLoader, a list, a generator. Tensors and
    arrays of numbers in mappings, sequences and dataclasses become tensors on xla; everything else
    stays as it is. The values are snapshots: the source may write into its memory again. Shuffling
    and sampling, and workers, are the source's.

    Args:
        loader: the source, of CPU tensors. With several processes that of this process's part of
            each batch, as `from_process_local` takes it.
        mesh: the devices; None: the mesh of `with mesh:`, or of `set_global_mesh`.
        spec: one `PartitionSpec` for all tensors, or a dict of them by key, nested or by path
            ("inputs.ids"; a position in a tuple is a key, too); a key serves all tensors below it.
            A spec that is shorter than a tensor's rank leaves its other dims whole; a scalar is
            replicated.
        default: the spec of tensors that a dict does not name; None: they are an error.
        prefetch: the number of uploaded batches that may wait, 1 or more.
        last: what becomes of a batch with fewer rows (dim 0) than the source's `batch_size`, else
            its first batch has. "keep": it runs as it is, by a program of its own. "drop": it is
            left out; with several processes in all of them, and all end with the first. "pad": it
            is padded to all rows, and every batch gets a mask of its true rows, bool of shape
            (rows,): under "valid" in a mapping, as last element of a tuple or list, next to a bare
            tensor; with several processes those that have ended give padding until all have.
        lengths: the lengths to which dim 1 is padded: each batch to the next one, so that as many
            programs are compiled at most. padding: the value of padding, a number or a dict by
            path; lengths pad only the tensors that a dict names.

    Raises TypeError for what cannot be iterated and for a map-style dataset, which has rows,
    ValueError for an unknown choice or axis. While it is iterated: what the source raises, at the
    line of the loop, with its traceback; ValueError for an iterator (a generator) that is at its
    end when a pass begins, for a tensor without a spec or of another rank, TypeError for one that
    is not on the CPU. Source: `torch_xla.distributed.parallel_loader.MpDeviceLoader`.

    >>> import torch, spmd
    >>> mesh = spmd.Mesh(range(8), (8,), ("data",))
    >>> data = torch.utils.data.TensorDataset(torch.arange(20.0), torch.arange(20))
    >>> loader = spmd.DataLoader(
    ...     torch.utils.data.DataLoader(data, batch_size=8), mesh, spmd.P("data"), last="pad"
    ... )
    >>> for inputs, targets, valid in loader:
    ...     print(inputs.device, list(inputs.shape), valid.sum().item())
    xla:0 [8] 8
    xla:0 [8] 8
    xla:0 [8] 4
    """

    def __init__(
        self,
        loader: Iterable[Any],
        mesh: Mesh | None,
        spec: Any,
        *,
        default: Any = None,
        prefetch: int = 2,
        last: str = "keep",
        lengths: Sequence[int] = (),
        padding: Any = 0,
    ) -> None:
        if isinstance(loader, str) or (
            not isinstance(loader, Iterable) and not hasattr(loader, "__getitem__")
        ):
            raise TypeError(
                f"DataLoader: expected an iterable of batches, got {type(loader).__name__}"
            )
        if isinstance(loader, torch.utils.data.Dataset) and not isinstance(
            loader, torch.utils.data.IterableDataset
        ):
            raise TypeError(
                f"DataLoader: expected batches, and {type(loader).__name__} has rows; write "
                "spmd.DataLoader(torch.utils.data.DataLoader(dataset, batch_size=...), mesh, "
                "spec), with batch_size=None for rows that are batches"
            )
        if isinstance(prefetch, bool) or not isinstance(prefetch, int) or prefetch < 1:
            raise ValueError(
                f"DataLoader: expected prefetch to be 1 or more batches, got {prefetch!r}"
            )
        if spec is None or (default is not None and not isinstance(spec, Mapping)):
            raise TypeError(
                "DataLoader: expected a spec for all tensors, or a dict of specs by key, with a "
                f"default for others, got spec={spec!r}, default={default!r}"
            )
        self.loader = loader
        self.mesh = needed_mesh("DataLoader") if mesh is None else mesh
        if not isinstance(self.mesh, Mesh):
            raise TypeError(
                f"DataLoader: expected a spmd.Mesh, got {type(mesh).__name__}; write "
                "DataLoader(loader, mesh, spec)"
            )
        self._prefetch = prefetch
        self._placing = Placing(Specs(self.mesh, spec, default), lengths, padding)
        self._rows = RowCounts(last, getattr(loader, "batch_size", None))
        self._source = Resumable(loader)
        self._epoch: int | None = None
        self._position: Position | None = None  # after the last batch that was given out
        self._resumed = False  # the next iteration begins at this position
        self._threads: list[Ahead[HostBatch, Any]] = []

    def __len__(self) -> int:
        """The number of batches, by the source's length. Raises TypeError where that has none.

        With `last="drop"` that of full batches, where the source has a `batch_size` and a sampler
        or dataset of known length.
        """
        count = len(self.loader)  # type: ignore[arg-type]
        size = getattr(self.loader, "batch_size", None)
        if self._rows.last != "drop" or size is None or getattr(self.loader, "drop_last", False):
            return count
        owner: Any = self.loader
        is_stream = isinstance(getattr(owner, "dataset", None), torch.utils.data.IterableDataset)
        rows = getattr(owner, "dataset" if is_stream else "sampler", None)
        return count if rows is None else len(rows) // size

    def __iter__(self) -> Iterator[Any]:
        """A new pass over the source; it starts uploading with its first batch.

        Returns an iterator with `close()`, which ends its thread and waits for it; the end of the
        loop, an exception, a `break` and the collection of the iterator end it, too.
        """
        self._threads = going_on(self._threads)
        position, self._resumed = (self._position if self._resumed else None), False
        return _Batches(self, position)

    def set_epoch(self, epoch: int) -> None:
        """Passes the number of the epoch on: to the source, or to its dataset and samplers, where
        they have it."""
        self._epoch = epoch
        set_epoch(self.loader, epoch)

    def state_dict(self) -> dict[str, Any]:
        """The position after the last batch that was given out, whatever has been uploaded since.

        It holds the source's own state where that has one (`state_dict`, or `get_state` of its
        iterator); else the number of batches, and the states that the source's generators (and
        torch's default one, where the source has none of its own) had at the start of the epoch.
        """
        position = self._source.start() if self._position is None else self._position
        return {"position": copy.deepcopy(position), "epoch": self._epoch, "rows": self._rows.full}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Lets the next iteration begin at a position that `state_dict` gave, with the same source
        and arguments.

        A source without a state of its own gives the batches of before again, which are not
        uploaded.

        >>> import spmd
        >>> mesh = spmd.Mesh([0], (1,), ("data",))
        >>> batches = [torch.full((2,), float(i)) for i in range(4)]
        >>> loader = spmd.DataLoader(batches, mesh, spmd.P("data"))
        >>> for batch in loader:
        ...     if batch[0].item() == 1:
        ...         break
        >>> other = spmd.DataLoader(batches, mesh, spmd.P("data"))
        >>> other.load_state_dict(loader.state_dict())
        >>> [batch[0].item() for batch in other]
        [2.0, 3.0]
        """
        self._position, self._resumed = copy.deepcopy(state_dict["position"]), True
        self._rows.full = state_dict["rows"]
        if state_dict["epoch"] is not None:
            self.set_epoch(state_dict["epoch"])


class _Batches(Iterator[Any]):
    """One pass over a loader. Its end, or its collection, ends the thread."""

    def __init__(self, loader: DataLoader, position: Position | None) -> None:
        self._loader = loader
        self._can_be_empty = position is not None or not isinstance(loader.loader, Iterator)
        # in the user's thread, whose errors it raises at once
        iteration = loader._source.iteration(position)
        rows, placing = loader._rows, loader._placing

        def prepare(host: HostBatch) -> tuple[Any, Position]:
            full = None if host.num_valid is None else rows.full
            tree = placing.place(host.batch, host.num_valid, full)
            if host.num_valid is not None and full is not None:
                tree = placing.with_mask(tree, host.num_valid, full, MASK)
            return tree, host.position

        ahead: Ahead[HostBatch, tuple[Any, Position]] = Ahead(prepare, loader._prefetch)
        ahead.pulled = rows.batches(iteration, lambda: ahead.is_stopped)
        self._ahead = ahead
        loader._threads.append(ahead)
        weakref.finalize(self, ahead.stop).atexit = False  # what runs at exit ends before jax does

    @ends_at_user_line
    def __next__(self) -> Any:
        try:
            tree, position = self._ahead.next_item()
        except StopIteration:
            if not self._ahead.is_stopped:
                self._loader._position = self._loader._source.between()
                self._ahead.stop()
            if not self._can_be_empty:
                raise ValueError(
                    f"DataLoader: the source, a {type(self._loader.loader).__name__}, is at its "
                    "end and gives no batch: it can be iterated once; make one for each pass, or "
                    "give an object whose __iter__ does"
                ) from None
            raise
        except BaseException:
            self._ahead.stop()
            raise
        batch = tensors(tree)
        self._can_be_empty = True
        self._loader._position = position
        return batch

    def close(self) -> None:
        """Ends the thread and waits for it; the iteration is over."""
        self._ahead.stop()
        self._ahead.join()
