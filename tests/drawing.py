"""The parts of random programs: tensors, views of them, ops, writes, marks, gradients, turns of a
loop.

A step is drawn against what the program has made so far on the CPU, and kept where it runs there;
so a program is legal whatever is drawn. How programs run and are compared stands in `programs.py`.
"""

import random
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from programs import SYNC, MeshShape, Program, Run, Step, covers, is_defined, is_small, shares

MESHES = (
    MeshShape((0,), (1,), ("device",)),
    MeshShape((0, 1, 2, 3), (4,), ("x",)),
    MeshShape(tuple(range(8)), (8,), ("x",)),
    MeshShape(tuple(range(8)), (2, 4), ("x", "y")),
    MeshShape(tuple(range(8)), (2, 2, 2), ("x", "y", "z")),
    MeshShape((7, 6, 5, 4, 3, 2, 1, 0), (8,), ("x",)),
    MeshShape((0, 4, 1, 5, 2, 6, 3, 7), (4, 2), ("x", "y")),
    MeshShape((3, 1, 0, 2), (2, 2), ("x", "y")),
)
# The meshes of one program: alone, and several over the same devices.
SETS = (
    *((mesh,) for mesh in MESHES),
    (MESHES[1], MESHES[7]),
    (MESHES[2], MESHES[3], MESHES[5]),
    (MESHES[3], MESHES[4], MESHES[6]),
)
SHAPES = (
    (),
    (1,),
    (3,),
    (4,),
    (8,),
    (8, 4),
    (2, 4),
    (4, 4),
    (3, 5),
    (1, 4),
    (8, 1),
    (2, 3, 4),
    (0,),
    (0, 4),
    (8, 0),
    (16,),
)
FLOATS = (torch.float64, torch.float32)
DTYPES = (*FLOATS, *FLOATS, torch.int64, torch.int32, torch.complex64)


class Drawing:
    """A program while it is drawn. What it has made lies on the CPU, in `run`."""

    def __init__(self, seed: int, meshes: Sequence[MeshShape]):
        self.random = random.Random(seed)
        self.meshes = tuple(meshes)
        self.steps: list[Step] = []
        self.run = Run(Program((), self.meshes), "cpu")
        self.count = 0

    # -- what there is to choose from

    def tensors(self, wanted: Callable[[torch.Tensor], bool] = lambda tensor: True) -> list[str]:
        return [
            n
            for n, value in self.run.names.items()
            if n[0] == "a" and n[1:].isdigit() and wanted(value)
        ]

    def value(self, name: str) -> torch.Tensor:
        return self.run.names[name]

    def any(self, wanted: Callable[[torch.Tensor], bool] = lambda tensor: True) -> str:
        """The name of a tensor, rather a late one."""
        names = self.tensors(wanted)
        if not names:
            raise LookupError
        return names[max(self.random.randrange(len(names)), self.random.randrange(len(names)))]

    def number(self) -> int:
        return self.random.choice((-2, -1, 0, 1, 2, 3))

    def dim(self, tensor: torch.Tensor) -> int:
        if not tensor.dim():
            raise LookupError
        return self.random.randrange(-tensor.dim(), tensor.dim())

    def spec(self, tensor: torch.Tensor, mesh: int) -> tuple[Any, ...]:
        """The layouts of a tensor over a mesh."""
        axes = list(self.meshes[mesh].axes)
        self.random.shuffle(axes)
        spec: list[Any] = []
        for _ in range(tensor.dim()):
            count = self.random.choice((0, 0, 1, 1, 2)) if axes else 0
            taken = tuple(axes.pop() for _ in range(min(count, len(axes))))
            spec.append(None if not taken else taken[0] if len(taken) == 1 else taken)
        return tuple(spec)

    # -- steps

    def make(self, text: str, *reads: str, **more: Any) -> Step:
        """A step that binds a new name to an expression."""
        name = f"a{self.count}"
        return Step(f"{name} = {text}", name, reads, **more)

    def add(self, step: Step) -> bool:
        """Takes a step that the CPU takes, and that keeps numbers small; else all is as before."""
        if not is_defined(step, self.run.names):
            return False
        try:
            self.run.step(step)
            taken = is_small(self.run)
        except Exception:
            taken = False
        if taken:
            self.steps.append(step)
            self.count += step.makes == f"a{self.count}"
            return True
        self.run = Run(Program((), self.meshes), "cpu")
        for done in self.steps:
            self.run.step(done)
        return False

    def program(self, seed: int) -> Program:
        return Program(tuple(self.steps), self.meshes, seed)


# --- tensors --------------------------------------------------------------------------------------


def leaf(draw: Drawing) -> Step:
    shape, dtype = draw.random.choice(SHAPES), draw.random.choice(DTYPES)
    text = (
        f"data({draw.random.randrange(11)}, "
        f"{''.join(f'{size}, ' for size in shape)}dtype={dtype}).to(dev)"
    )
    if dtype.is_floating_point and draw.random.random() < 0.7:
        text = (
            f"torch.nn.Parameter({text})"
            if draw.random.random() < 0.3
            else f"{text}.requires_grad_()"
        )
    return draw.make(text)


def filled(draw: Drawing) -> Step:
    shape, dtype = draw.random.choice(SHAPES), draw.random.choice(FLOATS)
    kind = draw.random.choice((f"zeros({shape}", f"ones({shape}", f"full({shape}, {draw.number()}"))
    return draw.make(f"torch.{kind}, dtype={dtype}, device=dev)")


def like(draw: Drawing) -> Step:
    a = draw.any()
    return draw.make(
        draw.random.choice((f"torch.zeros_like({a})", f"torch.ones_like({a})", f"{a}.clone()")), a
    )


# --- views ----------------------------------------------------------------------------------------


def expand(draw: Drawing) -> Step:
    a = draw.any(lambda tensor: tensor.dim() < 4)
    shape = [draw.random.choice((2, 3)) if size == 1 else size for size in draw.value(a).shape]
    if draw.random.random() < 0.7 or not shape:
        shape.insert(0, draw.random.choice((1, 2, 3)))
    return draw.make(
        f"{draw.random.choice(('torch.broadcast_to(' + a + ', ', a + '.expand('))}{tuple(shape)})",
        a,
    )


def unfold(draw: Drawing) -> Step:
    a = draw.any(lambda tensor: 0 < tensor.dim() < 4 and tensor.numel() > 0)
    dim = draw.dim(draw.value(a))
    size = draw.random.randint(1, min(draw.value(a).shape[dim], 4))
    return draw.make(f"{a}.unfold({dim}, {size}, {draw.random.randint(1, 2)})", a)


def as_strided(draw: Drawing) -> Step:
    a = draw.any(lambda tensor: tensor.numel() > 0)
    rank = draw.random.randint(0, 3)
    size = tuple(draw.random.randint(1, 3) for _ in range(rank))
    stride, offset = (
        tuple(draw.random.randint(0, 4) for _ in range(rank)),
        draw.random.randint(0, 3),
    )
    value = draw.value(a).detach()
    last = offset + sum((count - 1) * step for count, step in zip(size, stride, strict=True))
    if (last + 1) * value.element_size() > value.untyped_storage().nbytes():
        raise LookupError
    # Of elements that are not the view's own torch loses the gradient, on the CPU until the base's
    # memory is written.
    if draw.value(a)._is_view() and not covers(value, value.as_strided(size, stride, offset)):
        raise LookupError
    return draw.make(f"{a}.as_strided({size}, {stride}, {offset})", a)


def part(draw: Drawing) -> Step:
    a = draw.any(lambda tensor: tensor.dim() > 0)
    value = draw.value(a)
    index = []
    for size in value.shape[: draw.random.randint(1, value.dim())]:
        start = draw.random.randint(0, size)
        forms = (
            ":",
            "None",
            f"{start}:",
            f":{start}",
            f"{start}:{start + 2}",
            f"::{draw.random.randint(1, 3)}",
            f"-{start}:",
            str(max(start - 1, 0)),
            str(start - 1),
            str(-size),
        )
        index.append(draw.random.choice(forms))
    return draw.make(f"{a}[{', '.join(index)}]", a)


def other_order(draw: Drawing) -> Step:
    a = draw.any(lambda tensor: tensor.dim() > 1)
    value = draw.value(a)
    dims = list(range(value.dim()))
    draw.random.shuffle(dims)
    kinds = [
        f"transpose({dims[0]}, {dims[-1]})",
        f"permute({dims})",
        f"movedim({dims[0]}, {dims[1]})",
        "mT",
    ]
    return draw.make(f"{a}.{draw.random.choice(kinds)}", a)


def other_shape(draw: Drawing) -> Step:
    a = draw.any()
    value = draw.value(a)
    shapes = [
        shape
        for shape in (*SHAPES, (2, 2, 2), (2, 2), (2, 8))
        if torch.Size(shape).numel() == value.numel()
    ]
    new = draw.random.choice(shapes or [(-1,)])
    dim = draw.random.randint(0, value.dim())
    kinds = [
        f"reshape({new})",
        f"view({new})",
        "flatten()",
        "squeeze()",
        f"unsqueeze({dim})",
        "view(-1)",
    ]
    return draw.make(f"{a}.{draw.random.choice(kinds)}", a)


def diagonal(draw: Drawing) -> Step:
    a = draw.any(lambda tensor: tensor.dim() > 1)
    dims = draw.dim(draw.value(a)), draw.dim(draw.value(a))
    return draw.make(f"{a}.diagonal({draw.random.randint(-1, 1)}, {dims[0]}, {dims[1]})", a)


def several(draw: Drawing) -> Step:
    a = draw.any(lambda tensor: tensor.dim() > 0)
    dim = draw.dim(draw.value(a))
    kind = draw.random.choice(
        (f"split({draw.random.randint(1, 3)}, {dim})", f"chunk(2, {dim})", f"unbind({dim})")
    )
    return draw.make(f"{a}.{kind}[{draw.random.choice((0, 0, 1, -1))}]", a)


def same_memory(draw: Drawing) -> Step:
    a = draw.any()
    return draw.make(
        f"{a}{draw.random.choice(('.detach()', '.data', '[...]', '.view_as(' + a + ')'))}", a
    )


def other_numbers(draw: Drawing) -> Step:
    a = draw.any(lambda tensor: tensor.is_complex() or tensor.dtype in (torch.int64, torch.int32))
    value = draw.value(a)
    if not value.is_complex():
        return draw.make(
            f"{a}.view({draw.random.choice(('torch.int16', 'torch.int32', 'torch.int64'))})", a
        )
    kind = draw.random.choice((f"{a}.conj()", f"{a}.real", f"{a}.imag", f"torch.view_as_real({a})"))
    return draw.make(kind, a)


# --- ops ------------------------------------------------------------------------------------------


def one_operand(draw: Drawing) -> Step:
    a = draw.any()
    value = draw.value(a)
    dim, other = (draw.dim(value), draw.dim(value)) if value.dim() else (0, 0)
    kinds = [
        "neg()", f"mul({draw.number()})", f"add({draw.number()})", "abs()", "relu()",
        "clamp(-2, 3)", f"flip({dim})", f"roll({draw.number()}, {dim})", f"cumsum({dim})",
        f"sum({dim})", f"sum({dim}, keepdim=True)", "sum()", "tril()", "triu(1)",
        f"repeat({', '.join('2' for _ in value.shape) or 2})", "square()", "sign()",
        f"to({draw.random.choice(DTYPES)})", "contiguous()", f"sum(({dim}, {other}))", "rsub(1)",
        "ne(0)", "gt(1)", f"repeat_interleave(2, {dim})", f"diff(dim={dim})",
        f"rot90(1, ({dim}, {other}))", "double()", "bool()", f"amax({dim}).detach()",
        f"argmax({dim})", f"sort({dim})[0].detach()", "diag()", "diag_embed()", "clone()",
    ]  # fmt: skip
    return draw.make(f"{a}.{draw.random.choice(kinds)}", a)


def two_operands(draw: Drawing) -> Step:
    a = draw.any()
    b = draw.any(lambda tensor: _fits(tensor, draw.value(a)) or draw.random.random() < 0.1)
    kinds = [
        f"{a} + {b}",
        f"{a} - {b}",
        f"{a} * {b}",
        f"torch.maximum({a}, {b})",
        f"torch.where({a} > {b}, {a}, {b})",
        f"torch.minimum({a}, {b})",
        f"torch.add({a}, {b}, alpha={draw.number()})",
        f"{a} == {b}",
        f"{a}.ne({b})",
        f"torch.where({b} > 0, {a}, {draw.number()})",
        f"{a}.masked_fill({b} > 0, {draw.number()})",
    ]
    return draw.make(draw.random.choice(kinds), a, b)


def _fits(one: torch.Tensor, other: torch.Tensor) -> bool:
    try:
        torch.broadcast_shapes(one.shape, other.shape)
    except RuntimeError:
        return False
    return True


def joined(draw: Drawing) -> Step:
    a = draw.any()
    b = draw.any(lambda tensor: tensor.shape == draw.value(a).shape)
    dim = draw.dim(draw.value(a)) if draw.value(a).dim() else 0
    return draw.make(
        draw.random.choice((f"torch.cat([{a}, {b}], {dim})", f"torch.stack([{a}, {b}], {dim})")),
        a,
        b,
    )


def product(draw: Drawing) -> Step:
    a = draw.any(lambda tensor: tensor.dim() in (1, 2))
    value = draw.value(a)
    b = draw.any(
        lambda t: t.dim() in (1, 2) and t.dtype is value.dtype and value.shape[-1] in t.shape
    )
    other = (
        f"{b}.t()" if draw.value(b).dim() == 2 and draw.value(b).shape[0] != value.shape[-1] else b
    )
    return draw.make(
        draw.random.choice((f"{a} @ {other}", f"torch.outer({a}, {b})", f"{a}.matmul({other})")),
        a,
        b,
    )


def indexed(draw: Drawing) -> Step:
    a = draw.any(lambda tensor: tensor.dim() > 0 and tensor.shape[0] > 0)
    rows = draw.value(a).shape[0]
    chosen = [draw.random.randrange(rows) for _ in range(draw.random.randint(0, 3))]
    index = f"torch.tensor({chosen}, device=dev, dtype=torch.int64)"
    kinds = [
        f"{a}[{index}]",
        f"{a}.index_select(0, {index})",
        f"torch.nn.functional.embedding({index}, {a})",
    ]
    return draw.make(draw.random.choice(kinds), a)


# --- writes ---------------------------------------------------------------------------------------


def write_number(draw: Drawing) -> Step:
    a = draw.any()
    number = draw.number()
    uniform = draw.random.random() < 0.4
    kinds = [f"{a}.fill_({number})", f"{a}.zero_()", f"{a}[...] = {number}"] if uniform else [
        f"{a}.add_({number})", f"{a}.mul_({number})", f"{a}.neg_()", f"{a}.clamp_(-2, 3)",
        f"{a}.relu_()", f"{a}.sub_({number})", f"{a}.abs_()", f"{a}.tril_()", f"{a}.sign_()",
        f"{a}.fill_diagonal_({number})", f"{a}.square_()", f"{a} += {number}", f"{a}.tril_(-1)",
        f"torch._foreach_add_([{a}], {number})", f"torch._foreach_neg_([{a}])", f"{a} *= {number}",
        f"{a}[0] = {number}", f"{a}[1:] = {number}", f"{a}[{a} > 0] = {number}",
        f"{a}[..., ::2] = {number}",
    ]  # fmt: skip
    return _unwatched(draw, Step(draw.random.choice(kinds), None, (a,), (a,), uniform=uniform))


def write_tensor(draw: Drawing) -> Step:
    a = draw.any()
    b = draw.any(
        lambda t: (
            _fits(t, draw.value(a))
            and (t.dtype is draw.value(a).dtype or draw.random.random() < 0.3)
        )
    )
    kinds = [
        f"{a}.copy_({b})",
        f"{a}.add_({b})",
        f"{a}.sub_({b})",
        f"{a}.mul_({b})",
        f"{a}[...] = {b}",
        f"{a} += {b}",
        f"{a}.masked_fill_({b} > 0, {draw.number()})",
        f"{a}.copy_({b}.clone())",
        f"{a}.add_({b}.clone())",
        f"{a}.copy_({b}.detach().cpu())",
        f"torch.add({b}, 1, out={a})",
        f"torch._foreach_add_([{a}], [{b}])",
        f"{a}.addcmul_({b}, {b})",
        f"torch._foreach_copy_([{a}], [{b}])",
        f"{a}[{b} > 0] = {draw.number()}",
        f"torch.mul({b}, {b}, out={a})",
        f"{a}[1:] = {b}[1:]",
        f"{a}[0] = {b}[-1]",
        f"{a}.detach().add_({b})",
        f"{a}.index_add_(0, torch.tensor([0, 0], device=dev), {b}[:2])",
        f"{a}.data.copy_({b})",
        f"{a}.index_copy_(0, torch.tensor([1], device=dev), {b}[:1])",
        f"{a}.t().sub_({b}.t())",
        f"{a}.index_put_((torch.tensor([0, 1], device=dev),), {b}[:2])",
        f"{a}.index_fill_(0, torch.tensor([0], device=dev), 1)",
        (
            f"{a}.scatter_(0, torch.zeros({tuple(draw.value(b).shape)}, dtype=torch.int64, "
            f"device=dev)[:1], {b}[:1])"
        ),
        f"torch._foreach_add_([{a}, {b}], 1)",
        f"torch._foreach_mul_([{a}, {b}], 2)",
    ]
    text = draw.random.choice(kinds)
    writes = (a, b) if f", {b}]" in text else (a,)
    if ("[1]" in text or "[0, 1]" in text) and draw.value(a).shape[:1] < (2,):  # out of bounds
        raise LookupError
    # a part of it is read while it is written
    if f"{b}[" in text and shares(draw.value(a), draw.value(b)):
        raise LookupError
    if "out=" in text and draw.value(a).shape != draw.value(b).shape:  # it would be resized
        raise LookupError
    if (
        "_foreach_copy_" in text
        and draw.value(b).requires_grad
        and not _has_gradients(draw.value(a))
    ):
        # torch has whole numbers require a gradient then, which fails in views of them
        raise LookupError
    return _unwatched(draw, Step(text, None, (a, b), writes, pauses="cpu()" in text))


def _has_gradients(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _unwatched(draw: Drawing, step: Step) -> Step:
    """A write that autograd does not watch, as an optimizer's, now and then; else it refuses to
    write into leaves."""
    if draw.random.random() < 0.3:
        return replace(step, text=f"with torch.no_grad(): {step.text}")
    return step


def rename(draw: Drawing) -> Step:
    """A tensor becomes another one's data."""
    a = draw.any()
    b = draw.any(lambda tensor: tensor.dtype is draw.value(a).dtype)
    if any(f"use({a}," in step.text for step in draw.steps):
        # a turn would use it again, as the view that it becomes: see `read_otherwise`
        raise LookupError
    value = draw.value(a)
    if value.requires_grad and value._is_view() and value.shape != draw.value(b).shape:
        # autograd takes it for what it was, a part of its base; torch does not say which part now
        raise LookupError
    kinds = [f"{a}.data = {b}.data", f"{a}.data = {b}.detach() * 2"]
    if not draw.value(a).requires_grad:  # else the gradients of its views cannot be told any more
        kinds += [f"{a}.unsqueeze_(0)", f"{a}.squeeze_()", f"{a}.t_()"]
    return _unwatched(draw, Step(draw.random.choice(kinds), None, (a, b)))


# --- gradients ------------------------------------------------------------------------------------


def backward(draw: Drawing) -> Step:
    a = draw.any(lambda tensor: tensor.requires_grad and tensor.grad_fn is not None)
    b = draw.any(lambda tensor: tensor.requires_grad and tensor.grad_fn is not None)
    weighted = f"({a} * data(3, *{a}.shape).to(dev)).sum()"
    loss = draw.random.choice(
        (f"{a}.sum()", f"({a} * {a}).sum()", f"({a}.sum() + 2 * {b}.sum())", weighted)
    )
    return Step(f"{loss}.backward()", None, (a, b))


def gradient(draw: Drawing) -> Step:
    a = draw.any(lambda tensor: tensor.requires_grad and tensor.grad_fn is not None)
    b = draw.any(lambda tensor: tensor.requires_grad)
    # Which strides a gradient has is torch's own affair: what `as_strided` shows of one must not
    # depend on them.
    return draw.make(f"torch.autograd.grad({a}.sum(), {b})[0].contiguous()", a, b)


def descend(draw: Drawing) -> Step:
    """The calls of optimizers between two iterations."""
    a = draw.any(lambda tensor: tensor.is_leaf and tensor.grad is not None)
    kinds = [
        f"with torch.no_grad(): {a}.sub_({a}.grad)",
        f"with torch.no_grad(): {a} -= {a}.grad",
        f"{a}.grad = None",
        f"{a}.grad.zero_()",
        f"{a}.data.add_({a}.grad, alpha=-1)",
        f"with torch.no_grad(): {a}.copy_({a}.grad)",
        f"{a}.data = {a}.data - {a}.grad",
        f"{a}.grad.clamp_(-2, 2)",
        f"torch._foreach_sub_([{a}.data], [{a}.grad])",
    ]
    return Step(draw.random.choice(kinds), None, (a,))


# --- meshes, barriers, reads ----------------------------------------------------------------------


def mark(draw: Drawing) -> Step:
    a, mesh = draw.any(), draw.random.randrange(len(draw.meshes))
    if draw.random.random() < 0.1:
        return Step(f"unmark({a})", None, (a,))
    return Step(f"mark({a}, {mesh}, {draw.spec(draw.value(a), mesh)})", None, (a,))


def read_otherwise(draw: Drawing) -> Step:
    mesh = draw.random.randrange(len(draw.meshes))
    a = draw.random.choice(
        [step.makes for step in draw.steps[:4] if step.makes and "data(" in step.text]
    )
    renamed = (f"{a}.data =", f"{a}.unsqueeze_(", f"{a}.squeeze_(", f"{a}.t_(")
    if any(text in step.text for step in draw.steps for text in renamed):
        raise LookupError  # it may have become a view, which has no layout of its own
    b = draw.any(lambda tensor: _fits(tensor, draw.value(a)))
    use = f"use({a}, {mesh}, {draw.spec(draw.value(a), mesh)})"
    return Step(f"with {use}: a{draw.count} = {a} * {b}", f"a{draw.count}", (a, b))


def barrier(draw: Drawing) -> Step:
    return SYNC


def read(draw: Drawing) -> Step:
    a = draw.any()
    return Step(f"see({a})", None, (a,), pauses=True)


def decide(draw: Drawing) -> Step:
    a, b = draw.any(lambda tensor: tensor.numel() == 1 and not tensor.is_complex()), draw.any()
    return Step(f"if {a}.item() > 0: {b}.add_(1)", None, (a, b), (b,), pauses=True)


STEPS: tuple[tuple[Callable[[Drawing], Step], int], ...] = (
    (leaf, 3), (filled, 2), (like, 2),
    (expand, 5), (unfold, 4), (as_strided, 4), (part, 8), (other_order, 4), (other_shape, 5),
    (diagonal, 2), (several, 3), (same_memory, 3), (other_numbers, 3), (one_operand, 8),
    (two_operands, 8), (joined, 2), (product, 3), (indexed, 2), (write_number, 12),
    (write_tensor, 12), (rename, 1), (backward, 4), (gradient, 2), (descend, 4), (mark, 8),
    (read_otherwise, 1), (barrier, 2), (read, 2), (decide, 1),
)  # fmt: skip
KINDS, WEIGHTS = zip(*STEPS, strict=True)


def draw_program(seed: int, *, meshes: Sequence[MeshShape], num_steps: int = 14) -> Program:
    """A program of about so many steps over these meshes, of which some come again as turns of a
    loop."""
    draw = Drawing(seed, meshes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        while len(draw.steps) < 2:
            if draw.add(leaf(draw)) and draw.random.random() < 0.7:
                a = draw.steps[-1].makes or ""
                draw.add(Step(f"mark({a}, 0, {draw.spec(draw.value(a), 0)})", None, (a,)))
        for _ in range(4 * num_steps):
            if len(draw.steps) >= num_steps:
                break
            kind = draw.random.choices(KINDS, WEIGHTS)[0]
            try:
                step = kind(draw)
            except LookupError:  # nothing there that such a step needs
                continue
            draw.add(step)
        if draw.random.random() < 0.4:
            _iterations(draw)
    return draw.program(seed)


def _iterations(draw: Drawing) -> None:
    """Does the last steps again, as the body of a loop does, a barrier between."""
    body = draw.steps[draw.random.randrange(len(draw.steps)) :]
    for _ in range(draw.random.randint(1, 2)):
        draw.add(barrier(draw))
        for step in body:
            draw.add(step)
