"""mp_policy: parameters stay float32, the units gather and compute in another dtype, gradients
arrive in float32."""

import copy
import dataclasses
import gc
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import pytest
import torch
from support import check
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecision
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint
from wrapped import FSDP, POLICY, Layer, Net, spec, train

import fsdp
import spmd
from spmd import config
from spmd.core.programs import cache

BF16 = fsdp.MixedPrecisionPolicy(param_dtype=torch.bfloat16)


@pytest.fixture(params=["gspmd", "shardy"])
def partitioner(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(config, "partitioner", request.param)
    return request.param


class Checkpointed(Net):
    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return self.head(x * self.scale.to(x.dtype))


class Recomputed(Layer):
    """Recompute inside of the unit, where no hook of it is called (as in Hugging Face's layers)."""

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(super().forward, x, use_reentrant=False)


class CheckpointedInside(Net):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Recomputed(16) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return Plain.forward(self, x)


class Plain(Net):
    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x * self.scale.to(x.dtype))


class ByHand(nn.Module):
    """Mixed precision in torch: every parameter cast by hand, gradients through the cast."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        casts = {name: value.to(torch.bfloat16) for name, value in self.module.named_parameters()}
        return functional_call(self.module, casts, (x.to(torch.bfloat16),))


def same_gradients(plain: Net, x: Tensor, mesh: spmd.Mesh, **how: Any) -> None:
    """Output and gradients of a wrapped model against torch's with casts by hand."""
    model = FSDP(copy.deepcopy(plain), mesh=mesh, mp_policy=BF16, **how)
    # torch recomputes outside of the call that casts by hand: the reference keeps its activations.
    plain.__class__ = Plain
    for block in plain.blocks:
        block.__class__ = Layer
    expected = ByHand(plain)(x)
    expected.float().square().mean().backward()
    y = model(x.to("xla"))
    y.float().square().mean().backward()
    assert y.dtype == torch.bfloat16
    check(y, expected)
    for (name, parameter), (_, reference) in zip(
        model.named_parameters(), plain.named_parameters(), strict=True
    ):
        assert parameter.dtype == parameter.grad.dtype == torch.float32, name
        # Computed in bfloat16: compared with its tolerance.
        check(parameter.grad.to(torch.bfloat16), reference.grad.to(torch.bfloat16))
        assert spec(parameter.grad) == spec(parameter), name


class TestGradients:
    """Values and gradients equal those of casts by hand."""

    @pytest.mark.parametrize(
        "how", [{}, {"auto_wrap_policy": POLICY}, {"auto_wrap_policy": fsdp.always_wrap_policy}]
    )
    def test_units(self, how: dict[str, Any], partitioner: str, mesh8: spmd.Mesh) -> None:
        same_gradients(Plain(), torch.randn(16, 16), mesh8, **how)

    @pytest.mark.parametrize("net", [Plain, Checkpointed, CheckpointedInside])
    @pytest.mark.parametrize("reshard", [True, False])
    def test_kept_and_checkpointed(
        self, net: Callable[[], Net], reshard: bool, mesh8: spmd.Mesh
    ) -> None:
        how: dict[str, Any] = {"auto_wrap_policy": POLICY, "reshard_after_forward": reshard}
        same_gradients(net(), torch.randn(16, 16), mesh8, **how)

    def test_a_weight_tied_across_units(self, mesh8: spmd.Mesh) -> None:
        net = Plain()
        net.blocks[1].up.weight = net.blocks[0].up.weight
        same_gradients(net, torch.randn(16, 16), mesh8, auto_wrap_policy=POLICY)

    def test_a_cell_that_lists_its_weights(self, mesh8: spmd.Mesh) -> None:
        class Recurrent(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.lstm = nn.LSTM(16, 16, batch_first=True)

            def forward(self, x: Tensor) -> Tensor:
                return self.lstm(x)[0]

        plain = Recurrent()
        x = torch.randn(8, 3, 16)
        model = FSDP(copy.deepcopy(plain), mesh=mesh8, mp_policy=BF16)
        y = model(x.to("xla"))
        y.float().sum().backward()
        expected = copy.deepcopy(plain).to(torch.bfloat16)(x.to(torch.bfloat16))
        check(y, expected)
        assert model.lstm.weight_ih_l0 is model.lstm._flat_weights[0]
        assert model.lstm.weight_ih_l0.grad.dtype == torch.float32

    def test_after_a_barrier_between(self, mesh8: spmd.Mesh) -> None:
        """Backward reads the casts of a program that has already run."""
        plain, x = Plain(), torch.randn(16, 16)
        model = FSDP(copy.deepcopy(plain), mesh=mesh8, mp_policy=BF16, auto_wrap_policy=POLICY)
        loss = model(x.to("xla")).float().square().mean()
        spmd.sync()
        loss.backward()
        ByHand(plain)(x).float().square().mean().backward()
        for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
            check(ours.grad.to(torch.bfloat16), theirs.grad.to(torch.bfloat16))

    def test_two_backwards_add_up_in_float32(self, mesh8: spmd.Mesh) -> None:
        plain, x = Plain(), torch.randn(16, 16)
        model = FSDP(copy.deepcopy(plain), mesh=mesh8, mp_policy=BF16, auto_wrap_policy=POLICY)
        for _ in range(2):
            model(x.to("xla")).float().square().mean().backward()
            ByHand(plain)(x).float().square().mean().backward()
        for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
            check(ours.grad.to(torch.bfloat16), theirs.grad.to(torch.bfloat16))


class TestParameters:
    """Users hold the float32 masters, whatever dtype forward computes in."""

    def test_training_moves_the_masters(self, mesh8: spmd.Mesh) -> None:
        """A step far below bfloat16's last digit is not lost."""
        model = FSDP(Plain(), mesh=mesh8, mp_policy=BF16, auto_wrap_policy=POLICY)
        before = {name: value.detach().cpu() for name, value in model.named_parameters()}
        losses = train(
            model,
            torch.randn(16, 16).to("xla"),
            optimizer=torch.optim.AdamW(model.parameters(), lr=1e-6),
        )
        assert all(map(torch.isfinite, torch.tensor(losses)))
        for name, value in model.named_parameters():
            moved = (value.detach().cpu() - before[name]).abs()
            assert value.dtype == torch.float32 and 0 < moved.max() < 1e-5, name

    def test_forward_sees_the_dtype(self, mesh8: spmd.Mesh) -> None:
        seen = []

        class Looks(nn.Linear):
            def forward(self, x: Tensor) -> Tensor:
                seen.append((x.dtype, self.weight.dtype, self.bias.dtype))
                return super().forward(x)

        model = FSDP(nn.Sequential(Looks(8, 8), Looks(8, 8)), mesh=mesh8, mp_policy=BF16)
        parameters = list(model.parameters())
        model(torch.ones(8, 8, device="xla"))
        assert seen == [(torch.bfloat16,) * 3] * 2
        assert all(one is other for one, other in zip(model.parameters(), parameters, strict=True))

    def test_they_are_back_after_an_error(self, mesh8: spmd.Mesh) -> None:
        model = FSDP(Plain(), mesh=mesh8, mp_policy=BF16, auto_wrap_policy=POLICY)
        parameters = list(model.parameters())
        with pytest.raises(RuntimeError):
            model(torch.ones(8, 3, device="xla"))
        assert all(one is other for one, other in zip(model.parameters(), parameters, strict=True))
        assert model(torch.ones(8, 16, device="xla")).isfinite().all()

    def test_they_are_back_after_backward(self, mesh8: spmd.Mesh) -> None:
        model = FSDP(Plain(), mesh=mesh8, mp_policy=BF16, auto_wrap_policy=POLICY)
        parameters = list(model.parameters())

        class Fails(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Tensor) -> Tensor:
                return x.clone()

            @staticmethod
            def backward(ctx: Any, gradient: Tensor) -> Tensor:
                raise ValueError("no gradient")

        model(torch.ones(8, 16, device="xla")).float().sum().backward()
        assert all(
            one is other for one, other in zip(model.module.parameters(), parameters, strict=True)
        )
        x = torch.ones(8, 16, device="xla", requires_grad=True)
        with pytest.raises(ValueError, match="no gradient"):
            model(Fails.apply(x)).float().sum().backward()
        assert all(value.dtype == torch.float32 for value in model.state_dict().values())
        assert all(one is other for one, other in zip(model.parameters(), parameters, strict=True))

    def test_frozen_and_evaluation(self, mesh8: spmd.Mesh) -> None:
        plain, x = Plain(), torch.randn(16, 16)
        plain.blocks[0].requires_grad_(False)
        model = FSDP(copy.deepcopy(plain), mesh=mesh8, mp_policy=BF16, auto_wrap_policy=POLICY)
        with torch.no_grad():
            check(model(x.to("xla")), ByHand(plain)(x))
        model(x.to("xla")).float().sum().backward()
        assert model.blocks[0].up.weight.grad is None and model.blocks[1].up.weight.grad is not None

    def test_integers_and_the_dtype_itself_are_left_alone(self, mesh8: spmd.Mesh) -> None:
        embedding = FSDP(nn.Embedding(16, 8).to(torch.bfloat16), mesh=mesh8, mp_policy=BF16)
        y = embedding(torch.arange(8).to("xla"))
        y.float().sum().backward()
        assert y.dtype == embedding.weight.grad.dtype == torch.bfloat16


class TestWhatTravels:
    """The cast is before the gather, in forward and in backward."""

    def test_gathers_of_bfloat16(
        self, partitioner: str, mesh8: spmd.Mesh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """In the partitioner's output: XLA's CPU backend has no collectives of bfloat16 and widens
        them later."""
        dumped = f"xla_dump_to={tmp_path} xla_dump_hlo_pass_re=spmd-partitioning|shardy"
        monkeypatch.setattr(config, "compiler_options", dumped)
        model = FSDP(
            nn.Sequential(*(nn.Linear(256, 256, bias=False) for _ in range(4))),
            mesh=mesh8,
            mp_policy=BF16,
            auto_wrap_policy=fsdp.always_wrap_policy,
        )
        model(torch.randn(16, 256).to("xla")).float().square().mean().backward()
        spmd.sync()
        (text,) = [path.read_text() for path in tmp_path.glob("*after_spmd-partitioning*")]
        gathered = re.findall(r"= (\w+)\[[\d,]*\]\S* all-gather\(", text)
        reduced = re.findall(r"= (\w+)\[256,256\]\S* all-reduce\(", text)
        assert reduced == ["bf16"] * 4
        assert gathered.count("bf16") == len(gathered) == 6, gathered

    def test_what_was_cast_is_not_kept(self, mesh8: spmd.Mesh) -> None:
        """Temporaries of a stack: the activations and a few layers in bfloat16, not every layer's
        cast."""
        width, layers = 512, 8
        stack = nn.Sequential(*(Layer(width) for _ in range(layers)))
        model = FSDP(stack, mesh=mesh8, mp_policy=BF16, auto_wrap_policy=POLICY)
        model(torch.randn(16, width).to("xla")).float().square().mean().backward()
        spmd.sync()
        program = cache.last_program()
        assert program is not None and program.record is not None
        layer = sum(parameter.numel() for parameter in model.module[0].parameters())
        assert program.record.temp_bytes < 5 * layer * 2


class TestOutputDtype:
    """output_dtype: the dtype of each unit's outputs, also in tuples, dicts, dataclasses; gradients
    pass through it."""

    def test_of_each_unit(self, mesh8: spmd.Mesh) -> None:
        policy = fsdp.MixedPrecisionPolicy(param_dtype=torch.bfloat16, output_dtype=torch.float32)
        plain, x = Plain(), torch.randn(16, 16)
        net = copy.deepcopy(plain)
        units = [*net.blocks, net.head]

        def is_unit(module: nn.Module, recurse: bool, _: int) -> bool:
            return recurse or module in units

        model = FSDP(net, mesh=mesh8, mp_policy=policy, auto_wrap_policy=is_unit)
        seen = []
        model.blocks[0].register_forward_hook(
            lambda module, args, output: seen.append(output.dtype)
        )
        y = model(x.to("xla"))
        y.square().mean().backward()
        assert seen == [y.dtype] == [torch.float32]
        assert spec(y) == ("fsdp", None)
        expected = x
        for layer in (*plain.blocks, plain.head):
            expected = ByHand(layer)(expected * (plain.scale if layer is plain.head else 1)).float()
        check(y.to(torch.bfloat16), expected.to(torch.bfloat16))

    def test_structures(self, mesh8: spmd.Mesh) -> None:
        @dataclasses.dataclass
        class Answer:
            first: Tensor
            rest: tuple[Tensor, int]

        class Answers(nn.Linear):
            def forward(self, x: Tensor) -> Any:
                y = super().forward(x)
                return {"answer": Answer(y, (y.argmax(-1), 3)), "more": [y]}

        policy = fsdp.MixedPrecisionPolicy(output_dtype=torch.bfloat16)
        answers = FSDP(Answers(8, 8), mesh=mesh8, mp_policy=policy)(torch.ones(8, 8, device="xla"))
        assert answers["answer"].first.dtype == answers["more"][0].dtype == torch.bfloat16
        assert answers["answer"].rest[0].dtype == torch.int64 and answers["answer"].rest[1] == 3
        assert spec(answers["answer"].first) == ("fsdp", None)


class TestBufferDtype:
    """buffer_dtype: floating-point buffers, for good."""

    def test_cast(self, mesh8: spmd.Mesh) -> None:
        net = nn.Sequential(nn.BatchNorm1d(8), nn.Linear(8, 8))
        model = FSDP(
            net, mesh=mesh8, mp_policy=fsdp.MixedPrecisionPolicy(buffer_dtype=torch.float64)
        )
        assert (
            model[0].running_mean.dtype == torch.float64
            and model[0].num_batches_tracked.dtype == torch.int64
        )
        assert model[0].weight.dtype == torch.float32 and spec(model[0].running_mean) == (None,)


class TestAutocast:
    """Under autocast, with and without a policy."""

    @pytest.mark.parametrize(
        "policy",
        [fsdp.MixedPrecisionPolicy(), fsdp.MixedPrecisionPolicy(output_dtype=torch.float32)],
    )
    def test_as_torch(self, policy: fsdp.MixedPrecisionPolicy, mesh8: spmd.Mesh) -> None:
        plain, x = Net(), torch.randn(16, 16)
        model = FSDP(copy.deepcopy(plain), mesh=mesh8, mp_policy=policy, auto_wrap_policy=POLICY)
        with torch.autocast("xla", dtype=torch.bfloat16):
            y = model(x.to("xla"))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            expected = plain(x)
        assert y.dtype == (policy.output_dtype or torch.bfloat16)
        check(y.to(torch.bfloat16), expected.to(torch.bfloat16))
        y.float().square().mean().backward()
        expected.float().square().mean().backward()
        for one, other in zip(model.parameters(), plain.parameters(), strict=True):
            assert one.grad.dtype == torch.float32
            check(one.grad.to(torch.bfloat16), other.grad.to(torch.bfloat16))


class TestTensorParallel:
    """Parameters marked over another axis stay sharded over it, in both dtypes."""

    @pytest.mark.parametrize("policy", [fsdp.MixedPrecisionPolicy(), BF16])
    def test_two_axes(self, policy: fsdp.MixedPrecisionPolicy, partitioner: str) -> None:
        mesh = spmd.Mesh(range(8), (4, 2), ("fsdp", "tensor"))
        plain, x = Plain(), torch.randn(16, 16)
        net = copy.deepcopy(plain).to("xla")
        for block in net.blocks:
            spmd.mark_sharding(block.up.weight, mesh, ("tensor", None))
            spmd.mark_sharding(block.down.weight, mesh, (None, "tensor"))
        model = FSDP(net, mesh=mesh, auto_wrap_policy=POLICY, mp_policy=policy)
        assert spec(model.blocks[0].up.weight) == ("tensor", "fsdp")
        assert spec(model.blocks[0].down.weight) == ("fsdp", "tensor")
        y, expected = model(x.to("xla")), (ByHand(plain) if policy is BF16 else plain)(x)
        y.float().square().mean().backward()
        expected.float().square().mean().backward()
        check(y, expected)
        for (name, ours), theirs in zip(model.named_parameters(), plain.parameters(), strict=True):
            dtype = torch.bfloat16 if policy is BF16 else torch.float32
            check(ours.grad.to(dtype), theirs.grad.to(dtype))
            assert spec(ours.grad) == spec(ours), name


class TestPolicy:
    """The arguments of a policy."""

    def test_inputs_are_left_on_request(self, mesh8: spmd.Mesh) -> None:
        policy = fsdp.MixedPrecisionPolicy(param_dtype=torch.bfloat16, cast_forward_inputs=False)
        model = FSDP(nn.Linear(8, 8), mesh=mesh8, mp_policy=policy)
        with pytest.raises(RuntimeError, match="dtype"):
            model(torch.ones(8, 8, device="xla"))
        assert model(torch.ones(8, 8, device="xla", dtype=torch.bfloat16)).dtype == torch.bfloat16

    def test_refused(self, mesh8: spmd.Mesh) -> None:
        with pytest.raises(
            TypeError,
            match=r"expected param_dtype to be a floating-point torch.dtype, got torch.int8",
        ):
            fsdp.MixedPrecisionPolicy(param_dtype=torch.int8)
        for name in ("param_dtype", "reduce_dtype", "output_dtype", "buffer_dtype"):
            with pytest.raises(
                TypeError,
                match=rf"expected {name} of 16 bits or more, got torch.float8_e4m3fn: a cast",
            ):
                fsdp.MixedPrecisionPolicy(**{name: torch.float8_e4m3fn})
        with pytest.raises(TypeError, match=r"got torch.float8_e5m2: a cast to it has no scale"):
            FSDP(
                nn.Linear(8, 8),
                mesh=mesh8,
                mixed_precision=MixedPrecision(param_dtype=torch.float8_e5m2),
            )
        with pytest.raises(
            TypeError, match=r"expected mp_policy to be a fsdp.MixedPrecisionPolicy, got dtype"
        ):
            FSDP(nn.Linear(8, 8), mesh=mesh8, mp_policy=torch.bfloat16)


def casts() -> list[jax.Array]:
    gc.collect()
    return [array for array in jax.live_arrays() if array.dtype == "bfloat16"]


class TestNothingIsLeft:
    """After a step no cast of a parameter is alive, though the loss is held; a second backward
    casts again."""

    @pytest.mark.parametrize("make", [Plain, Checkpointed, CheckpointedInside])
    def test_after_a_step(self, mesh8: spmd.Mesh, make: Callable[[], nn.Module]) -> None:
        model = FSDP(make(), mesh8, auto_wrap_policy=POLICY, mp_policy=BF16)
        x = torch.randn(8, 16).to("xla")
        before = casts()
        loss = model(x).square().mean()
        loss.backward()
        spmd.sync(wait=True)
        left = [array for array in casts() if all(array is not other for other in before)]
        assert [array.shape for array in left] == [()]  # the loss

    @pytest.mark.parametrize("make", [Plain, Checkpointed, CheckpointedInside])
    def test_backward_twice(self, mesh8: spmd.Mesh, make: Callable[[], nn.Module]) -> None:
        model = FSDP(make(), mesh8, auto_wrap_policy=POLICY, mp_policy=BF16)
        loss = model(torch.randn(8, 16).to("xla")).square().mean()
        loss.backward(retain_graph=True)
        once = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
        loss.backward()
        for name, parameter in model.named_parameters():
            check(parameter.grad, 2 * once[name].cpu())
            assert parameter.dtype == torch.float32
