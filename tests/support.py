"""Helpers of the tests: tolerances, `check`, `Batch` (many cases as one program), `run_script`,
`in_thread`."""

import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import spmd

DEVICE = "xla"
ROOT = Path(__file__).resolve().parents[1]

# By dtype of the result: (rtol, atol). Integers and booleans are exact. Never raised to make a test
# pass.
TOLERANCE = {
    torch.float64: (1e-9, 1e-9),
    torch.float32: (2e-5, 2e-5),
    torch.float16: (2e-3, 2e-3),
    torch.bfloat16: (2e-2, 2e-2),
    torch.complex128: (1e-9, 1e-9),
    torch.complex64: (2e-5, 2e-5),
}


_Results = dict[str, torch.Tensor | None]


def check(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Asserts that a device tensor has the values, dtype and shape of a CPU tensor, within the
    table's tolerance."""
    rtol, atol = TOLERANCE.get(expected.dtype, (0, 0))
    torch.testing.assert_close(
        actual.detach().cpu(), expected.detach(), rtol=rtol, atol=atol, equal_nan=True
    )


def distinct(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Shuffled values without ties, exact in every dtype: quarters for floats, whole numbers for
    integers."""
    size = int(torch.tensor(shape).prod()) if shape else 1
    values = torch.randperm(size).reshape(shape) - size // 2
    return (values / 4).to(dtype) if dtype.is_floating_point else values.to(dtype)


class Batch:
    """Cases that are recorded first, run as one program, and compared with CPU at the end, so that
    failures are named.

    mesh, axis: shards dim 0 of every tensor argument that the axis divides, so that XLA partitions
    the program.

        batch = Batch()
        batch.case("exp", torch.exp, torch.randn(3))
        batch.check()
    """

    def __init__(self, *, mesh: Any = None, axis: str | None = None, size: int = 8) -> None:
        self.mesh, self.axis, self.size = mesh, axis, size
        self.cases: list[tuple[str, _Results, _Results]] = []

    def case(
        self, name: str, function: Callable[..., Any], *args: Any, gradient: bool = True
    ) -> None:
        """Records `function(*args)` and, where results have one, the gradient of each
        floating-point argument."""
        expected = _results(function, [_leaf(arg, gradient, lambda t: t.clone()) for arg in args])
        actual = _results(function, [_leaf(arg, gradient, self._move) for arg in args])
        self.cases.append((name, actual, expected))

    def check(self) -> None:
        """Runs everything recorded and names every case that differs from CPU."""
        spmd.sync()
        failures = []
        for name, actual, expected in self.cases:
            if actual.keys() != expected.keys():
                failures.append(f"{name}: {', '.join(actual)}, expected {', '.join(expected)}")
                continue
            for part, reference in expected.items():
                try:
                    assert (actual[part] is None) == (reference is None), "missing on one side"
                    if reference is not None:
                        check(actual[part], reference)
                except AssertionError as error:
                    failures.append(f"{name}, {part}: {error}")
        assert not failures, (
            f"{len(failures)} of {len(self.cases)} cases differ from CPU\n" + "\n".join(failures)
        )

    def _move(self, tensor: torch.Tensor) -> torch.Tensor:
        moved = tensor.to(DEVICE)
        if (
            self.mesh is not None
            and tensor.ndim
            and tensor.shape[0] % self.size == 0
            and tensor.shape[0]
        ):
            spmd.mark_sharding(moved, self.mesh, (self.axis, *[None] * (tensor.ndim - 1)))
        return moved


def _leaf(arg: Any, gradient: bool, move: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if not isinstance(arg, torch.Tensor):
        return arg
    return move(arg.detach()).requires_grad_(gradient and arg.is_floating_point())


def _results(function: Callable[..., Any], args: list[Any]) -> _Results:
    """The tensors that function returns, then the gradients of its tensor arguments under a fixed
    cotangent."""
    result = function(*args)
    outputs = (
        [result]
        if isinstance(result, torch.Tensor)
        else [part for part in result if part is not None]
    )
    leaves = {
        i: arg for i, arg in enumerate(args) if isinstance(arg, torch.Tensor) and arg.requires_grad
    }
    differentiable = [output for output in outputs if output.requires_grad]
    results: _Results = {f"result {i}": output for i, output in enumerate(outputs)}
    if differentiable and leaves:
        cotangents = [_cotangent(output) for output in differentiable]
        gradients = torch.autograd.grad(
            differentiable, list(leaves.values()), cotangents, allow_unused=True
        )
        results |= {
            f"gradient of argument {i}": gradient
            for i, gradient in zip(leaves, gradients, strict=True)
        }
    return results


def _cotangent(output: torch.Tensor) -> torch.Tensor:
    ramp = torch.linspace(0.5, 1.5, max(output.numel(), 1), dtype=torch.float32)[: output.numel()]
    return ramp.reshape(output.shape).to(dtype=output.dtype).to(output.device)


def in_thread(function: Callable[[], object]) -> object:
    """The result of a function in a new thread."""
    results: list[object] = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    thread.join(60)
    assert results, "the thread raised, or hangs"
    return results[0]


def run_script(script: str, *, timeout: float = 120, code: int = 0, **environment: str) -> str:
    """The first of the two texts of `run_both`."""
    return run_both(script, timeout=timeout, code=code, **environment)[0]


def run_both(
    script: str, *, timeout: float = 120, code: int = 0, **environment: str
) -> tuple[str, str]:
    """Runs Python text in a process of its own and returns what it printed on stdout and on stderr;
    what holds for a whole process is seen so.

    The process starts without the settings of this one's devices. A hang, or another exit code,
    fails the test.
    """
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-W", "error", "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**own_environment(), **environment},
        cwd=ROOT,
    )
    assert done.returncode == code, (
        f"exit {done.returncode}, expected {code}\n{done.stdout}\n{done.stderr}"
    )
    return done.stdout, done.stderr


def own_environment() -> dict[str, str]:
    """This process's environment without the settings of its devices, for a process that has its
    own."""
    devices = (
        "XLA_FLAGS",
        "PJRT_DEVICE",
        "PJRT_NPROC",
        "CPU_NUM_DEVICES",
        "JAX_NUM_CPU_DEVICES",
        "GPU_NUM_DEVICES",
    )
    return {name: value for name, value in os.environ.items() if name not in devices}
