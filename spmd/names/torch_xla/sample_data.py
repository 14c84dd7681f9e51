"""`torch_xla.utils.utils` (xu): made-up batches for benchmarks; and the rate of samples
(`xm.RateTracker`)."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any


class _Generator:
    """Items, so many times; an iterator as well, as scripts call `next` on it."""

    def __init__(self, item: Callable[[], Any], count: int):
        self._item, self._count, self._num_emitted = item, count, 0

    def __iter__(self) -> Iterator[Any]:
        # an iterator that `iter` does not begin again
        return (self._item() for _ in range(self._count))

    def __next__(self) -> Any:
        return self.next()

    def __len__(self) -> int:
        return self._count

    def next(self) -> Any:
        """The next item."""
        if self._num_emitted >= self._count:
            raise StopIteration
        self._num_emitted += 1
        return self._item()


class SampleGenerator(_Generator):
    """The same batch again and again, a number of times; under `launch`, without the last that are
    too few for all.

    Args: data: the batch. sample_count: the number of times. Source:
    `torch_xla.utils.utils.SampleGenerator`.

    >>> import spmd
    >>> list(spmd.torch_xla.sample_data.SampleGenerator((1, 2), 3))
    [(1, 2), (1, 2), (1, 2)]
    """

    drop_last = True  # a script divides the count by the number of ranks, without a rest

    def __init__(self, data: Any, sample_count: int):
        super().__init__(lambda: data, sample_count)


class FnDataGenerator(_Generator):
    """Pairs of a random input and a function's result on it, a number of times.

    Args:
        func: called with an input, returns its target. batch_size, dims: the input's shape,
            (batch_size, *dims); dims is (1,) where none is given.
        gen_tensor: called with the sizes, such as `torch.randn`. count: the number of pairs.

    Source: `torch_xla.utils.utils.FnDataGenerator`.

    >>> import torch, spmd
    >>> pairs = spmd.torch_xla.sample_data.FnDataGenerator(
    ...     torch.neg, 2, torch.ones, dims=(3,), count=2
    ... )
    >>> [(data.shape, target.sum().item()) for data, target in pairs]
    [(torch.Size([2, 3]), -6.0), (torch.Size([2, 3]), -6.0)]
    """

    def __init__(
        self,
        func: Callable[[Any], Any],
        batch_size: int,
        gen_tensor: Callable[..., Any],
        dims: Sequence[int] | None = None,
        count: int = 1,
    ):
        def pair() -> tuple[Any, Any]:
            data = gen_tensor(batch_size, *(dims or (1,)))
            return data, func(data)

        super().__init__(pair, count)


class RateTracker:
    """Counts samples, and reports how many there were a second.

    smooth_factor: the weight of the rates before, from 0 to 1, in `rate`; None: 0.4. Source:
    `torch_xla.core.xla_model.RateTracker`.

    >>> import spmd
    >>> tracker = spmd.torch_xla.sample_data.RateTracker()
    >>> tracker.add(128)
    >>> tracker.rate() > 0, tracker.global_rate() > 0
    (True, True)
    """

    def __init__(self, smooth_factor: float | None = None):
        self._smooth_factor = 0.4 if smooth_factor is None else smooth_factor
        self._start = self._last = time.perf_counter()
        self._total = self._since_last = 0.0
        self._rate: float | None = None

    def add(self, count: float) -> None:
        """Counts so many samples."""
        self._total += count
        self._since_last += count

    def rate(self) -> float:
        """The samples a second since the last call, smoothed with the rates before."""
        end = time.perf_counter()
        rate = self._since_last / max(end - self._last, 1e-9)
        weight = self._smooth_factor
        self._rate = rate if self._rate is None else (1 - weight) * rate + weight * self._rate
        self._last, self._since_last = end, 0.0
        return self._rate

    def global_rate(self) -> float:
        """The samples a second since the tracker was made."""
        return self._total / max(time.perf_counter() - self._start, 1e-9)
