"""CTC loss against torch on CPU: lengths as numbers and as tensors, empty targets, impossible
ones."""

import pytest
import torch
from support import Batch, check
from torch.nn.functional import ctc_loss


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_ctc(reduction: str) -> None:
    batch = Batch()
    scores = torch.randn(6, 3, 5).log_softmax(2)
    targets = torch.tensor([[1, 1, 2], [3, 4, 0], [2, 0, 0]])
    inputs, lengths = [6, 5, 4], [3, 2, 0]
    batch.case(
        "numbers",
        lambda x, t: ctc_loss(x, t, inputs, lengths, reduction=reduction),
        scores,
        targets,
    )
    batch.case(
        "tensors",
        lambda x, t, i, n: ctc_loss(x, t, i, n, reduction=reduction),
        scores,
        targets,
        torch.tensor(inputs),
        torch.tensor(lengths),
    )
    batch.case(
        "end to end",
        lambda x, t: ctc_loss(x, t, inputs, [2, 1, 1], reduction=reduction),
        scores,
        targets.flatten()[:4],
    )
    # Labels behind the ends of rows, which are no part of the next row.
    batch.case(
        "padded",
        lambda x, t: ctc_loss(x, t, inputs, [1, 2, 1], reduction=reduction),
        scores,
        targets,
    )
    batch.case(
        "too short an input",
        lambda x, t: ctc_loss(x, t, [2, 5, 4], lengths, reduction=reduction, zero_infinity=True),
        scores,
        targets,
    )
    batch.check()


def test_lengths_may_lie_elsewhere() -> None:
    """On the CPU, as torch's GPU kernels want them, and as 0-dim tensors of one sequence."""
    scores, targets = torch.randn(6, 2, 5), torch.tensor([[1, 1, 2], [3, 4, 0]])
    for inputs, lengths in (((6, 5), (3, 2)), (6, 3)):
        results = []
        for device in ("cpu", "xla"):
            x = (scores if isinstance(inputs, tuple) else scores[:, 0]).to(device).requires_grad_()
            target = (targets if isinstance(inputs, tuple) else targets[0]).to(device)
            for place in ("cpu", device):
                given = torch.tensor(inputs).to(place), torch.tensor(lengths).to(place)
                loss = ctc_loss(x.log_softmax(-1), target, *given)
                results += [loss, *torch.autograd.grad(loss, x)]
        for expected, actual in zip(results[:4], results[4:], strict=True):
            check(actual, expected)
