"""spmd.remat and its policies: what is kept is kept, the rest is computed again; values and
gradients stay the same."""

import copy
import functools
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from support import check
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointImpl,
    apply_activation_checkpointing,
    checkpoint_wrapper,
)
from torch.utils.checkpoint import (
    CheckpointError,
    CheckpointPolicy,
    create_selective_checkpoint_contexts,
)

import fsdp
import spmd
from spmd import checkpoint_policies as policies
from spmd import config
from spmd.core.programs import cache


class Layer(nn.Module):
    """A block whose values have names; its result is a tensor, or in a tuple with what is no
    tensor."""

    def __init__(self, dim: int = 32, wide: int = 256) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(dim, wide), nn.Linear(wide, dim)

    def forward(self, x: Tensor, *, scale: float = 1.0) -> Tensor:
        hidden = spmd.checkpoint_name(self.up(x), "hidden")
        bent = nn.functional.dropout(nn.functional.gelu(hidden).tanh(), 0.1)
        return x + self.down(bent) * scale


LAYERS = 6


def train(
    wrap: Callable[[nn.Module], nn.Module], mesh: spmd.Mesh | None = None
) -> tuple[Any, list[Tensor]]:
    """The ledger's line of one forward and backward pass, and the output with all gradients."""
    torch.manual_seed(0)
    model = nn.Sequential(*(Layer() for _ in range(LAYERS)))
    x = torch.randn(16, 64, 32).to("xla").requires_grad_()
    if mesh is None:
        model = nn.Sequential(*map(wrap, model)).to("xla")
    else:
        spmd.mark_sharding(x, mesh, (mesh.axis_names, None, None))
        policy = partial(fsdp.transformer_auto_wrap_policy, transformer_layer_cls={Layer})
        data = "data" if "data" in mesh.axis_names else None
        wrapped = nn.Sequential(*map(wrap, model))
        model = fsdp.FullyShardedDataParallel(
            wrapped, mesh=mesh, auto_wrap_policy=policy, extra_data_axis=data
        )
    spmd.sync()
    torch.manual_seed(1)
    made = model(x)
    (made.square().sum() / 64).backward()  # gradients of order one, as the tolerances are meant for
    out = made.detach()
    del made
    spmd.sync()
    program = cache.last_program()
    assert program is not None
    return program.record, [
        out.cpu(),
        x.grad.cpu(),
        *(parameter.grad.cpu() for parameter in model.parameters()),
    ]


@functools.cache
def plain() -> tuple[Any, list[Tensor]]:
    return train(lambda layer: layer)


@functools.cache
def remat(policy: Any) -> tuple[Any, list[Tensor]]:
    return train(partial(spmd.remat, policy=policy))


OFFLOADED = policies.save_and_offload_only_these_names(names_which_can_be_offloaded=["hidden"])
PRODUCTS = ["aten.addmm", "aten.linear"]  # of the layers, by the rank of their input
CASES: dict[str, Any] = {
    "everything": "everything",
    "nothing": "nothing",
    "dots": "dots",
    "dots_with_no_batch_dims": policies.dots_with_no_batch_dims_saveable,
    "names": policies.save_only_these_names("hidden"),
    "all names": policies.save_any_names_but_these("other"),
    "no names": policies.save_any_names_but_these("hidden"),
    "both": policies.save_from_both_policies("dots", policies.save_only_these_names("hidden")),
    "offloaded names": OFFLOADED,
    "offloaded dots": policies.offload_dot_with_no_batch_dims,
    "ops": policies.save_and_offload_only_these_ops(ops_which_can_be_saved=PRODUCTS),
    "offloaded ops": policies.save_and_offload_only_these_ops(ops_which_can_be_offloaded=PRODUCTS),
}


@pytest.fixture(params=["gspmd", "shardy"])
def partitioner(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(config, "partitioner", request.param)
    return request.param


class TestPolicies:
    """Values, gradients and dropout are those without checkpointing; what is not kept is not in
    memory."""

    @pytest.mark.parametrize("name", CASES)
    def test_same_numbers(self, name: str) -> None:
        _, actual = remat(CASES[name])
        for one, other in zip(actual, plain()[1], strict=True):
            check(one, other)

    def test_memory(self) -> None:
        """One wide value of a layer is 1 MiB; plain training keeps several of each, names one,
        nothing none."""
        wide = 16 * 64 * 256 * 4
        bytes_of = {name: remat(CASES[name])[0].temp_bytes for name in CASES}
        before = plain()[0].temp_bytes
        assert bytes_of["everything"] == before
        assert before >= LAYERS * 2 * wide
        assert bytes_of["nothing"] <= before - (LAYERS - 2) * 2 * wide
        assert bytes_of["no names"] == bytes_of["nothing"]
        for name in ("names", "all names", "dots", "dots_with_no_batch_dims", "ops"):
            kept = bytes_of[name] - bytes_of["nothing"]
            assert (LAYERS - 2) * wide <= kept <= (LAYERS + 2) * wide, name

    def test_work(self) -> None:
        """Products are computed again where they are not kept: the first of each layer, as its
        result is used."""
        product = 2 * 16 * 64 * 32 * 256
        again = remat(CASES["nothing"])[0].flops - remat(CASES["dots"])[0].flops
        assert again >= LAYERS * product * 0.9

    @pytest.mark.parametrize("name", ["nothing", "dots", "names", "offloaded names"])
    def test_under_fsdp(self, name: str, partitioner: str, mesh8: spmd.Mesh) -> None:
        """Each unit is gathered for forward, and once more for recomputation and backward
        together."""
        before, expected = train(lambda layer: layer, mesh8)
        after, actual = train(partial(spmd.remat, policy=CASES[name]), mesh8)
        assert after.collectives["all-gather"] == before.collectives["all-gather"]
        assert after.temp_bytes < before.temp_bytes
        for one, other, reference in zip(actual, expected, plain()[1], strict=True):
            check(one, other)
            torch.testing.assert_close(one, reference, rtol=1e-4, atol=1e-4)

    def test_two_axes(self, mesh2x4: spmd.Mesh) -> None:
        _, actual = train(partial(spmd.remat, policy="dots"), mesh2x4)
        for one, other in zip(actual, plain()[1], strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)

    def test_attention_is_not_computed_twice(self) -> None:
        """A policy on the op of attention keeps what its backward pass reads, too."""
        attention = ["aten._scaled_dot_product_fused_attention_overrideable"]
        flops = []
        for policy in (
            "everything",
            policies.save_and_offload_only_these_ops(ops_which_can_be_saved=attention),
            "nothing",
        ):
            query = torch.randn(1, 2, 2048, 16).to("xla").requires_grad_()
            attend = partial(
                nn.functional.scaled_dot_product_attention, key=query.detach(), value=query.detach()
            )
            loss = spmd.remat(lambda x, attend=attend: attend(x.sin()).exp(), policy=policy)(
                query
            ).sum()
            loss.backward()
            spmd.sync()
            program = cache.last_program()
            assert program is not None
            flops.append(program.record.flops)
        assert flops[1] == pytest.approx(flops[0], rel=0.01) and flops[2] > 1.3 * flops[0]

    def test_wrong_ones(self) -> None:
        with pytest.raises(
            ValueError, match=r"remat: expected one of 'everything', 'nothing', 'dots'.*got 'dot'"
        ):
            spmd.remat(lambda x: x, policy="dot")
        with pytest.raises(TypeError, match="remat: expected a policy"):
            spmd.remat(lambda x: x, policy=3)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="remat: expected a function or a module, got Tensor"):
            spmd.remat(torch.ones(1))  # type: ignore[type-var]
        with pytest.raises(ValueError, match=r"\['a'\] are among both"):
            policies.save_and_offload_only_these_names(
                names_which_can_be_saved=["a"], names_which_can_be_offloaded=["a", "b"]
            )
        with pytest.raises(ValueError, match=r"\['aten.mm'\] are among both ops"):
            policies.save_and_offload_only_these_ops(
                ops_which_can_be_saved=["aten.mm"], ops_which_can_be_offloaded=["aten.mm"]
            )
        with pytest.raises(TypeError, match="expected several names"):
            policies.save_and_offload_only_these_names(names_which_can_be_saved="ab")
        with pytest.raises(TypeError, match="checkpoint_name: expected a name as text"):
            spmd.checkpoint_name(torch.ones(1), 3)  # type: ignore[arg-type]


def both(program: Callable[[str], list[Any]]) -> None:
    for actual, expected in zip(program("xla"), program("cpu"), strict=True):
        check(actual, expected)


def start(device: str) -> Tensor:
    return torch.linspace(-1, 1, 16).view(4, 4).to(device).requires_grad_()


POLICIES = [
    "nothing",
    "dots",
    policies.save_only_these_names("n"),
    policies.offload_dot_with_no_batch_dims,
]


@pytest.mark.parametrize("policy", POLICIES, ids=["nothing", "dots", "names", "offload"])
class TestForms:
    """Functions of all kinds, on this device and on the CPU."""

    def test_structures(self, policy: Any) -> None:
        """Several results, a dict, what is no tensor; keyword arguments, also in a tuple."""

        def function(x: Tensor, pair: Any, *, scale: float, flag: str) -> Any:
            y = spmd.checkpoint_name(x @ pair[0], "n").exp()
            return {"y": y * scale, "flag": flag, "both": (y.sin(), pair[1])}

        def program(device: str) -> list[Any]:
            x, w = start(device), start(device)
            made = spmd.remat(function, policy=policy)(x * 1, (w, 7), scale=0.5, flag="f")
            assert made["flag"] == "f" and made["both"][1] == 7
            (made["y"].sum() + made["both"][0].square().sum()).backward()
            return [made["y"], x.grad, w.grad]

        both(program)

    def test_nested(self, policy: Any) -> None:
        def inner(x: Tensor) -> Tensor:
            return (spmd.checkpoint_name(x @ x, "n") * 0.5).sin().exp()

        def outer(x: Tensor) -> Tensor:
            return spmd.remat(inner, policy=policy)(x).sin() @ x

        def program(device: str) -> list[Any]:
            x = start(device)
            spmd.remat(outer, policy=policy)(x * 1).square().sum().backward()
            return [x.grad]

        both(program)

    def test_what_is_kept_may_be_written(self, policy: Any) -> None:
        def function(x: Tensor) -> Tensor:
            y = spmd.checkpoint_name(x @ x, "n")
            z = y.sin()
            y.mul_(2)
            return z * y

        def program(device: str) -> list[Any]:
            x = start(device)
            spmd.remat(function, policy=policy)(x * 1).square().sum().backward()
            return [x.grad]

        both(program)

    def test_backward_twice(self, policy: Any) -> None:
        def program(device: str) -> list[Any]:
            x = start(device)
            made = spmd.remat(lambda x: spmd.checkpoint_name(x @ x, "n").sin(), policy=policy)(
                x * 1
            ).sum()
            made.backward(retain_graph=True)
            made.backward()
            return [x.grad]

        both(program)

    def test_a_barrier_between_the_passes(self, policy: Any) -> None:
        def program(device: str) -> list[Any]:
            x = start(device)
            made = spmd.remat(lambda x: spmd.checkpoint_name(x @ x, "n").sin(), policy=policy)(
                x * 1
            ).sum()
            spmd.sync()
            made.backward()
            return [x.grad]

        both(program)

    def test_autocast(self, policy: Any) -> None:
        made = []
        for wrap in (lambda layer: layer, partial(spmd.remat, policy=policy)):
            torch.manual_seed(0)
            layer, x = Layer().to("xla"), start("xla").view(-1)[:16].repeat(4, 2).requires_grad_()
            with torch.autocast("xla", torch.bfloat16):
                out = wrap(layer)(x)
            out.float().square().sum().backward()
            made.append(
                [out.detach().cpu(), *(parameter.grad.cpu() for parameter in layer.parameters())]
            )
        for one, other in zip(*made, strict=True):
            assert torch.equal(one, other)


class TestTorch:
    """torch's own ways in, unmodified."""

    @pytest.mark.parametrize("implementation", list(CheckpointImpl))
    def test_apply_activation_checkpointing(self, implementation: CheckpointImpl) -> None:
        def wrapped(layer: nn.Module) -> nn.Module:
            holder = nn.Sequential(layer)
            wrap = partial(checkpoint_wrapper, checkpoint_impl=implementation)
            apply_activation_checkpointing(
                holder, wrap, check_fn=lambda module: isinstance(module, Layer)
            )
            return holder

        record, actual = train(wrapped)
        assert record.temp_bytes <= 1.1 * remat("nothing")[0].temp_bytes
        for one, other in zip(actual, plain()[1], strict=True):
            check(one, other)

    def test_as_wrapper(self) -> None:
        model = nn.Sequential(nn.Linear(4, 4), Layer(4, 8))
        names, state = [name for name, _ in model.named_parameters()], set(model.state_dict())
        wrap = partial(spmd.remat, policy="dots")
        apply_activation_checkpointing(
            model, wrap, check_fn=lambda module: isinstance(module, Layer)
        )
        assert [
            name.replace("_checkpoint_wrapped_module.", "") for name, _ in model.named_parameters()
        ] == names
        assert set(model.state_dict()) == state
        copied = copy.deepcopy(model).to("xla")
        copied(torch.ones(2, 4, device="xla")).sum().backward()
        assert all(parameter.grad is not None for parameter in copied.parameters())

    def test_selective_policies_save_memory(self) -> None:
        """Products are saved and the rest is computed again, as torch's own policy says it."""
        products = {
            torch.ops.aten.linear.default,
            torch.ops.aten.addmm.default,
            torch.ops.aten.mm.default,
        }

        def policy(context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
            return (
                CheckpointPolicy.MUST_SAVE if op in products else CheckpointPolicy.PREFER_RECOMPUTE
            )

        contexts = partial(create_selective_checkpoint_contexts, policy)
        record, actual = train(lambda layer: checkpoint_wrapper(layer, context_fn=contexts))
        assert record.temp_bytes <= 1.1 * remat("dots")[0].temp_bytes
        for one, other in zip(actual, plain()[1], strict=True):
            check(one, other)

    def test_another_op_in_the_recomputation(self) -> None:
        iterations = []

        def function(x: Tensor) -> Tensor:
            iterations.append(1)
            return (x @ x if len(iterations) == 1 else torch.mv(x, x[0]).expand(4, 4)).sin()

        x = start("xla")
        made = spmd.remat(function, policy="dots")(x)
        with pytest.raises(
            CheckpointError,
            match=r"a recomputation called aten\.mv.* where the forward pass called",
        ):
            made.sum().backward()

    def test_without_early_stop(self) -> None:
        x = start("xla")
        with torch.utils.checkpoint.set_checkpoint_early_stop(False):
            made = spmd.remat(lambda x: (x @ x).sin() @ x, policy="dots")(x)
        made.sum().backward()
        y = start("cpu")
        ((y @ y).sin() @ y).sum().backward()
        check(x.grad, y.grad)

    @pytest.mark.filterwarnings("ignore:.*gradient_checkpointing_enable.*:FutureWarning")
    def test_hugging_face(self) -> None:
        transformers = pytest.importorskip(
            "transformers", reason="a model of Hugging Face's is what is tested"
        )
        sizes = {
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
        }
        made = []
        for is_on in (False, True):
            torch.manual_seed(0)
            llama = transformers.LlamaConfig(
                vocab_size=64, max_position_embeddings=32, use_cache=False, **sizes
            )
            model = transformers.LlamaForCausalLM(llama).to("xla").train()
            if is_on:
                model.gradient_checkpointing_enable()
            tokens = (torch.arange(32).view(2, 16) % 64).to("xla")
            model(input_ids=tokens, labels=tokens).loss.backward()
            made.append([parameter.grad.cpu() for parameter in model.parameters()])
        for one, other in zip(*made, strict=True):
            check(one, other)
