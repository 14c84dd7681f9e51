"""Arguments that torch's meta kernels take and its other kernels refuse: refused here, where the op
is written."""

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

REFUSED: dict[str, Callable[[str], object]] = {
    "bucketize": lambda d: torch.bucketize(torch.ones(3, device=d), torch.ones(2, 2, device=d)),
    "cat of numbers": lambda d: torch.cat([torch.tensor(1.0, device=d)] * 2),
    "histogramdd": lambda d: torch.histogramdd(torch.ones(3, 5, device=d), [1, 1, 1, 1]),
    "index_add": lambda d: torch.ones(3, 2, device=d).index_add(
        0, torch.tensor([0, 1], device=d), torch.ones(2, 3, device=d)
    ),
    "lstsq of a number": lambda d: torch.linalg.lstsq(
        torch.ones((), device=d), torch.ones((), device=d)
    ),
    "lstsq to a number": lambda d: torch.linalg.lstsq(
        torch.ones(3, 2, device=d), torch.ones((), device=d)
    ),
    "masked_scatter": lambda d: torch.ones(3, device=d).masked_scatter(
        torch.ones(3, device=d).byte(), torch.ones(3, device=d)
    ),
    "multinomial of more than there are": lambda d: torch.multinomial(torch.ones(2, device=d), 3),
    "multinomial of none": lambda d: torch.multinomial(torch.ones(2, device=d), 0),
    "multinomial of integers": lambda d: torch.multinomial(torch.ones(2, 2, device=d).long(), 1),
    "dilation": lambda d: F.conv1d(
        torch.ones(1, 1, 4, device=d), torch.ones(1, 1, 2, device=d), dilation=-1
    ),
    "stride": lambda d: F.conv1d(
        torch.ones(1, 1, 4, device=d), torch.ones(1, 1, 2, device=d), stride=0
    ),
    "padding": lambda d: F.conv1d(
        torch.ones(1, 1, 4, device=d), torch.ones(1, 1, 2, device=d), padding=-1
    ),
    "embedding": lambda d: F.embedding(torch.ones(2, 2, device=d).long(), torch.ones((), device=d)),
    "uniform_": lambda d: torch.ones(3, device=d).uniform_(3, -1),
    "random_": lambda d: torch.ones(3, device=d).random_(3, 1),
    "bernoulli_": lambda d: torch.ones(3, device=d).bernoulli_(2),
    "poisson of integers": lambda d: torch.poisson(torch.ones(3, device=d).long()),
    "amax over nothing": lambda d: torch.amax(torch.ones(0, 3, device=d), 0),
    "amin of nothing": lambda d: torch.amin(torch.ones(0, device=d)),
    "aminmax of nothing": lambda d: torch.aminmax(torch.ones(0, device=d)),
    "aminmax over nothing": lambda d: torch.aminmax(torch.ones(0, 3, device=d), dim=0),
    "max of nothing": lambda d: torch.max(torch.ones(0, device=d)),
    "max over nothing": lambda d: torch.max(torch.ones(0, 2, device=d), 0),
    "median over nothing": lambda d: torch.median(torch.ones(0, 2, device=d), 0),
    "sub of a bool": lambda d: torch.sub(torch.ones(3, device=d), True),
    "sub of bools": lambda d: torch.ones(3, device=d) - (torch.ones(3, device=d) > 0),
    "bool alpha": lambda d: torch.add(torch.ones(3, device=d), torch.ones(3, device=d), alpha=True),
    "float alpha": lambda d: torch.add(torch.ones(3, device=d).int(), 2, alpha=1.5),
    "complex alpha": lambda d: torch.sub(
        torch.ones(3, device=d), torch.ones(3, device=d), alpha=1j
    ),
    "complex value": lambda d: torch.addcmul(*[torch.ones(3, device=d)] * 3, value=1j),
    "complex weight": lambda d: torch.lerp(*[torch.ones(3, device=d)] * 2, 1j),
    "lerp of integers": lambda d: torch.lerp(*[torch.ones(3, device=d).int()] * 2, 1),
    "clamp_min to a complex number": lambda d: torch.clamp_min(torch.ones(3, device=d), 1j),
    "clamp to a complex number": lambda d: torch.clamp(torch.ones(3, device=d), 1j),
    "maximum of complex numbers": lambda d: torch.maximum(*[torch.ones(3, device=d) * 1j] * 2),
    "negative power of integers": lambda d: torch.pow(torch.ones(3, device=d).int(), -1),
    "sign of complex numbers": lambda d: torch.sign(torch.ones(3, device=d) * 1j),
    "floor of complex numbers": lambda d: torch.floor(torch.ones(3, device=d) * 1j),
    "lgamma of complex numbers": lambda d: torch.lgamma(torch.ones(3, device=d) * 1j),
    "quotient of booleans": lambda d: torch.addcdiv(
        torch.ones(3, device=d), *[torch.ones(3, device=d) > 0] * 2
    ),
    "mode over nothing": lambda d: torch.mode(torch.ones(2, 0, device=d)),
    "kthvalue over nothing": lambda d: torch.ones(2, 0, device=d).kthvalue(1, 1),
    "argmax of nothing": lambda d: torch.ones(0, device=d).argmax(),
    "sort along no dim": lambda d: torch.ones((), device=d).sort(5),
    "rounding mode": lambda d: torch.div(torch.ones(2, device=d), 2, rounding_mode="bad"),
    "strides below 0": lambda d: torch.empty_strided((2,), (-1,), device=d),
    "rand of integers": lambda d: torch.rand(3, dtype=torch.int64, device=d),
    "randn of integers": lambda d: torch.randn(3, dtype=torch.int64, device=d),
    "uniform_ of booleans": lambda d: (torch.ones(3, device=d) > 0).uniform_(),
    "log_normal_ of integers": lambda d: torch.ones(3, device=d).long().log_normal_(),
    "geometric_ of booleans": lambda d: (torch.ones(3, device=d) > 0).geometric_(0.5),
    "bernoulli of integers": lambda d: torch.bernoulli(torch.ones(3, device=d).long()),
    "binomial of integers": lambda d: torch.binomial(*[torch.ones(3, device=d).long()] * 2),
    "normal of a complex std": lambda d: torch.normal(
        *[torch.ones(3, dtype=torch.complex64, device=d)] * 2
    ),
    "randperm of booleans": lambda d: torch.randperm(2, dtype=torch.bool, device=d),
    "randperm past its dtype": lambda d: torch.randperm(300, dtype=torch.uint8, device=d),
    "random_ of complex numbers": lambda d: torch.ones(
        3, dtype=torch.complex64, device=d
    ).random_(),
    "random_ from below its dtype": lambda d: torch.ones(3, dtype=torch.uint8, device=d).random_(
        -1, 4
    ),
    "random_ past its dtype": lambda d: torch.ones(3, dtype=torch.int8, device=d).random_(0, 1000),
    "random_ past booleans": lambda d: (torch.ones(3, device=d) > 0).random_(3),
    "random_ past half": lambda d: torch.ones(3, dtype=torch.float16, device=d).random_(0, 100000),
    "randint past its dtype": lambda d: torch.randint(0, 300, (3,), dtype=torch.uint8, device=d),
    "native_dropout": lambda d: torch.native_dropout(torch.ones(2, device=d), 1.5, True),
    "embedding_bag of a vector": lambda d: torch.embedding_bag(
        torch.ones(3, device=d), torch.zeros(2, device=d).long(), torch.zeros(1, device=d).long()
    ),
    "embedding_bag of offsets in rows": lambda d: torch.embedding_bag(
        torch.ones(3, 2, device=d),
        torch.zeros(2, device=d).long(),
        torch.zeros(1, 1, device=d).long(),
    ),
    "embedding_bag of no mode": lambda d: torch.embedding_bag(
        torch.ones(3, 2, device=d),
        torch.zeros(2, device=d).long(),
        torch.zeros(1, device=d).long(),
        False,
        5,
    ),
    "segments of float lengths": lambda d: torch.segment_reduce(
        torch.ones(5, device=d), "sum", lengths=torch.ones(5, device=d)
    ),
    "segments of another axis": lambda d: torch.segment_reduce(
        torch.ones(5, 5, device=d), "sum", lengths=torch.ones(5, device=d).long(), axis=1
    ),
    "segments by no reduction": lambda d: torch.segment_reduce(
        torch.ones(1, device=d), "no", lengths=torch.ones(1, device=d).long()
    ),
    "samples of another channel": lambda d: F.fractional_max_pool3d(
        torch.ones(1, 2, 5, 5, 5, device=d), 2, 3, _random_samples=torch.ones(1, 1, 3, device=d) / 2
    ),
    "samples of fewer dims": lambda d: F.fractional_max_pool3d(
        torch.ones(1, 2, 5, 5, 5, device=d), 2, 3, _random_samples=torch.ones(1, 2, 2, device=d) / 2
    ),
    "ctc of no time": lambda d: ctc(d, torch.zeros(0, 2, 4, device=d), (0, 0), (1, 1)),
    "ctc of integers": lambda d: ctc(d, torch.zeros(5, 2, 4, device=d).long(), (5, 5), (1, 1)),
    "ctc of another batch": lambda d: ctc(d, torch.zeros(5, 2, 4, device=d), (5,), (1, 1)),
    "ctc of a blank that is no label": lambda d: ctc(
        d, torch.zeros(5, 2, 4, device=d), (5, 5), (1, 1), blank=9
    ),
    "ctc of too long an input": lambda d: ctc(d, torch.zeros(5, 2, 4, device=d), (9, 5), (1, 1)),
    "ctc of too long a target": lambda d: ctc(d, torch.zeros(5, 2, 4, device=d), (5, 5), (1, 3)),
    "channels": lambda d: F.conv_transpose1d(
        torch.ones(1, 1, 4, device=d), torch.ones(3, 3, 3, device=d)
    ),
    "groups": lambda d: F.conv1d(
        torch.ones(1, 4, 8, device=d), torch.ones(1, 2, 3, device=d), groups=2
    ),
    "a convolution's bias": lambda d: F.conv_transpose1d(
        torch.ones(1, 1, 4, device=d), torch.ones(1, 3, 3, device=d), torch.ones(1, device=d)
    ),
    "a convolution over nothing": lambda d: F.conv1d(
        torch.ones(1, 4, 0, device=d), torch.ones(2, 4, 1, device=d)
    ),
    "too small a result": lambda d: F.conv_transpose1d(
        torch.ones(1, 1, 1, device=d), torch.ones(1, 1, 1, device=d), padding=2
    ),
    "pooling of nothing": lambda d: F.adaptive_avg_pool2d(torch.ones(1, 1, 0, 3, device=d), 2),
    "sampling of nothing": lambda d: F.grid_sample(
        torch.ones(1, 1, 0, 3, device=d), torch.zeros(1, 2, 2, 2, device=d), align_corners=False
    ),
    "searchsorted in a number": lambda d: torch.searchsorted(
        torch.ones((), device=d), torch.ones(3, device=d)
    ),
    "searchsorted of a number in rows": lambda d: torch.searchsorted(
        torch.ones(2, 3, device=d), 2.0
    ),
    "searchsorted on no side": lambda d: torch.searchsorted(
        *[torch.ones(3, device=d)] * 2, side="no"
    ),
    "searchsorted by floats": lambda d: torch.searchsorted(
        *[torch.ones(3, device=d)] * 2, sorter=torch.ones(3, device=d)
    ),
    "attention of two widths": lambda d: F.scaled_dot_product_attention(
        torch.ones(1, 2, 3, 4, device=d),
        torch.ones(1, 2, 3, 5, device=d),
        torch.ones(1, 2, 3, 5, device=d),
    ),
    "attention of numbers": lambda d: F.scaled_dot_product_attention(
        *[torch.ones((), device=d)] * 3
    ),
    "an index that is written": lambda d: aliased(d, lambda i: i.scatter_(0, i, i.clone())),
    "a source that is written": lambda d: aliased(d, lambda i: i.scatter_add_(0, i.clone(), i)),
    "index_copy_ of itself": lambda d: aliased(d, lambda i: i.index_copy_(0, i.clone(), i)),
    "index_add_ of itself": lambda d: aliased(d, lambda i: i.index_add_(0, i.clone(), i)),
    "index_fill_ by itself": lambda d: aliased(d, lambda i: i.index_fill_(0, i, 1)),
    "put_ of itself": lambda d: aliased(d, lambda i: i.put_(i.clone(), i)),
}


def ctc(
    device: str, scores: torch.Tensor, inputs: tuple[int, ...], targets: tuple[int, ...], **how: int
) -> object:
    return F.ctc_loss(scores, torch.ones(2, 2, device=device).long(), inputs, targets, **how)


def aliased(device: str, write: Callable[[torch.Tensor], object]) -> object:
    return write(torch.arange(3, device=device))


DTYPES: dict[str, Callable[[torch.Tensor], object]] = {
    "softmax": lambda x: x.softmax(-1),
    "max_pool2d": lambda x: F.max_pool2d(x[None], 2),
    "avg_pool2d": lambda x: F.avg_pool2d(x[None], 2),
    "adaptive_max_pool2d": lambda x: F.adaptive_max_pool2d(x[None], 2),
    "lu": torch.linalg.lu_factor_ex,
    "cross": lambda x: x.cross(x, 0),
    "upsample_bilinear2d": lambda x: F.interpolate(x[None, None], scale_factor=2, mode="bilinear"),
    "fmod": lambda x: torch.fmod(x, x),
}


@pytest.mark.parametrize("name", DTYPES)
def test_dtypes_are_refused_at_the_call(name: str) -> None:
    """torch's meta kernels take booleans where no other kernel does."""
    for device in ("cpu", "xla"):
        with pytest.raises(RuntimeError):
            DTYPES[name](torch.ones(3, 3, device=device) > 0)


@pytest.mark.parametrize("name", REFUSED)
def test_refused_as_on_cpu(name: str) -> None:
    """The same type of error, at the call and in words of its own op."""
    with pytest.raises(Exception) as expected:  # whichever CPU raises
        REFUSED[name]("cpu")
    with pytest.raises(expected.type) as actual:
        REFUSED[name]("xla")
    assert actual.type is expected.type
    assert (
        str(actual.value) and "jax" not in str(actual.value) and "lowering" not in str(actual.value)
    )


@pytest.mark.parametrize(
    "draw",
    [
        lambda x, bad: x.uniform_(0.0, -1.0 if bad else 1.0),
        lambda x, bad: x.normal_(0.0, -1.0 if bad else 1.0),
        lambda x, bad: x.bernoulli_(1.5 if bad else 0.5),
    ],
)
def test_a_scalar_argument_is_checked_at_each_call(draw: Callable[..., torch.Tensor]) -> None:
    """Also where the same op with a legal number was recorded before."""
    for device in ("cpu", "xla"):
        draw(torch.ones(3, device=device), False)
        with pytest.raises(RuntimeError):
            draw(torch.ones(3, device=device), True)


def test_other_dims_may_be_empty() -> None:
    """Only what is reduced must have elements."""
    x = torch.ones(0, 3, device="xla")
    assert (
        torch.amax(x, 1).shape == torch.max(x, 1).values.shape == torch.mode(x).values.shape == (0,)
    )
    assert torch.aminmax(x, dim=1).max.shape == (0,)


def test_of_any_size() -> None:
    """The CPU kernel that words an error is given shapes without the memory for them."""
    x = torch.ones(2**20, 2**20, device="xla")
    with pytest.raises(
        RuntimeError,
        match=r"source tensor shape must match self tensor shape.*\[1048576, 1048576\]",
    ):
        x.index_add(0, torch.tensor([0, 1], device="xla"), torch.ones(2, 3, device="xla"))
    with pytest.raises(RuntimeError, match="expected weight to be divisible by 3"):
        F.conv1d(x.expand(8, *x.shape), x[:4, :3, None].expand(-1, -1, 2), groups=3)


def test_draws_of_the_cpu_stay() -> None:
    """The CPU kernel that checks the dtype of a draw takes no number of the CPU's generator."""
    state = torch.get_rng_state()
    torch.ones(3, dtype=torch.complex64, device="xla").uniform_()
    torch.ones(3, device="xla").gt(0).random_(0, 2)
    assert torch.equal(torch.get_rng_state(), state)
