"""Every op of torch's operator database in its other forms, on `xla` against CPU.

    python tests/sweep/variants.py                                # every form, two samples
    python tests/sweep/variants.py --form out,error --ops '^linalg' --samples 0

- inplace: `x.op_()` and `x op= y` on a whole tensor, on a view, on a leaf that asks for a gradient.
- method: `x.op()` and `x op y`, where the database has them.
- out: `out=` of the right shape, empty, of another shape, with gaps in memory, wider, narrower,
  with a gradient.
- error: what the database knows to be refused, as for CPU and as for an accelerator.
- noncontiguous: every operand is a view with gaps.

Where CPU raises, `xla` must raise the same type, and elsewhere never. Besides values and gradients,
what autograd says of a result is compared. `expected_variants.py` says which ops are not right;
`test_variants.py` holds both to it.
"""

import itertools
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.testing._internal.common_utils import noncontiguous_like
from torch.testing._internal.opinfo.core import SampleInput
from torch.utils._pytree import tree_flatten, tree_map

if __name__ == "__main__":  # this file's folder would hide the package `sweep`
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from sweep import command, sweep
from sweep.command import Result
from sweep.expected_variants import EXPECTED_VARIANTS
from sweep.sweep import Case, Given

Compute = Callable[[Any, Any, str, int], list[Any]]


@dataclass(frozen=True, slots=True)
class Raised:
    """That a call raised; of two, the types are compared."""

    kind: str
    text: str = field(compare=False)


_CPU_KERNEL = re.compile(r'^".*" not implemented for')

# What a user cannot do anything with: our own words for a missing rule, and errors from below a
# rule.
UNCLEAR = (
    "lowering rule",
    "jax",
    "AssertionError",
    "unpack",
    "NoneType",
    "list index",
    "tuple index",
)


def attempt(call: Callable[[], list[Any]], kind: type[Exception] | None = None) -> list[Any]:
    """The compared part of a call that may raise. kind: the name under which its subclasses go."""
    try:
        return call()
    except Exception as error:
        if _CPU_KERNEL.search(str(error)):
            # a dtype that CPU has no kernel for; with one it would say that it cannot be cast
            kind = RuntimeError
        name = (
            type(error).__name__ if kind is None or not isinstance(error, kind) else kind.__name__
        )
        return [Raised(name, str(error)[:300])]


def run_form(name: str, form: str, samples: int = 2) -> Result:
    """Compares one op in one form with CPU, with its first samples (0: all; of errors always
    all)."""
    began = time.perf_counter()
    op = sweep.OPS[name]
    torch.manual_seed(0)
    cases = FORMS[form](op)
    return sweep.run_cases(
        op,
        form,
        list(cases if form == "error" else itertools.chain(*_first(cases, samples))),
        began,
    )


def _first(cases: Iterator[Case], samples: int) -> Iterator[list[Case]]:
    """The cases of the first samples; those of one sample follow each other."""
    groups = (
        list(group) for _, group in itertools.groupby(cases, key=lambda case: id(case.sample))
    )
    return itertools.islice(groups, samples or None)


def _samples(op: Any, with_gradient: bool = True) -> Iterator[Any]:
    dtype = sweep.usual_dtype(op)
    if dtype not in op.supported_dtypes("cpu"):
        return iter(())
    with_gradient &= op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
    return iter(op.sample_inputs("cpu", dtype, requires_grad=with_gradient))


# --- in place and as a method ---------------------------------------------------------------------


def _whole(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    made = tensor.clone()
    return made, made


def _view(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    base = torch.stack([tensor, tensor], dim=-1)
    return base[..., 1], base


def _leaf(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return tensor, tensor


def _in_place(
    variant: Any, target: Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
) -> Compute:
    def compute(op: Any, sample: Any, device: str, seed: int) -> list[Any]:
        given = sweep.given_on(op, sample, device)
        torch.manual_seed(seed)

        def call() -> list[Any]:
            tensor, base = target(given.input)
            version = tensor._version
            made = variant(tensor, *given.args, **given.kwargs)
            said = [made is tensor, tensor._version - version, *_autograd(tensor, base)]
            return [*sweep.results_of(op, sample, given, base), *said]

        return attempt(call)

    return compute


def _autograd(tensor: torch.Tensor, base: torch.Tensor) -> tuple[Any, ...]:
    # The name of a view that was written to is as_strided where torch has its memory, and the
    # view's own op elsewhere.
    name = type(base.grad_fn).__name__
    return tensor.requires_grad, tensor.is_leaf, name, tensor.stride()


def in_place(op: Any) -> Iterator[Case]:
    """The op with an underscore, and the operator with an equals sign."""
    variants = {"": op.inplace_variant, "operator, ": op.inplace_operator_variant}
    for index, sample in enumerate(_samples(op)):
        if not isinstance(sample.input, torch.Tensor):
            continue
        for word, variant in variants.items():
            for target in (_whole, _view, _leaf) if variant is not None else ():
                yield Case(
                    f"sample {index}, {word}{target.__name__[1:]}",
                    sample,
                    _in_place(variant, target),
                )


def _called(variant: Any) -> Compute:
    def compute(op: Any, sample: Any, device: str, seed: int) -> list[Any]:
        given = sweep.given_on(op, sample, device)
        torch.manual_seed(seed)
        return attempt(
            lambda: sweep.results_of(
                op, sample, given, variant(given.input, *given.args, **given.kwargs)
            )
        )

    return compute


def as_method(op: Any) -> Iterator[Case]:
    """The tensor's method, and the operator."""
    variants = {"method": op.method_variant, "operator": op.operator_variant}
    for index, sample in enumerate(_samples(op)):
        for word, variant in variants.items():
            if variant is not None and variant is not op.op:
                yield Case(f"sample {index}, {word}", sample, _called(variant))


# --- out= -----------------------------------------------------------------------------------------

_WIDER = {
    torch.bool: torch.uint8,
    torch.uint8: torch.int32,
    torch.int32: torch.int64,
    torch.int64: torch.float64,
    torch.float32: torch.float64,
    torch.complex64: torch.complex128,
}
_NARROWER = {
    torch.int64: torch.bool,
    torch.float32: torch.int64,
    torch.float64: torch.int64,
    torch.complex64: torch.float32,
}


def _other_dtype(table: dict[torch.dtype, torch.dtype]) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda made: torch.zeros(
        made.shape, dtype=table.get(made.dtype, torch.float64), device=made.device
    )


OUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "right": lambda made: made,
    "empty": lambda made: made.new_empty(0),
    "other shape": lambda made: made.new_ones((2, 3, *made.shape)),
    "gaps": noncontiguous_like,
    "wider": _other_dtype(_WIDER),
    "narrower": _other_dtype(_NARROWER),
    "gradient": lambda made: made.requires_grad_(made.is_floating_point() or made.is_complex()),
}


def _listed(made: Any) -> Sequence[Any]:
    return made if isinstance(made, (tuple, list)) else [made]


def _into(word: str) -> Compute:
    def compute(op: Any, sample: Any, device: str, seed: int) -> list[Any]:
        like = sweep.given_on(op, sample, "cpu")
        torch.manual_seed(0)
        made, structure = (
            op.op(like.input, *like.args, **like.kwargs),
            sweep.given_on(op, sample, device),
        )
        outs = [
            OUTS[word](torch.ones(one.shape, dtype=one.dtype, device=device))
            for one in _listed(made)
        ]
        torch.manual_seed(seed)
        return attempt(lambda: _fill(op, sample, structure, outs, made))

    return compute


def _fill(
    op: Any, sample: Any, given: Given, outs: list[torch.Tensor], functional: Any
) -> list[Any]:
    """The filled tensors, what their aliases show, whether they were returned and whether torch
    warned."""
    is_one = isinstance(functional, torch.Tensor)
    aliases = [out.detach() for out in outs]
    shapes = [out.shape for out in outs]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        made = op.op(
            given.input, *given.args, **given.kwargs, out=outs[0] if is_one else tuple(outs)
        )
    # None: torch returns nothing
    returned = [made] if is_one else list(outs if made is None else made)
    said: list[Any] = [all(one is other for one, other in zip(returned, outs, strict=True))]
    said.append(any("resized" in str(warning.message) for warning in caught))
    said += [out.dtype for out in outs]
    for out, alias, shape in zip(outs, aliases, shapes, strict=True):
        if out.shape == shape:
            said += [out.stride(), out.is_contiguous()]
            returned.append(alias)
    # A wider tensor holds numbers that are as exact as the op's own dtype.
    own = {
        out.dtype: one.dtype
        for out, one in zip(outs, [functional] if is_one else functional, strict=True)
    }
    returned = [out.to(own.get(out.dtype)) for out in returned]
    return [*sweep.results_of(op, sample, given, returned), *said]


def out_forms(op: Any) -> Iterator[Case]:
    """The op with `out=`."""
    for index, sample in enumerate(_samples(op, with_gradient=False) if op.supports_out else ()):
        functional = op.op(sample.input, *sample.args, **sample.kwargs)
        if not all(isinstance(one, torch.Tensor) for one in _listed(functional)):
            continue  # the database says so of `equal` and `histogramdd`, which have no `out=`
        for word in OUTS:
            yield Case(f"sample {index}, {word}", sample, _into(word))


# --- errors ---------------------------------------------------------------------------------------


def _refused(twin: Any) -> Compute:
    """True for a call that raises, in itself or when its result is read. twin: the sample that CPU
    is given."""

    def compute(op: Any, sample: Any, device: str, seed: int) -> list[Any]:
        def call() -> list[Any]:
            given = twin if device == "cpu" else sample
            made = op.op(given.input, *given.args, **given.kwargs)
            tree_map(
                lambda value: value.tolist() if isinstance(value, torch.Tensor) else value, made
            )
            return ["accepted"]

        return _clear(attempt(call))

    return compute


def _clear(made: list[Any]) -> list[Any]:
    if isinstance(made[0], Raised) and (
        not made[0].text or any(word in made[0].text for word in UNCLEAR)
    ):
        return [Raised(f"unclear {made[0].kind}", made[0].text)]
    return made


def errors(op: Any) -> Iterator[Case]:
    """The op with arguments that it must refuse.

    The database makes them for each device, so that tensors may share memory; what it asks of CPU
    alone is copied.
    """
    if op.error_inputs_func is None:
        return
    there, unused = list(op.error_inputs("cpu")), list(op.error_inputs("xla:0"))
    for index, error in enumerate(there):
        found = next((other for other in unused if other.error_regex == error.error_regex), None)
        if found is not None:
            unused.remove(found)
            yield Case(f"error {index}", found.sample_input, _refused(error.sample_input))
            continue
        yield Case(
            f"error {index}, of CPU alone",
            _on_xla(op, error.sample_input),
            _refused(error.sample_input),
        )
    for index, error in enumerate(unused):
        yield Case(
            f"error {index} of accelerators alone",
            error.sample_input,
            _refused_there(error.error_type),
        )


def _on_xla(op: Any, sample: Any) -> SampleInput:
    given = sweep.given_on(op, sample, "xla")
    return SampleInput(given.input, args=tuple(given.args), kwargs=given.kwargs)


def _refused_there(kind: type[Exception]) -> Compute:
    def compute(op: Any, sample: Any, device: str, seed: int) -> list[Any]:
        if device == "cpu":
            return [Raised(kind.__name__, "")]
        return _clear(attempt(lambda: [op.op(sample.input, *sample.args, **sample.kwargs)], kind))

    return compute


# --- layouts --------------------------------------------------------------------------------------


def _with_gaps(op: Any, sample: Any, device: str, seed: int) -> list[Any]:
    given = sweep.given_on(op, sample, device, noncontiguous_like)
    torch.manual_seed(seed)
    return attempt(
        lambda: sweep.results_of(op, sample, given, op.op(given.input, *given.args, **given.kwargs))
    )


def noncontiguous(op: Any) -> Iterator[Case]:
    """The op with operands that are views."""
    for index, sample in enumerate(_samples(op)):
        if any(
            isinstance(value, torch.Tensor)
            for value in tree_flatten((sample.input, sample.args, sample.kwargs))[0]
        ):
            yield Case(f"sample {index}", sample, _with_gaps)


FORMS: dict[str, Callable[[Any], Iterator[Case]]] = {
    "inplace": in_place,
    "method": as_method,
    "out": out_forms,
    "error": errors,
    "noncontiguous": noncontiguous,
}


def _is_expected(name: str, form: str) -> bool:
    return (name, form) in EXPECTED_VARIANTS


if __name__ == "__main__":
    title = "forms of the operators of torch.testing, xla against CPU"
    names = tuple(sweep.OPS)
    command.main(
        command.Sweep(
            __file__, title, __doc__ or "", names, "form", ",".join(FORMS), run_form, _is_expected
        )
    )
