"""Weights that are narrow on the wire: gathers in eight bits (`gather_dtype`), and packed buffers
that are gathered as they are stored."""

import copy
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from support import check
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint
from wrapped import FSDP, POLICY, Net, last_record, spec

import fsdp
import spmd
from spmd import P, config

FLOAT8 = fsdp.MixedPrecisionPolicy(param_dtype=torch.bfloat16, gather_dtype=torch.float8_e4m3fn)


@pytest.fixture(params=["gspmd", "shardy"])
def partitioner(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(config, "partitioner", request.param)
    return request.param


def rounded(weight: Tensor, dim: int, policy: fsdp.MixedPrecisionPolicy) -> Tensor:
    """The weight as the rule of `gather_dtype` rounds it: a power of two scales each index of the
    dim that is gathered."""
    cast = weight.to(policy.param_dtype or weight.dtype)
    values, dtype = cast.float(), policy.gather_dtype
    others = [other for other in range(weight.dim()) if other != dim]
    largest = values.abs().amax(others, keepdim=True) / torch.finfo(dtype).max
    scale = torch.exp2(torch.frexp(largest).exponent.clamp(min=-126).float())
    return ((values / scale).to(dtype).float() * scale).to(cast.dtype)


def by_hand(
    module: nn.Module, x: Tensor, dims: dict[str, int], policy: fsdp.MixedPrecisionPolicy
) -> Tensor:
    """The output of a module by torch alone, its gradients passed straight through the rounding."""
    casts = {}
    for name, parameter in module.named_parameters():
        cast = parameter.to(policy.param_dtype or parameter.dtype)
        dim = dims.get(name)
        value = cast if dim is None else rounded(parameter.detach(), dim, policy)
        casts[name] = value.detach() + (cast - cast.detach())
    x = x.to(policy.param_dtype or x.dtype)
    return functional_call(module, casts, (x,))


def matrices(model: nn.Module) -> dict[str, int]:
    """The dim over which each matrix of a wrapped model is sharded by FSDP, by its name."""
    return {
        name: spec(parameter).index("fsdp")
        for name, parameter in model.named_parameters()
        if parameter.dim() > 1
    }


def gathered(record: spmd.metrics.CompileRecord) -> Counter[tuple[str, int]]:
    """The number of gathers by dtype and bytes."""
    rows = Counter[tuple[str, int]]()
    for row in record.traffic:
        if row.kind == "all-gather":
            rows[row.dtype, row.bytes] += row.count
    return rows


class Plain(Net):
    """The buffer is cast, as the model computes in bfloat16."""

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x * self.scale.to(x.dtype))


class TestGatherDtype:
    """`gather_dtype=` of a policy: values and gradients are those of torch with the same rule."""

    @pytest.mark.parametrize(
        "how",
        [
            {},
            {"auto_wrap_policy": POLICY},
            {"auto_wrap_policy": POLICY, "reshard_after_forward": 2},
            {"auto_wrap_policy": POLICY, "reshard_after_forward": False},
        ],
    )
    def test_values_and_gradients(
        self, how: dict[str, Any], partitioner: str, mesh8: spmd.Mesh
    ) -> None:
        self.same(Plain(), torch.randn(16, 16), mesh8, FLOAT8, **how)

    @pytest.mark.parametrize(
        "policy",
        [
            fsdp.MixedPrecisionPolicy(gather_dtype=torch.float8_e4m3fn),
            fsdp.MixedPrecisionPolicy(
                param_dtype=torch.bfloat16,
                reduce_dtype=torch.float32,
                gather_dtype=torch.float8_e5m2,
            ),
        ],
    )
    def test_other_dtypes(self, policy: fsdp.MixedPrecisionPolicy, mesh8: spmd.Mesh) -> None:
        self.same(Plain(), torch.randn(16, 16), mesh8, policy, auto_wrap_policy=POLICY)

    def test_an_uneven_dim_and_extreme_rows(self, partitioner: str, mesh8: spmd.Mesh) -> None:
        """Rows of zeros, of the smallest and of the largest numbers; a dim that is padded."""
        plain = nn.Linear(12, 21, bias=False)
        with torch.no_grad():
            plain.weight[0] = 0
            plain.weight[1] *= 2.0**-120
            plain.weight[2] *= 2.0**120
            plain.weight[3, 1:] = 0
        self.same(plain, torch.randn(8, 12), mesh8, FLOAT8)

    def test_over_tensor_parallel(self, partitioner: str) -> None:
        """Each shard over the other axis has scales of its own, and stays there."""
        mesh = spmd.Mesh(range(8), (4, 2), ("fsdp", "tensor"))
        plain, x = nn.Linear(16, 32, bias=False), torch.randn(8, 16)
        model = copy.deepcopy(plain).to("xla")
        spmd.mark_sharding(model.weight, mesh, P("fsdp", "tensor"))
        model = FSDP(model, mesh, mp_policy=FLOAT8)
        assert spec(model.weight) == ("fsdp", "tensor")
        y = model(x.to("xla"))
        y.sum().backward()
        halves = [rounded(half, 0, FLOAT8) for half in plain.weight.detach().chunk(2, 1)]
        expected = x.bfloat16() @ torch.cat(halves, 1).t()
        check(y, expected)
        check(model.weight.grad, x.bfloat16().sum(0).float().expand(32, 16))
        # half of the columns: 32 x 8 elements, of one byte
        assert ("u8", 256) in gathered(last_record())

    def same(
        self,
        plain: nn.Module,
        x: Tensor,
        mesh: spmd.Mesh,
        policy: fsdp.MixedPrecisionPolicy,
        **how: Any,
    ) -> None:
        model = FSDP(copy.deepcopy(plain), mesh=mesh, mp_policy=policy, **how)
        expected = by_hand(plain, x, matrices(model), policy)
        expected.float().square().mean().backward()
        y = model(x.to("xla"))
        y.float().square().mean().backward()
        dtype = policy.param_dtype or torch.float32
        check(y, expected)
        for (name, ours), theirs in zip(model.named_parameters(), plain.parameters(), strict=True):
            assert ours.dtype == ours.grad.dtype == torch.float32, name
            check(ours.grad.to(dtype), theirs.grad.to(dtype))
            assert spec(ours.grad) == spec(ours), name

    def test_gathers_are_of_one_byte(self, partitioner: str, mesh8: spmd.Mesh) -> None:
        """Forward and backward gather each matrix in eight bits, a unit's scales together, and no
        matrix is gathered again."""
        model = FSDP(Plain(), mesh8, auto_wrap_policy=POLICY, mp_policy=FLOAT8)
        model(torch.randn(16, 16).to("xla")).float().square().mean().backward()
        spmd.sync()
        rows = gathered(last_record())
        # up and down of two blocks, forward and backward, but for the last one's backward; the head
        assert rows["u8", 512] >= 6
        assert rows["u8", 128] == 1
        assert not any(dtype == "u8" and size > 512 for dtype, size in rows)
        # vectors, in bfloat16, which XLA's CPU compiler widens
        assert all(dtype == "u8" or size <= 16 * 5 * 4 for dtype, size in rows)

    def test_a_step_in_a_compiled_function(self, mesh8: spmd.Mesh) -> None:
        plain, x = Plain(), torch.randn(16, 16)
        losses = []
        for is_compiled in (False, True):
            model = FSDP(copy.deepcopy(plain), mesh8, auto_wrap_policy=POLICY, mp_policy=FLOAT8)
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

            def step(x: Tensor, model: Any = model, optimizer: Any = optimizer) -> Tensor:
                loss = model(x).float().square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                return loss

            run = spmd.compile(step) if is_compiled else step
            losses.append([run(x.to("xla")).item() for _ in range(4)])
        assert losses[0] == losses[1]
        assert losses[0][-1] < losses[0][0]

    def test_shown(self, mesh8: spmd.Mesh) -> None:
        model = fsdp.fully_shard(nn.Linear(16, 32), mesh=mesh8, mp_policy=FLOAT8)
        assert fsdp.show(model).units[0].gathered_bytes == 16 * 32 + 2 * 32

    def test_refused(self) -> None:
        with pytest.raises(TypeError, match=r"gather_dtype to be torch.float8_e4m3fn or .*int8"):
            fsdp.MixedPrecisionPolicy(gather_dtype=torch.int8)
        with pytest.raises(TypeError, match=r"gather_dtype=torch.float8_e4m3fn gathers weights"):
            fsdp.MixedPrecisionPolicy(param_dtype=torch.float8_e4m3fn)


# of NormalFloat, arXiv:2305.14314
NEGATIVE = (-1.0, -0.6962, -0.5251, -0.3949, -0.2844, -0.1848, -0.0911, 0.0)
POSITIVE = (0.0796, 0.1609, 0.2461, 0.3379, 0.4407, 0.5626, 0.7230, 1.0)
LEVELS = torch.tensor((*NEGATIVE, *POSITIVE))
BLOCK = 16


class Packed(nn.Module):
    """A frozen weight in blocks of eight or four bits, and an adapter that is trained."""

    def __init__(self, weight: Tensor, kind: str):
        super().__init__()
        self.kind = kind
        blocks = weight.unflatten(1, (-1, BLOCK))
        largest = blocks.abs().amax(-1, keepdim=True)
        if kind == "nf4":
            scale = largest
            codes = (blocks / scale)[..., None].sub(LEVELS).abs().argmin(-1).to(torch.uint8)
        else:
            scale = largest / (127 if kind == "int8" else 7)
            codes = (blocks / scale).round()
            codes = codes.to(torch.int8) if kind == "int8" else (codes + 8).to(torch.uint8)
        codes = codes.flatten(1)
        packed = codes if kind == "int8" else codes[:, ::2] | codes[:, 1::2] << 4
        self.register_buffer("packed", packed)
        self.register_buffer("scale", scale[..., 0])
        self.register_buffer("levels", LEVELS.clone())
        self.down = nn.Parameter(torch.randn(4, weight.shape[1]) * 0.1)
        self.up = nn.Parameter(torch.randn(weight.shape[0], 4) * 0.1)

    def weight(self, dtype: torch.dtype) -> Tensor:
        codes = self.packed
        if self.kind != "int8":
            codes = torch.stack([codes & 15, codes >> 4], -1).flatten(1)
        values = self.levels[codes.int()] if self.kind == "nf4" else codes.float()
        values = values - 8 if self.kind == "int4" else values
        return (values.unflatten(1, (-1, BLOCK)) * self.scale[..., None]).flatten(1).to(dtype)

    def forward(self, x: Tensor) -> Tensor:
        adapter = (x @ self.down.to(x.dtype).t()) @ self.up.to(x.dtype).t()
        return x + torch.tanh(x @ self.weight(x.dtype).t() + adapter)


class Recomputed(Packed):
    """Recomputed in backward: the widened weight is not kept."""

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(super().forward, x, use_reentrant=False)


WIDTH, LAYERS = 64, 3
KINDS = ("int8", "int4", "nf4")


def build(kind: str, layer: type[Packed] = Packed) -> nn.Module:
    return nn.Sequential(*(layer(torch.randn(WIDTH, WIDTH) * 0.1, kind) for _ in range(LAYERS)))


def sharded(plain: nn.Module, mesh: spmd.Mesh, **how: Any) -> nn.Module:
    model = FSDP(copy.deepcopy(plain), mesh, auto_wrap_policy={Packed, Recomputed}, **how)
    for layer in model.modules():
        if isinstance(layer, Packed):
            for buffer in (layer.packed, layer.scale):
                spmd.mark_sharding(buffer, mesh, P("fsdp", None))
    return model


class TestPackedBuffers:
    """Buffers that are sharded over the axis of their unit: gathered packed with its parameters."""

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("layer", [Packed, Recomputed])
    def test_gradients_and_bytes(
        self, kind: str, layer: type[Packed], partitioner: str, mesh8: spmd.Mesh
    ) -> None:
        plain, x = build(kind, layer), torch.randn(16, WIDTH)
        model = sharded(plain, mesh8)
        y = model(x.to("xla"))
        y.square().mean().backward()
        expected = plain(x)
        expected.square().mean().backward()
        check(y, expected)
        for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
            check(ours.grad, theirs.grad)
        rows = gathered(last_record())
        dtype, size = ("s8", WIDTH * WIDTH) if kind == "int8" else ("u8", WIDTH * WIDTH // 2)
        # a recomputed layer is gathered again, but for the last one
        assert rows[dtype, size] == (LAYERS if layer is Packed else 2 * LAYERS - 1)
        # the others are of scales and adapters, together
        assert not any(nbytes > 3 * WIDTH * 4 * 4 for name, nbytes in rows if name != dtype)

    @pytest.mark.parametrize("kind", KINDS)
    def test_state_dicts_and_checkpoints(self, kind: str, mesh8: spmd.Mesh, tmp_path: Path) -> None:
        plain, x = build(kind), torch.randn(16, WIDTH)
        model = sharded(plain, mesh8)
        state = {name: value.cpu() for name, value in model.state_dict().items()}
        for name, value in plain.state_dict().items():
            assert torch.equal(state[name], value), name
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        assert len(optimizer.param_groups[0]["params"]) == 2 * LAYERS  # adapters alone
        model(x.to("xla")).square().mean().backward()
        optimizer.step()
        fsdp.save_checkpoint(model, tmp_path)
        other = sharded(build(kind), mesh8)
        assert fsdp.load_checkpoint(other, tmp_path) == ([], [])
        assert torch.equal(other(x.to("xla")).cpu(), model(x.to("xla")).cpu())
        for assign in (False, True):
            third = sharded(build(kind), mesh8)
            third.load_state_dict(model.state_dict(), assign=assign)
            assert spec(third[0].packed) == ("fsdp", None)
            assert torch.equal(third(x.to("xla")).cpu(), model(x.to("xla")).cpu())

    def test_an_adapter_is_merged(self, mesh8: spmd.Mesh) -> None:
        """The weight that a merge adds the adapter to is the widened one."""
        plain = build("int4")
        model = sharded(plain, mesh8)
        for ours, theirs in zip(model, plain, strict=True):
            merged = ours.weight(torch.float32) + ours.up @ ours.down
            check(merged, theirs.weight(torch.float32) + theirs.up @ theirs.down)

    def test_marked_before_they_are_wrapped(self, mesh8: spmd.Mesh) -> None:
        """A mark on the mesh stays, of a unit and below it; other buffers are replicated."""
        model = build("int4").to("xla")
        spmd.mark_sharding(model[0].packed, mesh8, P("fsdp", None))
        model = FSDP(model, mesh8, auto_wrap_policy={Packed})
        assert spec(model[0].packed) == ("fsdp", None)
        assert spmd.get_sharding(model[1].packed).is_replicated()
        bytes_of = [unit.gathered_bytes for unit in fsdp.show(model).units[1:]]
        assert bytes_of[0] == bytes_of[1] + WIDTH * WIDTH // 2

    @pytest.mark.parametrize(
        "policy", [FLOAT8, fsdp.MixedPrecisionPolicy(param_dtype=torch.bfloat16)]
    )
    def test_with_casts(self, policy: fsdp.MixedPrecisionPolicy, mesh8: spmd.Mesh) -> None:
        """Scales of packed weights are gathered as they are, and the last layer once."""
        plain, x = build("int8", Recomputed), torch.randn(16, WIDTH)
        model = sharded(plain, mesh8, mp_policy=policy)
        assert model[0].scale.dtype == torch.float32
        y = model(x.to("xla"))
        y.float().square().mean().backward()
        dims = matrices(model) if policy.gather_dtype else {}
        check(y, by_hand(plain, x, dims, policy))
        assert gathered(last_record())["s8", WIDTH * WIDTH] == 2 * LAYERS - 1
