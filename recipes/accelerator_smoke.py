"""Try the library on the accelerator of this machine: a tour, a GPT against eager torch and JAX,
and what is planned.

    python recipes/accelerator_smoke.py            # make gpu
    python recipes/accelerator_smoke.py --dry-run  # the same on one CPU device, smaller

Each row of the table is one check: gradients of single ops against torch on the CPU; attention over
a sharded sequence, four devices' parts one after the other, and under masks; a GPT's training
losses against eager torch's on the CPU and a hand-written JAX program's; the same step by
`spmd.compile` and the model by `torch.compile`; a checkpoint written and read; the memory and time
that `spmd.plan` names against what the run took. It ends with status 1 where one fails. Times are
printed, never judged.
Without an accelerator it stops with a line, unless --dry-run.
"""

import argparse
import copy
import math
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.distributed import checkpoint as dcp

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs without being installed, too

# isort: off
import spmd  # before jax: it sets environment variables that XLA reads when jax is imported
import jax
import jax.numpy as jnp
from jax.custom_batching import sequential_vmap

# isort: on
from recipes.benchmarks import jax_gpt
from recipes.benchmarks.step import JaxStep, TorchStep
from recipes.gpt import GPT, GPTConfig
from spmd.core.extend import Masking, Places
from spmd.ops.kernels.mask_blocks import causal
from spmd.parallel.block_pairs import forms_of
from spmd.parallel.exchanges import Place, RingOfKeys, Visible
from spmd.parallel.orders import HalfOfHeads

STEPS = 4
TIMED = 8


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="on one CPU device, where there is no accelerator"
    )
    parser.add_argument("--layers", type=int, help="of the GPT (default 12; dry: 2)")
    parser.add_argument("--width", type=int, help="of the GPT (default 512; dry: 64)")
    parser.add_argument("--sequence", type=int, help="tokens of a sequence (default 256; dry: 32)")
    parser.add_argument("--batch", type=int, help="sequences of a step (default 16; dry: 4)")
    args = parser.parse_args(arguments)
    for name, usual, dry in (
        ("layers", 12, 2),
        ("width", 512, 64),
        ("sequence", 256, 32),
        ("batch", 16, 4),
    ):
        if getattr(args, name) is None:
            setattr(args, name, dry if args.dry_run else usual)
    return args


class Smoke:
    """The model, its batches, and the checks by name; each returns what it found, in a few
    words."""

    def __init__(self, args: argparse.Namespace):
        self.args = args
        self.config = GPTConfig(
            layers=args.layers, width=args.width, heads=8, sequence=args.sequence
        )
        torch.manual_seed(0)
        self.weights = GPT(self.config).state_dict()
        draw = torch.Generator().manual_seed(1)
        rows = torch.randint(
            self.config.vocabulary, (STEPS, args.batch, args.sequence + 1), generator=draw
        )
        self.batches = [(row[:, :-1].contiguous(), row[:, 1:].contiguous()) for row in rows]
        self.expected: list[float] = []

    def model(self, device: str) -> GPT:
        model = GPT(self.config)
        model.load_state_dict(self.weights)
        return model.to(device)

    def trained(self, device: str, wrap: Callable[[Any], Any] = lambda model: model) -> TorchStep:
        """The step of a new model on a device."""
        end: Callable[[], None] = (
            (lambda: spmd.sync(wait=True)) if device == "xla" else (lambda: None)
        )
        return TorchStep(
            wrap(self.model(device)), device=device, end=end, shard=lambda values: values
        )

    def losses(self, step: Any) -> list[float]:
        found = []
        for batch in self.batches:
            step(*batch)
            found.append(step.loss.item() if isinstance(step.loss, Tensor) else float(step.loss))
        return found

    def seconds(self, step: Any) -> float:
        """The median seconds of a step."""
        taken = []
        for _ in range(TIMED):
            started = time.perf_counter()
            step(*self.batches[0])
            taken.append(time.perf_counter() - started)
        return statistics.median(taken)

    # --- the checks -------------------------------------------------------------------------------

    def tour(self) -> str:
        """Ops and their gradients, against torch on the CPU."""
        functions: dict[str, Callable[[Tensor], Tensor]] = {
            "matmul": lambda x: x @ x.T,
            "softmax": lambda x: (x.softmax(-1) * x).sum(-1),
            "layer_norm": lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:]),
            "gelu": torch.nn.functional.gelu,
            "index": lambda x: x[:, torch.tensor([3, 1, 1], device=x.device)],
            "cumsum": lambda x: x.cumsum(-1),
        }
        torch.manual_seed(0)
        for name, function in functions.items():
            for dtype, tolerance in ((torch.float32, 2e-3), (torch.bfloat16, 6e-2)):
                cpu = torch.randn(16, 32, dtype=dtype).requires_grad_()
                ours = cpu.detach().to("xla").requires_grad_()
                for x in (cpu, ours):
                    y = function(x).float()
                    (y * y.detach().cpu().sin().to(y.device)).sum().backward()
                assert cpu.grad is not None and ours.grad is not None
                scale = cpu.grad.abs().max().item()
                error = (ours.grad.cpu() - cpu.grad).abs().max().item()
                assert error <= tolerance * scale, (
                    f"{name} in {dtype}: gradients differ by {error:.2e} of {scale:.2e}"
                )
        return f"{len(functions)} ops in float32 and bfloat16"

    def ring(self) -> str:
        """Attention whose keys travel around four devices, against whole rows, by the kernel of the
        platform."""
        rows = 64 * self.args.sequence if jax.default_backend() != "cpu" else self.args.sequence
        keys = jax.random.split(jax.random.key(0), 4)
        query, gradient = (
            jax.random.normal(key, (1, 8, rows, 64), jnp.bfloat16) for key in keys[:2]
        )
        key, value = (jax.random.normal(key, (1, 2, rows, 64), jnp.bfloat16) for key in keys[2:])
        masking = Masking(causal(rows, rows))
        forms = forms_of(query, key, value, masking, None, False, 0.125, 4)
        form = forms.get(
            {"gpu": "cuda"}.get(jax.default_backend(), jax.default_backend()), forms["default"]
        )
        order = HalfOfHeads(("context",), 4, rows // 4)
        exchange = RingOfKeys(order, Visible.of(masking, order))

        # Of the four lanes of a vmap the kernels compute one after the other: not all of them have
        # a batching rule.
        def at(place: Place, index: Any) -> Masking:
            starts = place.of_groups
            assert starts is not None, "a ring of four has no loop"
            return Masking() if place.is_all else masking.at(Places(starts, index))

        def forward(rows: Any, columns: Any, place: Place) -> Any:
            def one(index: Any, *arrays: Any) -> Any:
                return form.forward(*arrays, None, None, at(place, index))

            return sequential_vmap(one)(order.group, *rows, *columns)

        def backward(rows: Any, columns: Any, place: Place) -> Any:
            def one(index: Any, *arrays: Any) -> Any:
                return form.backward(*arrays, None, None, at(place, index))

            return sequential_vmap(one)(order.group, rows[0], *columns, *rows[1:])

        def ring(query: Any, key: Any, value: Any, gradient: Any) -> Any:
            output, logsumexp = exchange.forward(forward, (query,), (key, value), jnp.float32)
            output = output.astype(query.dtype)
            saved = (query, gradient, output, logsumexp)
            return output, *exchange.backward(backward, saved, (key, value), jnp.float32)

        def whole(query: Any, key: Any, value: Any, gradient: Any) -> Any:
            output, logsumexp = form.forward(query, key, value, None, None, masking)
            output = output.astype(query.dtype)
            return output, *form.backward(
                query, key, value, gradient, output, logsumexp, None, None, masking
            )

        def shards(x: jax.Array) -> jax.Array:
            return jnp.moveaxis(x.reshape(*x.shape[:2], 4, -1, x.shape[3]), 2, 0)

        operands = query, key, value, gradient
        found = jax.jit(jax.vmap(ring, axis_name="context"))(*map(shards, operands))
        errors = []
        for one, other in zip(found, map(shards, jax.jit(whole)(*operands)), strict=True):
            scale = float(jnp.abs(other).max())
            errors.append(
                float(jnp.abs(one.astype(jnp.float32) - other.astype(jnp.float32)).max()) / scale
            )
        assert max(errors) < 2e-2, f"output and gradients differ by {errors}"
        return f"{rows:,} rows: output and gradients within {max(errors):.1e}"

    def masks(self) -> str:
        """Attention under masks, and its gradients, against torch in float32 on the CPU: by the
        kernel where the platform has one."""
        length = max(512, 2 * self.args.sequence)
        at = torch.arange(length)
        before, window = at[:, None] >= at, at[:, None] - at < length // 4
        documents = (at[:, None] // 200 == at // 200) & before & (at[:, None] < length - 50)
        torch.manual_seed(0)
        bias = torch.randn(1, 8, length, length)
        errors: dict[str, float] = {}
        for name, mask, width, of_values in (
            ("causal", before, 64, 64),
            ("window", before & window, 128, 128),
            ("width 256", before, 256, 256),
            ("widths 192/128", before, 192, 128),
            ("bias", bias, 64, 64),
            ("bias with hidden rows", bias.masked_fill(~documents, -torch.inf), 64, 64),
            ("padding", (at < length - 100)[None, None, None], 64, 64),
        ):
            shapes = [(2, heads, length, width) for heads in (8, 4, 4)]
            shapes[2] = (*shapes[2][:3], of_values)
            operands = [torch.randn(shape).bfloat16() for shape in shapes]
            is_bias = mask.is_floating_point()
            operands += [mask.bfloat16()] if is_bias else []
            ours = self._attended([x.to("xla") for x in operands], mask, name)
            expected = self._attended([x.float() for x in operands], mask, name)
            errors[name] = max(
                ((x.float().cpu() - y).abs().max() / y.abs().max()).item()
                for x, y in zip(ours, expected, strict=True)
            )
        wrong = {name: error for name, error in errors.items() if not error <= 3e-2}
        assert not wrong, f"output and gradients differ by {wrong}"
        return f"{len(errors)} masks: output and gradients within {max(errors.values()):.1e}"

    def _attended(self, operands: list[Tensor], mask: Tensor, name: str) -> list[Tensor]:
        """Output and gradients of attention under a mask, which the device makes of positions."""
        leaves = [x.requires_grad_() for x in operands]
        device, length = leaves[0].device, mask.shape[-1]
        at = torch.arange(length, device=device)
        made = {"causal": at[:, None] >= at, "window": at[:, None] - at < length // 4}
        made["window"] = made["window"] & made["causal"]
        made |= {"width 256": made["causal"], "widths 192/128": made["causal"]}
        given = leaves[3] if len(leaves) > 3 else made.get(name, mask.to(device))
        attend = torch.nn.functional.scaled_dot_product_attention
        output = attend(*leaves[:3], attn_mask=given, enable_gqa=True).float()
        output.backward(output.detach().cpu().sin().to(device))
        return [output, *(leaf.grad for leaf in leaves if leaf.grad is not None)]

    def eager(self) -> str:
        """The losses of eager torch on the CPU, which the others are compared with."""
        step = self.trained("cpu")
        self.expected = self.losses(step)
        return (
            f"{self.expected[0]:.4f} to {self.expected[-1]:.4f}, {1e3 * self.seconds(step):.1f} "
            "ms a step"
        )

    def _compare(self, found: list[float], step: Any) -> str:
        worst = max(abs(one - other) for one, other in zip(found, self.expected, strict=True))
        # Matrix units round float32 to fewer bits than the CPU does.
        assert worst <= (1e-3 if jax.default_backend() == "cpu" else 2e-2), (
            f"losses {found}, expected {self.expected}"
        )
        return f"losses within {worst:.1e}, {1e3 * self.seconds(step):.1f} ms a step"

    def lazy(self) -> str:
        """The step on xla."""
        self.step = self.trained("xla")
        self.found = self.losses(self.step)
        return self._compare(self.found, self.step)

    def compiled(self) -> str:
        """The same step by spmd.compile, bit for bit where XLA's scatters add in a fixed order."""
        step = self.trained("xla")
        step.update = spmd.compile(step.update)  # type: ignore[method-assign]
        found = self.losses(step)
        is_exact = (
            jax.default_backend() != "gpu"
            or "xla_gpu_deterministic_ops=true" in os.environ.get("XLA_FLAGS", "")
        )
        close = [
            math.isclose(one, other, rel_tol=0 if is_exact else 1e-6)
            for one, other in zip(found, self.found, strict=True)
        ]
        assert all(close), f"losses {found}, recorded {self.found}"
        words = self._compare(found, step)
        assert step.update.num_replayed, step.update.explain()  # type: ignore[attr-defined]
        return words

    def torch_compiled(self) -> str:
        """The step whose model is wrapped by torch.compile."""
        step = self.trained("xla", lambda model: torch.compile(model, fullgraph=True))
        return self._compare(self.losses(step), step)

    def by_hand(self) -> str:
        """A hand-written JAX program of the same model."""
        shapes = {name: tuple(value.shape) for name, value in self.weights.items()}
        program = jax_gpt.build(
            shapes,
            batch=self.args.batch,
            sequence=self.args.sequence,
            heads=self.config.heads,
            devices=1,
        )
        step = JaxStep(program, {name: value.numpy() for name, value in self.weights.items()})
        return self._compare(self.losses(step), step)

    def checkpoint(self) -> str:
        """A checkpoint of the trained model, read into a new one: the next loss is the same bit for
        bit."""
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled")
            state = {
                "model": self.step.model.state_dict(),
                "optimizer": self.step.optimizer.state_dict(),
            }
            dcp.save(state, checkpoint_id=folder)
            other = self.trained("xla")
            other(*self.batches[0])  # an optimizer has state to load into from its first step on
            loaded = {"model": other.model.state_dict(), "optimizer": other.optimizer.state_dict()}
            dcp.load(loaded, checkpoint_id=folder)
            other.model.load_state_dict(loaded["model"])
            other.optimizer.load_state_dict(loaded["optimizer"])
            size = sum(path.stat().st_size for path in Path(folder).iterdir())
        other.scheduler.load_state_dict(copy.deepcopy(self.step.scheduler.state_dict()))
        nexts = []
        for step in (self.step, other):
            for _ in range(2):
                step(*self.batches[0])
            nexts.append(step.loss.item())
        assert nexts[0] == nexts[1], f"losses {nexts}"
        return f"{size / 2**20:.1f} MiB"

    def plan(self) -> str:
        """The plan of the step against the run."""
        step = self.trained("xla")
        plan = spmd.plan(step.update, *(values.to("xla") for values in self.batches[0]))
        step(*self.batches[0])
        stats = jax.local_devices()[0].memory_stats() or {}
        peak = stats.get("peak_bytes_in_use")
        words = f"planned peak {plan.peak / 2**20:,.0f} MiB"
        return words + (
            f", the process's so far {peak / 2**20:,.0f} MiB"
            if peak
            else "; the device reports none"
        )


CHECKS = (
    "tour",
    "ring",
    "masks",
    "eager",
    "lazy",
    "compiled",
    "torch_compiled",
    "by_hand",
    "checkpoint",
    "plan",
)


def main(arguments: list[str] | None = None) -> int:
    args = parse(arguments)
    if args.dry_run:
        spmd.simulate(1)
    kind = jax.devices()[0].platform
    if kind == "cpu" and not args.dry_run:
        print(
            "accelerator_smoke: jax finds no GPU or TPU here; --dry-run makes the same checks on "
            "the CPU"
        )
        return 0
    console = Console(width=130)
    console.print(
        f"{len(jax.devices())} x {jax.devices()[0].device_kind}, torch {torch.__version__}, jax "
        f"{jax.__version__}"
    )
    smoke = Smoke(args)
    table = Table("", "check", "", "seconds")
    failed = 0
    for name in CHECKS:
        check = getattr(smoke, name)
        started = time.perf_counter()
        try:
            mark, words = "ok", check()
        except Exception as error:
            mark, words = "FAILED", f"{type(error).__name__}: {error}"
            failed += 1
        summary = " ".join(str(check.__doc__).partition("\n\n")[0].split())
        table.add_row(mark, summary, words, f"{time.perf_counter() - started:.1f}")
    console.print(table)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
