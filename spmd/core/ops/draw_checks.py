"""Checks of random draws that torch's meta kernels lack: dtypes, ranges, probabilities. See `checks`."""

from typing import Any

import torch

from .checks import CHECKS, checks

aten = torch.ops.aten


def _refuse(name: str, dtype: torch.dtype) -> None:
    raise NotImplementedError(f"{name} is not implemented for {dtype}: expected a floating-point dtype")


# --- any number of a range --------------------------------------------------------------------------------------------


@checks(aten.uniform.default, aten.uniform_.default)
def uniform(self, from_=0.0, to=1.0, **_):
    if not (self.is_floating_point() or self.is_complex()):
        _refuse("uniform_", self.dtype)
    if from_ > to:
        raise RuntimeError(f"uniform_ expects to return a [from, to) range, but found from={from_} > to={to}")


@checks(aten.normal_.default, aten.normal_functional.default)
def normal(self, mean=0.0, std=1.0, **_):
    if not (self.is_floating_point() or self.is_complex()):
        _refuse("normal_", self.dtype)
    if std < 0:
        raise RuntimeError(f"normal expects std >= 0.0, but found std {std}")


@checks(aten.normal.Tensor_Tensor, aten.normal.float_Tensor, aten.normal.Tensor_float)
def normal_of_tensors(mean, std=1.0, **_):
    if isinstance(std, torch.Tensor) and std.is_complex():
        raise RuntimeError("normal expects standard deviation to be non-complex")
    for given in (mean, std):
        if isinstance(given, torch.Tensor) and not (given.is_floating_point() or given.is_complex()):
            _refuse("normal", given.dtype)


@checks(aten.log_normal.default, aten.log_normal_.default)
def log_normal(self, mean=1.0, std=2.0, **_):
    if not self.is_floating_point():
        _refuse("log_normal_", self.dtype)


@checks(aten.geometric.default, aten.geometric_.default)
def geometric(self, p, **_):
    if self.is_complex() or self.dtype == torch.bool:
        _refuse("geometric_", self.dtype)


# --- integers ---------------------------------------------------------------------------------------------------------


def _check_range(self: torch.Tensor, low: int, high: int | None) -> None:
    """Raises where the dtype cannot represent low and high - 1."""
    if self.is_complex():
        raise RuntimeError(f"random_ handles only integral, floating-point and boolean types, got {self.dtype}")
    if high is not None and low >= high:
        raise RuntimeError(f"random_ expects 'from' to be less than 'to', but got from={low} >= to={high}")
    least: float
    most: float
    if self.dtype == torch.bool:
        least, most = 0, 1
    elif self.is_floating_point():
        least, most = torch.finfo(self.dtype).min, torch.finfo(self.dtype).max
    else:
        least, most = torch.iinfo(self.dtype).min, torch.iinfo(self.dtype).max
    for name, end in (("from", low), ("to - 1", None if high is None else high - 1)):
        if end is not None and not least <= end <= most:
            raise RuntimeError(f"random_: {name} is out of bounds for {self.dtype}: {end} is not in [{least}, {most}]")


@checks(getattr(aten.random, "from"), getattr(aten.random_, "from"))
def random_from(self, from_, to, **_):
    _check_range(self, from_, to)


@checks(aten.random.to, aten.random_.to)
def random_to(self, to, **_):
    _check_range(self, 0, to)


@checks(aten.random.default, aten.random_.default)
def random(self, **_):
    if self.is_complex():
        _refuse("random_", self.dtype)


@checks(aten.randperm.default)
def randperm(n, *, dtype=torch.int64, **_):
    if dtype == torch.bool or dtype.is_complex:
        _refuse("randperm", dtype)
    most = torch.finfo(dtype).max if dtype.is_floating_point else torch.iinfo(dtype).max
    if n > most:
        raise RuntimeError(f"randperm: value {n} cannot be converted to {dtype} without overflow")


# --- chances and rates ------------------------------------------------------------------------------------------------


@checks(aten.bernoulli.default)
def bernoulli(self, **_):
    if not self.is_floating_point():
        _refuse("bernoulli", self.dtype)


@checks(aten.bernoulli_.float, aten.bernoulli.p)
def bernoulli_of_number(self, p=0.5, **_):  # p is a scalar argument and checked by each call: see `specials`
    if self.is_complex():
        _refuse("bernoulli_", self.dtype)


@checks(aten.native_dropout.default)
def native_dropout(input, p, train):
    if train is not False and not 0 <= p <= 1:
        raise RuntimeError(f"bernoulli_ expects p to be in [0, 1], but got p={1 - p}")


@checks(aten.multinomial.default)
def multinomial(self, num_samples, replacement=False, **_):
    if not self.is_floating_point():
        raise RuntimeError(f"multinomial only supports floating-point dtypes for input, got: {self.dtype}")
    if num_samples <= 0:
        raise RuntimeError("cannot sample n_sample <= 0 samples")
    if self.dim() and self.shape[-1] > 2**24:
        raise RuntimeError("number of categories cannot exceed 2^24")
    if self.dim() and not self.shape[-1] and self.shape[:-1].numel():
        raise RuntimeError("invalid multinomial distribution (sum of probabilities <= 0)")
    if not replacement and self.dim() and num_samples > self.shape[-1]:
        raise RuntimeError("cannot sample n_sample > prob_dist.size(-1) samples without replacement")


@checks(aten.binomial.default)
def binomial(count, prob, **_):
    for name, given in (("count", count), ("prob", prob)):
        if not given.is_floating_point():
            raise ValueError(f"binomial only supports floating-point dtypes for {name}, got: {given.dtype}")


def _floating(name: str) -> Any:
    def check(self, **_):
        if not self.is_floating_point():
            _refuse(name, self.dtype)

    return check


CHECKS |= {aten.poisson.default: _floating("poisson"), aten._standard_gamma.default: _floating("_standard_gamma")}
