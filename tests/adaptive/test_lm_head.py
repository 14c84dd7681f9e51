"""Logits that only a cross entropy reads are made in pieces: which programs are recognised, with
the same numbers."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from support import check
from torch import Tensor, nn
from torch.nn import functional as F

import spmd
from spmd import config
from spmd.core.programs import cache
from spmd.ops import linear_cross_entropy as ops

BATCH, LENGTH, WIDTH, CLASSES = 8, 6, 16, 48

Loss = Callable[..., Tensor]


@pytest.fixture(autouse=True)
def any_size() -> Iterator[None]:
    """Every head is large, and eight classes are a piece."""
    cache.clear_cache()
    before = ops.FEWEST, ops.WIDTH, config.max_logits_bytes
    ops.FEWEST, ops.WIDTH, config.max_logits_bytes = 8, 8, 1
    yield
    ops.FEWEST, ops.WIDTH, config.max_logits_bytes = before
    cache.clear_cache()


@pytest.fixture
def mesh() -> spmd.Mesh:
    return spmd.Mesh(range(8), (4, 2), ("data", "tensor"))


def flat(logits: Tensor, target: Tensor, **how: Any) -> Tensor:
    return F.cross_entropy(logits.view(-1, CLASSES), target.view(-1), **how)


def hugging_face(x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor) -> Tensor:
    """Its loss of today: the targets are shifted, and padded by one that is ignored."""
    target = F.pad(target, (0, 1), value=-100)[..., 1:].contiguous()
    return flat(F.linear(x, weight, bias).float(), target, ignore_index=-100, reduction="mean")


def shifted(x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor) -> Tensor:
    """Its loss of before, as in many scripts: the last logits are cut off."""
    logits = F.linear(x, weight, bias).float()[..., :-1, :].contiguous()
    return flat(logits, target[..., 1:].contiguous())


def last_tokens(x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor) -> Tensor:
    logits = F.linear(x, weight, bias)[:, 2:]
    return flat(logits.reshape(-1, CLASSES), target[:, 2:].contiguous(), reduction="sum")


def tied(x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor) -> Tensor:
    return flat(
        F.linear(x + F.embedding(target, weight), weight, bias), target, label_smoothing=0.1
    )


LOSSES: dict[str, Loss] = {
    "Hugging Face": hugging_face,
    "shifted logits": shifted,
    "last tokens": last_tokens,
    "tied": tied,
    "nn.Linear's output": lambda x, w, b, t: flat(F.linear(x, w, b), t),
}


def gradients(loss: Loss, operands: list[Tensor], target: Tensor) -> list[Tensor]:
    leaves = [x.detach().requires_grad_() for x in operands]
    made = loss(*leaves, target)
    grads = torch.autograd.grad(made * 1.5, leaves, allow_unused=True)
    return [made.detach(), *(grad for grad in grads if grad is not None)]


def operands(dtype: torch.dtype) -> tuple[list[Tensor], Tensor]:
    shapes = (BATCH, LENGTH, WIDTH), (CLASSES, WIDTH), (CLASSES,)
    return [torch.randn(shape).to(dtype) for shape in shapes], torch.randint(
        0, CLASSES, (BATCH, LENGTH)
    )


def has_logits(tensors: list[Tensor]) -> bool:
    """True where the program that would compute these holds anything of targets x classes."""
    text = spmd.get_stablehlo(tensors)
    return any(
        f"tensor<{shape}x{CLASSES}x" in text
        for shape in (BATCH * LENGTH, f"{BATCH}x{LENGTH}", BATCH * 5)
    )


class TestRecognised:
    """Losses as users write them: no logits in the program, the same loss and gradients."""

    @pytest.mark.parametrize("name", LOSSES)
    def test_forward_and_backward(self, name: str) -> None:
        layer, target = operands(torch.float32)
        expected = gradients(LOSSES[name], layer, target)
        made = gradients(LOSSES[name], [x.to("xla") for x in layer], target.to("xla"))
        assert not has_logits(made)
        for one, other in zip(made, expected, strict=True):
            check(one, other)

    @pytest.mark.parametrize("name", ["Hugging Face"])
    def test_half_precision(self, name: str) -> None:
        """Rounded where the plain program rounds: the same numbers as without."""
        layer, target = operands(torch.bfloat16)
        on_device = [x.to("xla") for x in layer], target.to("xla")
        config.max_logits_bytes = 0
        expected = [x.cpu() for x in gradients(LOSSES[name], *on_device)]
        config.max_logits_bytes = 1
        made = gradients(LOSSES[name], *on_device)
        assert not has_logits(made)
        for one, other in zip(made, expected, strict=True):
            check(one, other)

    def test_forward_alone(self) -> None:
        layer, target = operands(torch.float32)
        with torch.no_grad():
            made = hugging_face(*(x.to("xla") for x in layer), target.to("xla"))
            assert not has_logits([made])
            check(made, hugging_face(*layer, target))

    def test_frozen_weight(self) -> None:
        layer, target = operands(torch.float32)

        def gradient(x: Tensor, weight: Tensor, bias: Tensor, target: Tensor) -> Tensor:
            x = x.requires_grad_()
            return torch.autograd.grad(hugging_face(x, weight, bias, target), x)[0]

        made = gradient(*(x.to("xla") for x in layer), target.to("xla"))
        assert not has_logits([made])
        check(made, gradient(*layer, target))

    @pytest.mark.parametrize("name", ["Hugging Face", "shifted logits"])
    @pytest.mark.parametrize("by_class", ["tensor", None])
    def test_sharded(self, mesh: spmd.Mesh, name: str, by_class: str | None) -> None:
        layer, target = operands(torch.float32)
        expected = gradients(LOSSES[name], layer, target)
        specs = ("data", None, None), (by_class, None), (by_class,), ("data", None)
        *moved, goals = (
            spmd.mark_sharding(x.to("xla"), mesh, s)
            for x, s in zip((*layer, target), specs, strict=True)
        )
        made = gradients(LOSSES[name], moved, goals)
        assert not has_logits(made)
        spmd.sync()
        assert set(spmd.metrics.compiles()[-1].collectives) == {"all-reduce"}
        for one, other in zip(made, expected, strict=True):
            check(one, other)

    def test_annotated_logits(self, mesh: spmd.Mesh) -> None:
        """An annotation on the way says how the pieces are to be split."""
        layer, target = operands(torch.float32)

        def loss(x: Tensor, weight: Tensor, bias: Tensor, target: Tensor) -> Tensor:
            logits = F.linear(x, weight, bias)
            if logits.device.type == "xla":
                spmd.mark_sharding(logits, mesh, ("data", None, "tensor"))
            return flat(logits, target)

        made = gradients(loss, [x.to("xla") for x in layer], target.to("xla"))
        assert not has_logits(made)
        for one, other in zip(made, gradients(loss, layer, target), strict=True):
            check(one, other)

    def test_module(self, mesh: spmd.Mesh) -> None:
        """nn.Linear and nn.CrossEntropyLoss, trained for a few steps."""

        def train(device: str) -> list[Tensor]:
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, CLASSES)).to(
                device
            )
            optimizer = torch.optim.SGD(model.parameters(), 0.5, momentum=0.9)
            x, target = (
                torch.randn(32, WIDTH).to(device),
                torch.randint(0, CLASSES, (32,)).to(device),
            )
            for _ in range(3):
                loss = nn.CrossEntropyLoss()(model(x), target)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                spmd.sync()
            return [loss.detach(), *model.parameters()]

        for one, other in zip(train("xla"), train("cpu"), strict=True):
            check(one, other)


class TestLeft:
    """Logits that are read elsewhere, or before the loss, are made as written."""

    @staticmethod
    def check_left(loss: Loss) -> None:
        layer, target = operands(torch.float32)
        made = gradients(loss, [x.to("xla") for x in layer], target.to("xla"))
        assert has_logits(made)
        for one, other in zip(made, gradients(loss, layer, target), strict=True):
            check(one, other)

    def test_another_reader(self) -> None:
        def loss(x: Tensor, weight: Tensor, bias: Tensor, target: Tensor) -> Tensor:
            logits = F.linear(x, weight, bias)
            return flat(logits, target) + logits.square().mean()  # as a z-loss

        self.check_left(loss)

    def test_the_user(self) -> None:
        layer, target = operands(torch.float32)
        logits = F.linear(*(x.to("xla") for x in layer))
        loss = flat(logits, target.to("xla"))
        spmd.sync()
        check(logits, F.linear(*layer))
        check(loss, flat(F.linear(*layer), target))

    def test_the_users_gradient(self) -> None:
        layer, target = operands(torch.float32)
        logits = F.linear(*(x.to("xla").requires_grad_() for x in layer))
        logits.retain_grad()
        flat(logits, target.to("xla")).backward()
        expected = F.linear(*layer).requires_grad_()
        flat(expected, target).backward()
        check(logits.grad, expected.grad)

    def test_the_users_gradient_alone(self) -> None:
        """Nothing but the user reads the gradient of the logits: neither the input nor the weight
        requires one."""
        layer, target = operands(torch.float32)

        def gradient(layer: list[Tensor], target: Tensor) -> Tensor:
            logits = F.linear(*layer).requires_grad_()
            return torch.autograd.grad(flat(logits, target), logits)[0]

        check(gradient([x.to("xla") for x in layer], target.to("xla")), gradient(layer, target))

    def test_a_hook(self) -> None:
        def loss(x: Tensor, weight: Tensor, bias: Tensor, target: Tensor) -> Tensor:
            logits = F.linear(x, weight, bias)
            logits.register_hook(lambda grad: grad * 2)
            return flat(logits, target)

        self.check_left(loss)

    def test_something_between(self) -> None:
        self.check_left(lambda x, w, b, t: flat(30 * torch.tanh(F.linear(x, w, b) / 30), t))

    def test_two_losses(self) -> None:
        def loss(x: Tensor, weight: Tensor, bias: Tensor, target: Tensor) -> Tensor:
            logits = F.linear(x, weight, bias)
            return flat(logits, target) + flat(logits, target, label_smoothing=0.1)

        self.check_left(loss)

    def test_probabilities(self) -> None:
        def loss(x: Tensor, weight: Tensor, bias: Tensor, target: Tensor) -> Tensor:
            share = F.one_hot(target.view(-1), CLASSES).float()
            return F.cross_entropy(F.linear(x, weight, bias).view(-1, CLASSES), share)

        self.check_left(loss)

    def test_backward_in_a_later_program(self) -> None:
        layer, target = operands(torch.float32)
        leaves = [x.to("xla").requires_grad_() for x in layer]
        loss = hugging_face(*leaves, target.to("xla"))
        spmd.sync()
        made = torch.autograd.grad(loss, leaves)
        cpu = [x.requires_grad_() for x in layer]
        for one, other in zip(
            made, torch.autograd.grad(hugging_face(*cpu, target), cpu), strict=True
        ):
            check(one, other)

    @pytest.mark.parametrize("nbytes", [0, 1 << 20])
    def test_small(self, nbytes: int) -> None:
        """Below the flag, and where it is 0, the program is as written."""
        config.max_logits_bytes = nbytes
        self.check_left(hugging_face)

    def test_the_flag_is_in_the_key(self) -> None:
        layer, target = operands(torch.float32)
        moved = [x.to("xla") for x in layer], target.to("xla")
        gradients(hugging_face, *moved)
        spmd.sync()
        before = spmd.metrics.num_compiles()
        config.max_logits_bytes = 0
        gradients(hugging_face, *moved)
        made = gradients(hugging_face, *moved)
        spmd.sync()
        assert spmd.metrics.num_compiles() == before + 1 and made


class TestMemory:
    """At a vocabulary of 131,072 the temporaries of forward and backward are a fraction of the
    logits."""

    def test_temporaries(self) -> None:
        ops.FEWEST, ops.WIDTH = 1024, 128
        tokens, classes = 256, 131_072
        whole = tokens * classes * 4
        x = torch.randn(tokens, WIDTH).to("xla").requires_grad_()
        weight = torch.randn(classes, WIDTH).to("xla").requires_grad_()
        target = torch.randint(0, classes, (tokens,)).to("xla")
        spmd.sync()
        temporaries = []
        for most in (0, whole // 2):
            config.max_logits_bytes = most
            grads = torch.autograd.grad(F.cross_entropy(F.linear(x, weight), target), (x, weight))
            spmd.sync()
            temporaries.append(spmd.metrics.compiles()[-1].temp_bytes)
            del grads
        assert temporaries[0] > whole
        assert temporaries[1] < whole / 4
