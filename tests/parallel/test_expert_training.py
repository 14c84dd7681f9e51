"""Whole models with experts train over a mesh as on the CPU: clipped, accumulated, recomputed,
resumed, evaluated."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from support import TOLERANCE
from torch import Tensor, nn
from torch.nn import functional as F

import fsdp  # noqa: F401  carries out the units of the rules
import spmd
from spmd import P
from spmd.core.programs import cache

from . import moe
from .moe import EXCHANGES, Case, Doubles, Layout, Tensors, check_fused

pytestmark = pytest.mark.partitioned("training of experts")

EXPERTS, LAYERS, VOCABULARY = 8, 2, 64
TOKENS = torch.randint(VOCABULARY, (4, 8, 16), generator=torch.Generator().manual_seed(3))
COMMON: Mapping[str, Any] = {
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "num_hidden_layers": LAYERS,
    "num_experts_per_tok": 2,
    "vocab_size": VOCABULARY,
    "use_cache": False,
}
BOTH = {"fsdp": 2, "expert": 4}
OF_EXPERTS = {"**.experts.*": P("expert", None, None)}
OF_ATTENTION = {"**.{q,k,v}_proj.weight": P("tensor", None), "**.o_proj.weight": P(None, "tensor")}
BY_COLUMNS = {
    "**.gate_up_proj": P("expert", "tensor", None),
    "**.down_proj": P("expert", None, "tensor"),
}


class AllDoubles(Doubles):
    """Casts of any dtype to float32 are to float64."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function is Tensor.float:
            return args[0].double()
        return super().__torch_function__(function, types, args, kwargs)


@pytest.fixture(autouse=True)
def doubles() -> Iterator[None]:
    """Routers, norms and losses are computed in float64, too."""
    spmd.metrics.clear()
    with AllDoubles():
        yield
    cache.clear_cache()


def mixtral(**changes: Any) -> Any:
    config = transformers.MixtralConfig(
        intermediate_size=48, num_local_experts=EXPERTS, **{**COMMON, **changes}
    )
    return initialised(config)


def deepseek() -> Any:
    heads = {
        "q_lora_rank": 16,
        "kv_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 8,
    }
    groups = {"n_routed_experts": EXPERTS, "n_shared_experts": 1, "n_group": 2, "topk_group": 1}
    sizes = {"intermediate_size": 48, "moe_intermediate_size": 16, "first_k_dense_replace": 0}
    return initialised(transformers.DeepseekV3Config(**COMMON, **heads, **groups, **sizes))


def initialised(config: Any, seed: int = 0) -> Any:
    """A model in float64, whose experts differ by more than rounding."""
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config).double()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=0.3 if parameter.ndim == 3 else 0.1)
    return model


class Training:
    """A model with AdamW over a mesh, or on the CPU where there are no sizes. sizes: axis ->
    size."""

    def __init__(
        self,
        model: Any,
        sizes: Mapping[str, int] | None = None,
        *,
        specs: Mapping[str, P] = OF_EXPERTS,
        tokens: tuple[Any, ...] = (("fsdp", "expert"), None),
    ) -> None:
        self.model, self.spec = model, P(*tokens)
        self.device = "cpu" if sizes is None else "xla"
        model.config._experts_implementation = "eager" if sizes is None else "grouped_mm"
        if sizes is not None:
            model.to("xla")
            self.mesh = spmd.Mesh(
                range(torch.Size(sizes.values()).numel()), tuple(sizes.values()), tuple(sizes)
            )
            extra = "expert" if "expert" in sizes else None
            spmd.ShardingRules(specs, units=["model.layers.*"], extra_data_axis=extra).apply(
                model, self.mesh
            )
        self.optimizer = torch.optim.AdamW(
            [p for p in model.parameters() if p.requires_grad], lr=1e-2
        )

    def loss(self, index: int = 0) -> Tensor:
        ids = TOKENS[index].to(self.device)
        if self.device == "xla":
            ids = spmd.mark_sharding(ids, self.mesh, self.spec)
        loss: Tensor = self.model(input_ids=ids, labels=ids).loss
        return loss

    def update(self) -> Tensor:
        """A clipped step of the optimizer; the norm before."""
        self.trained = {
            name for name, parameter in self.model.named_parameters() if parameter.grad is not None
        }
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return norm

    def step(self, *indices: int) -> list[float]:
        """A step over micro-batches; the losses, and the norm of their mean's gradient."""
        losses = []
        for index in indices:
            losses.append(self.loss(index) / len(indices))
            losses[-1].backward()
        norm = self.update()
        spmd.sync()
        return [*(loss.item() for loss in losses), float(norm)]

    def steps(self, *indices: int) -> list[float]:
        return [number for index in indices for number in self.step(index)]

    @property
    def grads(self) -> Tensors:
        spmd.sync()
        return {
            name: whole(p.grad) for name, p in self.model.named_parameters() if p.grad is not None
        }

    @property
    def state(self) -> Tensors:
        return {name: whole(tensor) for name, tensor in self.model.state_dict().items()}

    def backward(self) -> Tensors:
        self.loss().backward()
        return self.grads


def whole(tensor: Any) -> Tensor:
    tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    result: Tensor = tensor.detach().cpu().clone()
    return result


def close(ours: Any, theirs: Any) -> None:
    """Asserts that numbers, or tensors by name, agree to the digits of float64."""
    rtol, atol = TOLERANCE[torch.float64]
    if isinstance(theirs, list):
        ours, theirs = (
            torch.tensor(ours, dtype=torch.float64),
            torch.tensor(theirs, dtype=torch.float64),
        )
    torch.testing.assert_close(ours, theirs, rtol=rtol, atol=atol)


def pair(make: Callable[[], Any] = mixtral, **how: Any) -> tuple[Training, Training]:
    """The same model over a mesh and on the CPU."""
    return Training(make(), **{"sizes": BOTH, **how}), Training(make())


class TestSteps:
    """Losses, norms before clipping, and all parameters after."""

    @pytest.mark.parametrize("exchange", EXCHANGES)
    def test_clipped(self, exchange: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(spmd.config, "parallel", exchange)
        ours, theirs = pair()
        close(ours.steps(0, 1, 2), theirs.steps(0, 1, 2))
        check_fused(exchange, layers=2 * LAYERS)
        close(ours.state, theirs.state)

    def test_accumulated(self) -> None:
        """Two micro-batches a step, in one program."""
        ours, theirs = pair()
        for indices in ((0, 1), (2, 3)):
            close(ours.step(*indices), theirs.step(*indices))
        check_fused("auto", layers=4 * LAYERS)
        close(ours.state, theirs.state)

    def test_recomputed(self) -> None:
        """Backward computes the layers a second time."""
        ours, theirs = pair()
        # Backward of a device runs in a thread of its own, which has no mode.
        how = {
            "use_reentrant": False,
            "context_fn": lambda: (contextlib.nullcontext(), AllDoubles()),
        }
        for training in (ours, theirs):
            training.model.activation_checkpointing_enable(how)
            training.model.train()
        close(ours.steps(0, 1), theirs.steps(0, 1))
        check_fused("auto", layers=2 * LAYERS)
        close(ours.state, theirs.state)

    def test_compiled(self) -> None:
        """`spmd.compile` of the step."""
        ours, theirs = pair()

        @spmd.compile
        def step(ids: Tensor) -> tuple[Tensor, Tensor]:
            loss = ours.model(input_ids=ids, labels=ids).loss
            loss.backward()
            return loss.detach(), ours.update()

        found = []
        for index in (0, 1, 2):
            ids = spmd.mark_sharding(TOKENS[index].to("xla"), ours.mesh, ours.spec)
            found += [number.item() for number in step(ids)]
        close(found, theirs.steps(0, 1, 2))
        check_fused("auto", layers=2 * LAYERS)
        close(ours.state, theirs.state)


class TestGradients:
    """Of all parameters, after one backward."""

    def test_reported_faults(self) -> None:
        """Others lost the router's gradient, scaled the experts' by their group's size, counted
        shards twice."""
        ours, theirs = pair()
        found, expected = ours.backward(), theirs.backward()
        check_fused("auto", layers=2 * LAYERS)
        for name in (name for name in expected if name.endswith("gate.weight")):
            assert found[name].abs().max() > 1e-4, name
        for name in (name for name in expected if ".experts." in name):
            ratio = (found[name].norm() / expected[name].norm()).item()
            assert ratio == pytest.approx(1, rel=1e-9), name
        norm = torch.stack([grad.norm() for grad in expected.values()]).norm().item()
        assert float(nn.utils.clip_grad_norm_(ours.model.parameters(), 0.5)) == pytest.approx(
            norm, rel=1e-9
        )
        close(found, expected)

    def test_auxiliary_loss(self) -> None:
        """Mixtral's loss of the router, which is a part of the loss."""
        ours, theirs = pair(lambda: mixtral(output_router_logits=True, router_aux_loss_coef=0.02))
        without = Training(mixtral()).backward()
        found, expected = ours.backward(), theirs.backward()
        check_fused("auto", layers=2 * LAYERS)
        routers = [name for name in expected if name.endswith("gate.weight")]
        assert len(routers) == LAYERS
        assert all((expected[name] - without[name]).abs().max() > 1e-5 for name in routers)
        close(found, expected)

    @pytest.mark.parametrize(
        ("pattern", "count"), [("gate.weight", 1), (".experts.", 2)], ids=["router", "experts"]
    )
    def test_frozen(self, pattern: str, count: int) -> None:
        """A frozen router, or frozen experts, have no gradient and stay; the others train."""

        def frozen() -> Any:
            model = mixtral()
            names = [
                name
                for name, p in model.named_parameters()
                if pattern in name and p.requires_grad_(False) is p
            ]
            assert len(names) == count * LAYERS
            return model

        ours, theirs = pair(frozen)
        close(ours.steps(0, 1), theirs.steps(0, 1))
        check_fused("auto", layers=2 * LAYERS)
        before = mixtral().state_dict()
        for name, tensor in ours.state.items():
            assert torch.equal(tensor, before[name]) is (pattern in name), name
        assert ours.trained == theirs.trained == {name for name in before if pattern not in name}

    def test_four_axes(self) -> None:
        """Experts, columns of experts and of attention, and a sharded sequence."""
        sizes = {"fsdp": 1, "expert": 2, "tensor": 2, "context": 2}
        specs = {**OF_ATTENTION, **BY_COLUMNS}
        ours, theirs = pair(sizes=sizes, specs=specs, tokens=(("fsdp", "expert"), "context"))
        found = ours.backward()
        check_fused("auto", layers=2 * LAYERS)
        close(found, theirs.backward())


class TestExpertsOverTwoAxes:
    """As in programs in which several meshes meet, whose axes have prime sizes."""

    @pytest.mark.parametrize("tokens", [None, "expert", "more"])
    def test_tokens_over_one(self, tokens: str | None) -> None:
        """Fourteen tokens are divided by one of the axes, and are the same over the other."""
        sizes = (("fsdp", 2), ("expert", 2), ("more", 2))
        over = Layout(sizes, (tokens,), (("**experts.*_proj", P(("expert", "more"), None, None)),))
        moe.as_on_one_device(Case(routing="skewed", batch=2, length=7), over)
        assert moe.of_pass("fuse experts") == ["2 layers of experts"]

    @pytest.mark.parametrize("exchange", EXCHANGES)
    def test_batch_and_sequence(self, exchange: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Each axis divides a dim of the tokens, in the other order than that of the experts."""
        monkeypatch.setattr(spmd.config, "parallel", exchange)
        sizes = (("fsdp", 2), ("expert", 2), ("more", 2))
        specs = (("**experts.*_proj", P(("expert", "more"), None, None)),)
        moe.as_on_one_device(
            Case(routing="skewed"), Layout(sizes, (("more", "fsdp"), "expert"), specs)
        )
        check_fused(exchange)


class Balancing:
    """Counts of choices per expert, and DeepSeek-V3's update of the biases of its routers from
    them."""

    def __init__(self, training: Training) -> None:
        self.training = training
        self.counts: list[Tensor] = []
        self.routers = [layer.mlp.gate for layer in training.model.model.layers]
        for router in self.routers:
            router.register_forward_hook(self.count)

    def count(self, router: Any, args: Any, results: Any) -> None:
        self.counts.append(F.one_hot(results[-1], EXPERTS).sum((0, 1)))

    def step(self, index: int) -> list[list[int]]:
        """The counts of a step, after which the biases are updated."""
        self.counts.clear()
        loss = self.training.loss(index)
        loss.backward()
        self.training.update()
        for router, count in zip(self.routers, self.counts, strict=True):
            count = count.double()
            router.e_score_correction_bias.add_((count.mean() - count).sign(), alpha=0.05)
        spmd.sync()
        return [count.tolist() for count in self.counts]


def test_bias_of_deepseek() -> None:
    """Counts of a batch are those of one device, and so are the choices after the biases'
    updates."""
    ours, theirs = pair(deepseek)
    balanced = [Balancing(ours), Balancing(theirs)]
    for index in (0, 1, 2):
        found, expected = (each.step(index) for each in balanced)
        assert found == expected and all(sum(row) == 2 * TOKENS[0].numel() for row in found)
    check_fused("auto", layers=2 * LAYERS)
    biases = [name for name in theirs.state if name.endswith("e_score_correction_bias")]
    assert len(biases) == LAYERS and all(theirs.state[name].abs().max() > 0.04 for name in biases)
    close(ours.state, theirs.state)


class TestState:
    """Reads of a trained model, and trainings that go on elsewhere."""

    def test_evaluation_and_generation(self) -> None:
        """After a step: a loss without gradients, and what a greedy search adds to two prompts.

        Then a further step.
        """
        trainings = pair()
        found = []
        for training in trainings:
            numbers = training.step(0)
            training.model.eval()
            with torch.no_grad():
                numbers.append(training.loss(1).item())
                prompts = TOKENS[2][:2, :6].to(training.device)
                how = {
                    "attention_mask": torch.ones_like(prompts),
                    "pad_token_id": 0,
                    "do_sample": False,
                }
                words = training.model.generate(prompts, max_new_tokens=3, **how).tolist()
            training.model.train()
            found.append((numbers + training.step(2), words))
        close(found[0][0], found[1][0])
        assert found[0][1] == found[1][1] and len(found[0][1][0]) == 9

    @pytest.mark.long
    @pytest.mark.parametrize(
        "sizes", [{"fsdp": 1, "expert": 8}, {"fsdp": 8}], ids=["experts", "fsdp"]
    )
    def test_resumed_on_another_mesh(self, sizes: dict[str, int], tmp_path: Path) -> None:
        """Saved with four devices of experts; on eight, and on none."""
        first, theirs = pair()
        close(first.steps(0, 1), theirs.steps(0, 1))
        manager = spmd.CheckpointManager(tmp_path)
        manager.save(2, {"model": first.model, "optimizer": first.optimizer}, force=True)
        how = {} if "expert" in sizes else {"specs": {}, "tokens": ("fsdp", None)}
        model = mixtral()
        nn.init.zeros_(model.lm_head.weight)
        resumed = Training(model, sizes, **how)
        assert manager.restore({"model": resumed.model, "optimizer": resumed.optimizer}) == 2
        close(resumed.state, theirs.state)
        close(resumed.steps(2, 3), theirs.steps(2, 3))
        check_fused("auto" if "expert" in sizes else None, layers=2 * LAYERS)
        close(resumed.state, theirs.state)
