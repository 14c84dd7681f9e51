"""Hugging Face models, unmodified: a training step, unsharded or with the batch over eight devices,
agrees with CPU."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from models.families import FAMILIES, NAMES
from models.zoo import Case, Inputs
from torch import Tensor, nn

import spmd

RATE = 1e-2  # of both optimizers
# Adam's: with torch's own, a gradient that is rounding noise alone would move a weight by the whole
# rate
EPS = 1e-4


@dataclass(frozen=True, slots=True)
class Step:
    """The tensors after one training step, by name, and the model's outputs before it and, in eval
    mode, after it."""

    outputs: dict[str, Tensor]
    gradients: dict[str, Tensor]
    after_sgd: dict[str, Tensor]
    after_adam: dict[str, Tensor]


def train(case: Case, model: nn.Module, inputs: Inputs) -> Step:
    """One backward pass and both optimizers' step from the same weights, all in one program."""
    loss, logits = case.loss(model.train(), inputs)
    loss.backward()
    parameters = dict(model.named_parameters())
    start = {name: parameter.detach().clone() for name, parameter in parameters.items()}
    torch.optim.SGD(model.parameters(), lr=RATE).step()
    after_sgd = {name: parameter.detach().clone() for name, parameter in parameters.items()}
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(start[name])
    torch.optim.AdamW(model.parameters(), lr=RATE, eps=EPS).step()
    with torch.no_grad():
        eval_loss, eval_logits = case.loss(model.eval(), inputs)
    outputs = {"loss": loss, "logits": logits, "eval loss": eval_loss, "eval logits": eval_logits}
    outputs |= {
        name: buffer for name, buffer in model.named_buffers() if buffer.is_floating_point()
    }
    gradients = {
        name: parameter.grad for name, parameter in parameters.items() if parameter.grad is not None
    }
    return Step(outputs, gradients, after_sgd, parameters)


def relative(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> dict[str, float]:
    """norm(difference) / (norm(reference) + 1e-6) of each tensor."""
    assert actual.keys() == expected.keys()
    return {
        name: ((actual[name].detach().cpu() - wanted).norm() / (wanted.norm() + 1e-6)).item()
        for name, wanted in ((name, tensor.detach()) for name, tensor in expected.items())
    }


def assert_below(figures: dict[str, float], bound: float, what: str) -> None:
    worst = max(
        figures, key=lambda name: figures[name] if figures[name] == figures[name] else float("inf")
    )
    print(f"{what}: {figures[worst]:.1e} ({worst})")
    assert figures[worst] < bound, (
        f"{what} of {worst}: {figures[worst]:.2e}, expected below {bound}"
    )


def is_key_bias(name: str) -> bool:
    """True for a key's bias: it shifts all scores of a query equally, so that its gradient is zero
    but for rounding."""
    return name.endswith(("k_proj.bias", "key.bias"))


def real(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors with gradients that are not rounding noise alone."""
    return {name: tensor for name, tensor in tensors.items() if not is_key_bias(name)}


def assert_agrees(actual: Step, expected: Step) -> None:
    assert_below(relative(actual.outputs, expected.outputs), 1e-4, "output")
    largest = max(gradient.norm() for gradient in expected.gradients.values())
    for name, gradient in actual.gradients.items():
        # CPU against itself with the batch reversed differs by 0.07: such a gradient must be small,
        # not equal.
        if is_key_bias(name):
            assert gradient.cpu().norm() < 1e-7 * largest, name
    assert_below(relative(real(actual.gradients), real(expected.gradients)), 1e-4, "gradient")
    assert_below(
        relative(real(actual.after_sgd), real(expected.after_sgd)), 1e-5, "weight after SGD"
    )
    moved = {
        name: (actual.after_adam[name].detach().cpu() - wanted.detach()).abs().max().item() / RATE
        for name, wanted in expected.after_adam.items()
    }
    assert_below(moved, 0.01, "weight after AdamW, in learning rates,")


def build(case: Case) -> tuple[nn.Module, Inputs]:
    torch.manual_seed(0)
    return case.build(), case.inputs()


@pytest.fixture(scope="module", params=NAMES)
def case(request: pytest.FixtureRequest) -> tuple[Case, Step]:
    """A family and the results of its step in plain torch."""
    chosen = FAMILIES[request.param]
    return chosen, train(chosen, *build(chosen))


class TestTrainingStepAgreesWithCPU:
    """Forward, loss, backward, one SGD and one AdamW step, then eval: per tensor as near to CPU as
    rounding allows."""

    def run(self, case: Case, place: Callable[[Tensor], Tensor]) -> Step:
        model, inputs = build(case)
        return train(
            case,
            model.to("xla"),
            {name: place(tensor.to("xla")) for name, tensor in inputs.items()},
        )

    def test_unsharded(self, case: tuple[Case, Step]) -> None:
        assert_agrees(self.run(case[0], lambda tensor: tensor), case[1])

    def test_batch_over_eight_devices(self, case: tuple[Case, Step], mesh8: spmd.Mesh) -> None:

        def place(tensor: torch.Tensor) -> torch.Tensor:
            return spmd.mark_sharding(tensor, mesh8, ("fsdp", *[None] * (tensor.dim() - 1)))

        assert_agrees(self.run(case[0], place), case[1])
