"""torch's process-wide settings: what each decides is decided at each call, and a steady program
stays one program."""

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import jax
import pytest
import torch
from support import check, run_script
from torch.autograd import forward_ad
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import spmd


@contextlib.contextmanager
def switched(switch: Callable[[Any], object], on: Any, off: Any) -> Iterator[None]:
    """A setting that a function sets."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, about settings that it means to take away
        switch(on)
    try:
        yield
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            switch(off)


def attribute(owner: Any, name: str, value: Any) -> Any:
    """A setting that is an attribute."""
    return switched(lambda new: setattr(owner, name, new), value, getattr(owner, name))


def default_tensor_type(dtype: str) -> None:
    torch.set_default_tensor_type(dtype)


SETTINGS: dict[str, Callable[[], Any]] = {
    "default dtype float64": lambda: switched(
        torch.set_default_dtype, torch.float64, torch.float32
    ),
    "default dtype bfloat16": lambda: switched(
        torch.set_default_dtype, torch.bfloat16, torch.float32
    ),
    "default tensor type": lambda: switched(
        default_tensor_type, torch.DoubleTensor, torch.FloatTensor
    ),
    "default device": lambda: switched(torch.set_default_device, "xla", None),
    "default device, in scope": lambda: torch.device("xla"),
    "deterministic": lambda: switched(torch.use_deterministic_algorithms, True, False),
    "deterministic, in words": lambda: switched(
        torch.set_deterministic_debug_mode, "error", "default"
    ),
    "no_grad": torch.no_grad,
    "set_grad_enabled": lambda: switched(torch.set_grad_enabled, False, True),
    "inference_mode": torch.inference_mode,
    "anomaly": lambda: switched(torch.autograd.set_detect_anomaly, True, False),
    "view replay": lambda: switched(torch._C._set_view_replay_enabled, True, False),
    "saved tensors": lambda: torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x),
    "save on cpu": torch.autograd.graph.save_on_cpu,
    "precision high": lambda: switched(torch.set_float32_matmul_precision, "high", "highest"),
    "tf32": lambda: attribute(torch.backends.cuda.matmul, "allow_tf32", True),
    "reduced precision": lambda: attribute(
        torch.backends.cuda.matmul,
        "allow_bf16_reduced_precision_reduction",
        not (torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction),
    ),
    "cudnn benchmark": lambda: attribute(torch.backends.cudnn, "benchmark", True),
    "cudnn deterministic": lambda: attribute(torch.backends.cudnn, "deterministic", True),
    "no mkldnn": lambda: switched(torch._C._set_mkldnn_enabled, False, True),
    "opt_einsum": lambda: attribute(torch.backends.opt_einsum, "enabled", False),
    "attention": lambda: sdpa_kernel(SDPBackend.MATH),
    "mha fast path": lambda: switched(torch.backends.mha.set_fastpath_enabled, False, True),
    "threads": lambda: switched(torch.set_num_threads, 1, torch.get_num_threads()),
    "warn always": lambda: switched(torch.set_warn_always, True, False),
    "print options": lambda: switched(
        lambda options: torch.set_printoptions(**options), {"precision": 2}, {"precision": 4}
    ),
    "no torch functions": torch._C.DisableTorchFunction,
    "forward gradients": forward_ad.dual_level,
}


def step(device: str) -> list[torch.Tensor]:
    """A program in which most of the settings have a say."""
    whole, some = torch.arange(1, 5, device=device), torch.tensor([True, False], device=device)
    x = torch.linspace(-1, 1, 16, device=device, dtype=torch.float32).view(4, 4).requires_grad_()
    heads = x[None, None]
    y = torch.einsum("ij,jk->ik", x, x).sin() + F.scaled_dot_product_attention(heads, heads, heads)
    made = [
        y, whole + 1.5, whole / 3, whole * 2j, whole > 2.5, some * 0.5, whole.sqrt(),
        torch.where(some, 1.5, 2.5), torch.ones(2, device=device),
        torch.full((2,), 1.5, device=device), torch.arange(0, 1, 0.5, device=device),
        *torch._foreach_mul([whole, whole.half()], 1.5), torch.zeros(2, device=device).resize_(2),
        whole.new_tensor(2.5),
    ]  # fmt: skip
    if torch.are_deterministic_algorithms_enabled():
        made += [
            torch.empty(2, device=device),
            torch.empty_like(whole),
            torch.empty_strided((2,), (1,), device=device),
        ]
    if y.requires_grad:
        y.sum().backward()
        assert x.grad is not None
        made.append(x.grad)
    return made


# torch 2.15's own meta kernel makes one (see `infer`)
@pytest.mark.filterwarnings("ignore:BComplex32 support")
@pytest.mark.parametrize("name", SETTINGS)
class TestEachSetting:
    """A program gives what it gives on the CPU before, under and after a setting, and no program is
    made twice."""

    def test_values_and_programs(self, name: str) -> None:
        made, counts = [], []
        for device in ("cpu", "xla", "xla", "xla"):
            before = spmd.metrics.num_compiles()
            made.append(step(device))
            spmd.sync()
            with SETTINGS[name]():
                made[-1] += step(device)
                spmd.sync()
            made[-1] += step(device)
            spmd.sync()
            counts.append(spmd.metrics.num_compiles() - before)
        assert counts[2:] == [0, 0]
        for actual, expected in zip(made[1], made[0], strict=True):
            assert (actual.device.type, expected.device.type) == ("xla", "cpu")
            assert (actual.requires_grad, actual.is_inference()) == (
                expected.requires_grad,
                expected.is_inference(),
            )
            check(actual, expected)


INTEGERS: dict[str, Callable[[str], torch.Tensor]] = {
    "add": lambda d: torch.tensor([1, 2], device=d) + 5.5,
    "rsub": lambda d: 5.5 - torch.tensor([1, 2], device=d),
    "div": lambda d: torch.tensor([1, 2], device=d) / torch.tensor([3, 4], device=d),
    "pow": lambda d: torch.tensor([1, 2], device=d) ** 0.5,
    "rpow": lambda d: 2.5 ** torch.tensor([1, 2], device=d),
    "exact": lambda d: torch.tensor([16777217], device=d) > 16777216.0,
    "where": lambda d: torch.where(
        torch.tensor([True, False], device=d), torch.tensor([1, 2], device=d), 2.5
    ),
    "complex": lambda d: (
        torch.tensor([1, 2], device=d).add(1j).abs()
        if torch.get_default_dtype().itemsize > 2
        else torch.ones(1, device=d)
    ),
    "sigmoid": lambda d: torch.tensor([1, 2], device=d).sigmoid(),
    "clamp": lambda d: torch.tensor([1, 2], device=d).clamp(min=1.5),
    "remainder": lambda d: torch.tensor([5, 7], device=d) % 2.5,
    "atan2": lambda d: torch.atan2(torch.tensor([1, 2], device=d), torch.tensor([1, 2], device=d)),
    "ldexp": lambda d: torch.ldexp(torch.tensor([1, 2], device=d), torch.tensor([1, 2], device=d)),
    "logsumexp": lambda d: torch.tensor([1, 2], device=d).logsumexp(0),
    "copysign": lambda d: torch.copysign(torch.tensor([1, 2], device=d), -1.5),
    "fft": lambda d: (
        torch.fft.rfft(torch.tensor([1, 2], device=d)).real
        if torch.get_default_dtype().itemsize > 2
        else torch.ones(1, device=d)
    ),
    "foreach": lambda d: torch._foreach_add(
        [torch.tensor([1, 2], device=d), torch.ones(2, device=d).half()], 1.5
    )[0],
    "foreach_": lambda d: torch._foreach_div([torch.tensor([1, 2], device=d)], [3])[0],
    "a number of the host": lambda d: torch.tensor([1, 2], device=d) * torch.tensor(1.5),
    "tensor": lambda d: torch.tensor([1.5], device=d),
    "linspace": lambda d: torch.linspace(0, 1, 3, device=d),
    "eye": lambda d: torch.eye(2, device=d),
    "scalar_tensor": lambda d: torch.scalar_tensor(1.5, device=d),
    "uniform": lambda d: torch.rand(2, device=d) * 0,
    "explicit": lambda d: torch.tensor([1, 2], device=d).to(torch.float32) + 0.5,
}


class TestDefaultDtype:
    """Every type that the default dtype decides follows it, however often it changes."""

    def test_it_follows(self) -> None:
        kept = []
        try:
            for dtype in (
                torch.float32,
                torch.float64,
                torch.bfloat16,
                torch.float16,
                torch.float32,
                torch.float64,
            ):
                torch.set_default_dtype(dtype)
                kept += [(name, dtype, call("xla"), call("cpu")) for name, call in INTEGERS.items()]
        finally:
            torch.set_default_dtype(torch.float32)
        wrong = {
            (name, dtype): made.dtype
            for name, dtype, made, expected in kept
            if made.dtype != expected.dtype
        }
        assert wrong == {}
        for *_, made, expected in kept:
            check(made, expected)


class TestDeterministic:
    """`use_deterministic_algorithms` refuses, warns and fills as on the CPU; what only cuda does in
    no order passes."""

    REFUSED: ClassVar[dict[str, Callable[[torch.Tensor], torch.Tensor]]] = {
        "put_": lambda x: x.put_(
            torch.tensor([1], device=x.device), torch.ones(1, device=x.device)
        ),
        "put": lambda x: torch.put(
            x, torch.tensor([1], device=x.device), torch.ones(1, device=x.device)
        ),
        "unpool1d": lambda x: F.max_unpool1d(
            x[None, :2], torch.tensor([[0, 2]], device=x.device), 2
        ),
        "unpool2d": lambda x: F.max_unpool2d(
            x[None, None, :2], torch.tensor([[[0, 2]]], device=x.device), 2
        ),
        "unpool3d": lambda x: F.max_unpool3d(
            x[None, None, None, :2], torch.tensor([[[[0, 2]]]], device=x.device), (1, 1, 2)
        ),
    }
    TAKEN: ClassVar[dict[str, Callable[[torch.Tensor], torch.Tensor]]] = {
        "put_ that adds": lambda x: x.put_(
            torch.tensor([1], device=x.device), torch.ones(1, device=x.device), True
        ),
        "median": lambda x: x.median(0).indices,
        "histc": lambda x: x.histc(4),
        "cumsum": lambda x: x.cumsum(0),
        "index_put_": lambda x: x.index_put_((torch.tensor([0, 1], device=x.device),), x[:2] * 2),
    }

    def outcome(
        self, call: Callable[[torch.Tensor], torch.Tensor], device: str
    ) -> tuple[object, list[str]]:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            try:
                made: object = call(torch.arange(4, dtype=torch.float32, device=device)).tolist()
            except RuntimeError as error:
                made = str(error)
        return made, sorted({str(warning.message).partition(" (Triggered")[0] for warning in seen})

    @pytest.mark.parametrize("warn_only", [False, True])
    def test_refused(self, warn_only: bool) -> None:
        calls = self.REFUSED | self.TAKEN
        for _ in range(2):  # a second call finds what the first one built
            plain = {name: self.outcome(call, "xla") for name, call in calls.items()}
            torch.use_deterministic_algorithms(True, warn_only=warn_only)
            try:
                made, expected = (
                    {n: self.outcome(call, d) for n, call in calls.items()} for d in ("xla", "cpu")
                )
            finally:
                torch.use_deterministic_algorithms(False)
            assert made == expected
            assert plain == {name: self.outcome(call, "cpu") for name, call in calls.items()}
            said = {name: outcome[warn_only] for name, outcome in made.items()}
            assert {name for name in said if "deterministic" in str(said[name])} == {*self.REFUSED}

    def test_filled(self) -> None:
        torch.use_deterministic_algorithms(True)
        try:
            for dtype in (
                torch.float32,
                torch.complex64,
                torch.bfloat16,
                torch.int8,
                torch.int64,
                torch.bool,
            ):
                for like in (
                    torch.zeros(2, dtype=dtype),
                    torch.zeros(2, dtype=dtype, device="xla"),
                ):
                    value = torch.empty(1, dtype=dtype).expand(2, 2)
                    check(torch.empty(2, 2, dtype=dtype, device=like.device), value)
                    check(like.new_empty(2, 2), value)
                    check(torch.empty_like(like.expand(2, 2)), value)
                    check(like.new_empty_strided((2, 2), (1, 2)), value)
                    check(
                        torch.empty_permuted((2, 2), (1, 0), dtype=dtype, device=like.device), value
                    )
                    check(
                        like.clone().resize_(3),
                        torch.cat([torch.zeros(2, dtype=dtype), value[0, :1]]),
                    )
                    check(
                        torch.zeros(2, 2, dtype=dtype, device=like.device),
                        torch.zeros(2, 2, dtype=dtype),
                    )
            torch.utils.deterministic.fill_uninitialized_memory = False
            assert torch.empty(2, device="xla").tolist() == [0, 0]
        finally:
            torch.utils.deterministic.fill_uninitialized_memory = True
            torch.use_deterministic_algorithms(False)
        assert torch.empty(2, device="xla").tolist() == [0, 0]


class TestElsewhere:
    """Settings that show in words, places and errors rather than in values."""

    def test_anomaly_names_the_forward_line(self) -> None:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            with torch.autograd.detect_anomaly():
                x = torch.zeros(2, device="xla", requires_grad=True)
                with pytest.raises(
                    RuntimeError, match="SqrtBackward0' returned nan values in its 0th output"
                ):
                    (x.sqrt() * 0).sum().backward()
        assert any("(x.sqrt() * 0).sum().backward()" in str(warning.message) for warning in seen)

    def test_print_options(self) -> None:
        x = torch.tensor([1.23456789, 1e5, 1e-5])
        try:
            for options in ({"precision": 2}, {"sci_mode": True}, {"threshold": 2, "edgeitems": 1}):
                torch.set_printoptions(**options)
                assert repr(x.to("xla")) == repr(x).removesuffix(")") + ", device='xla:0')"
        finally:
            torch.set_printoptions(profile="default")
            torch.set_printoptions(sci_mode=None)

    def test_default_device(self) -> None:
        try:
            torch.set_default_device("xla")
            assert torch.get_default_device() == torch.device("xla:0")
            made = [
                torch.zeros(2),
                torch.rand(2),
                torch.tensor([1]),
                torch.arange(3),
                torch.nn.Linear(2, 2).weight,
            ]
            with torch.device("cpu"):
                assert torch.ones(1).device.type == "cpu"
        finally:
            torch.set_default_device(None)
        assert {tensor.device.type for tensor in made} == {"xla"} and torch.ones(
            1
        ).device.type == "cpu"

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("jax_numpy_rank_promotion", "raise"),
            ("jax_numpy_dtype_promotion", "strict"),
            ("jax_enable_x64", False),
            ("jax_default_matmul_precision", "bfloat16"),
            ("jax_check_tracer_leaks", True),
            ("jax_enable_checks", True),
        ],
    )
    def test_jax(self, name: str, value: object) -> None:
        """A setting for a user's own JAX code is not for ours, and is still set afterwards."""
        width = 5 + len(name)  # shapes that no program has yet
        made, before = {}, jax.config.values[name]
        for device in ("cpu", "xla"):
            torch.manual_seed(0)
            layer, x = (
                torch.nn.Linear(8, width).to(device),
                torch.linspace(-1, 1, 16, device=device).view(2, 8),
            )
            jax.config.update(name, value)
            try:
                loss = (
                    F.cross_entropy(layer(x), torch.tensor([1, 2], device=device))
                    + (torch.arange(width) / 3).sum()
                )
                loss.backward()
                spmd.sync()
                assert jax.config.values[name] == value
            finally:
                jax.config.update(name, before)
            made[device] = [loss, layer.weight.grad, layer.bias.grad]
        for actual, expected in zip(made["xla"], made["cpu"], strict=True):
            check(actual, expected)


class TestProfiler:
    """torch's profiler reads the names of what ran: nothing is imported in the first step, as names
    of a module's code are freed after its import."""

    def test_first_steps(self):
        run_script("""
            import sys
            import torch
            from torch.profiler import profile, record_function
            import spmd

            spmd.config.program_cache = False
            spmd.simulate(2)
            model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.1)).to("xla")
            optimizer = torch.optim.AdamW(model.parameters())
            x = torch.randn(4, 8).to("xla")
            before = set(sys.modules)
            with profile(record_shapes=True, with_stack=True) as found:
                for _ in range(1):
                    with record_function("our step"):
                        model(x).square().mean().backward()
                        optimizer.step()
                        spmd.sync()
            # the latter when it ends
            late = sorted(set(sys.modules) - before - {"torch.profiler.python_tracer"})
            assert not late, late
            # what key_averages reads
            names = {event.name() for event in found.profiler.kineto_results.events()}
            assert "our step" in names
        """)
