"""`ShardingRules.of`: the plans that a model has itself, by transformers' meaning of each entry."""

import re
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from support import check
from torch import nn

import fsdp
import spmd
from spmd import Mesh, P, ShardingRules


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_up = nn.Parameter(torch.randn(4, 32, 8))
        self.down = nn.Parameter(torch.randn(4, 8, 16))
        self.down_bias = nn.Parameter(torch.randn(4, 8))


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(8, 16), nn.Linear(16, 8), nn.LayerNorm(8)
        self.experts = Experts()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = torch.einsum("bsh,eoh->bseo", self.norm(x), self.experts.gate_up).chunk(2, -1)
        mixed = torch.einsum(
            "bsei,ehi->bsh", gate.sigmoid() * up, self.experts.down
        ) + self.experts.down_bias.sum(0)
        return x + 0.1 * mixed + self.down(self.up(x).relu())


class Model(nn.Module):
    """A decoder with plans as transformers' have: `*` is a layer's number."""

    _tp_plan: ClassVar[dict[str, str]] = {
        "embed": "embedding_rowwise",
        "layers.*.up": "colwise",
        "layers.*.down": "rowwise",
        "layers.*.experts": "moe_tp_experts",
        "layers.*.experts.gate_up": "packed_colwise",
        "layers.*.experts.down": "rowwise",
        "head": "colwise_gather_output",
    }
    _ep_plan: ClassVar[dict[str, str]] = {
        "layers.*.experts": "ep_dispatch_experts",
        "layers.*.experts.gate_up": "grouped_gemm",
        "layers.*.experts.down": "grouped_gemm",
    }
    _fsdp_plan: ClassVar[dict[str, str]] = {
        "embed": "free_full_weight",
        "layers.*": "free_full_weight",
        "norm": "keep_full_weight",
        "head": "keep_full_weight",
    }

    def __init__(self, *, tied: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 8)
        self.layers = nn.ModuleList([Layer(), Layer()])
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 16, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


@pytest.fixture(scope="module")
def mesh() -> Mesh:
    return Mesh(range(8), (4, 2), ("fsdp", "tensor"))


def with_plans(**plans: Any) -> nn.Module:
    """A model with other plans than its class's: what an instance holds counts first, as in
    transformers."""
    model = Model()
    for kind, plan in plans.items():
        setattr(model, f"_{kind}", plan)
    return model


class TestEntries:
    """Each style becomes the sharding of its parameters, for all layers in one rule."""

    def test_the_three_plans(self) -> None:
        rules = ShardingRules.of(Model())
        assert dict(rules.items()) == {
            "embed.weight": P("tensor", None),
            "layers.*.up.weight": P("tensor", None),
            "layers.*.up.bias": P("tensor"),
            "layers.*.down.weight": P(None, "tensor"),
            "layers.*.experts.gate_up": P(None, "tensor", None),
            "layers.*.experts.down": P(None, None, "tensor"),
            "head.weight": P("tensor", None),
        }
        assert rules.units is not None and rules.units.modules == ("embed", "layers.*")

    def test_experts_over_an_axis_of_their_own(self) -> None:
        rules = ShardingRules.of(Model(), expert=("fsdp", "tensor"))
        assert (
            rules["layers.*.experts.gate_up"]
            == P(("fsdp", "tensor"), None, None)
            == rules["layers.*.experts.down"]
        )
        assert rules["layers.*.up.bias"] == P("tensor")
        only = ShardingRules.of(Model(), fsdp=None, tensor=None, expert="expert")
        assert (
            list(only) == ["layers.*.experts.gate_up", "layers.*.experts.down"]
            and only.units is None
        )

    @pytest.mark.parametrize(
        ("style", "weight", "bias"),
        [
            ("colwise_rep", P("tensor", None), P("tensor")),
            ("packed_colwise", P("tensor", None), P("tensor")),
            ("rowwise_split_input", P(None, "tensor"), None),
            ("rowwise_rep", P(None, "tensor"), None),
            ("packed_rowwise", P(None, "tensor"), None),
            ("embedding_colwise", P(None, "tensor"), None),
            ("replicate", None, None),
            ("local_params", None, None),
            ("all_reduce", None, None),
        ],
    )
    def test_styles(self, style: str, weight: P | None, bias: P | None) -> None:
        name = "embed" if style.startswith("embedding") else "layers.*.up"
        rules = ShardingRules.of(with_plans(tp_plan={name: style}))
        assert rules.spec_of(name.replace("*", "0") + ".weight") == weight
        assert rules.spec_of("layers.1.up.bias") == bias

    def test_sequences(self) -> None:
        rules = ShardingRules.of(with_plans(tp_plan={"layers.*.norm": "sequence_parallel"}))
        spec = P(P.UNCONSTRAINED, "tensor", P.UNCONSTRAINED)
        assert dict(rules.items()) == {"layers.*.norm:input[0]": spec, "layers.*.norm:output": spec}

    def test_layers_that_differ_have_a_rule_each(self) -> None:
        model = with_plans(tp_plan={"layers.*.up": "colwise"})
        model.layers.insert(0, nn.ModuleDict({"up": nn.Embedding(4, 4)}))  # type: ignore[operator]
        model.layers[0]["up"].weight = nn.Parameter(torch.zeros(2, 4, 4))  # type: ignore[index]
        specs = {"layers.0.up.weight": P(None, "tensor", None)}
        for one in (1, 2):
            specs |= {f"layers.{one}.up.weight": P("tensor", None)}
        assert dict(ShardingRules.of(model).items()) == specs | {"layers.*.up.bias": P("tensor")}

    def test_a_tied_table_has_one_rule_and_belongs_to_the_root(self) -> None:
        rules = ShardingRules.of(Model(tied=True))
        assert "head.weight" not in list(rules) and rules["embed.weight"] == P("tensor", None)
        assert rules.units is not None and rules.units.modules == ("layers.*",)

    def test_of_a_tied_tables_entries_the_first_counts(self) -> None:
        model = Model(tied=True)
        model._tp_plan = {"embed": "replicate", "head": "colwise"}  # type: ignore[misc]
        assert list(ShardingRules.of(model)) == []

    def test_a_part_that_has_plans(self) -> None:
        whole = nn.ModuleDict({"language": Model(), "vision": nn.Linear(2, 2)})
        rules = ShardingRules.of(whole, fsdp="data", tensor="model")
        assert rules["language.layers.*.up.weight"] == P("model", None)
        assert rules.units is not None and rules.units.modules == (
            "language.embed",
            "language.layers.*",
        )
        assert rules.units.shard_axis == "data"
        whole._tp_plan = {}  # type: ignore[assignment]
        assert list(ShardingRules.of(whole)) == []  # an empty plan is one, and hides those below


class TestConfig:
    """Plans of a configuration override entries of the model's own; what a table cannot do is
    said."""

    def test_overrides(self) -> None:
        told = {"tp_plan": {"head": "rowwise"}, "fsdp_plan": {"embed": "keep_full_weight"}}
        rules = ShardingRules.of(Model(), told)
        assert rules["head.weight"] == P(None, "tensor") and rules["layers.*.up.bias"] == P(
            "tensor"
        )
        assert rules.units is not None and rules.units.modules == ("layers.*",)
        model = Model()
        model.config = SimpleNamespace(distributed_config=SimpleNamespace(**told))
        assert ShardingRules.of(model) == rules
        # an empty plan applies none, as there
        assert list(ShardingRules.of(Model(), {"tp_plan": {}})) == []
        assert ShardingRules.of(Model(), {"tp_plan": "auto"}) == ShardingRules.of(Model())

    @pytest.mark.parametrize(
        ("told", "text"),
        [
            (
                {"tp_plan": {"heed": "colwise"}},
                "'heed' in the configuration's tp_plan matches nothing in Model; did",
            ),
            (
                {"tp_plan": {"head": "colwize"}},
                "the style 'colwize' for 'head', expected one of colwise, ",
            ),
            (
                {"fsdp_plan": {"head": "keep"}},
                "the fsdp_plan of Model has the style 'keep' for 'head', expected",
            ),
            (
                {"fsdp_plan": {"layers.*.up": "keep_full_weight"}},
                "of 'layers.0.up', in 'layers.0', which frees",
            ),
            (
                {"ep_size": 4},
                "ep_size of the configuration requests expert parallelism; name the mesh axis",
            ),
            (
                {"tp_plann": {}},
                (
                    "the configuration has 'tp_plann', expected tp_plan, ep_plan, fsdp_plan or a "
                    "field of"
                ),
            ),
            ({"pp_size": 2}, "pp_size of the configuration requests pipeline stages"),
        ],
    )
    def test_errors(self, told: Any, text: str) -> None:
        with pytest.raises(ValueError, match=re.escape(text)):
            ShardingRules.of(Model(), told)

    def test_another_type(self, mesh: Mesh) -> None:
        with pytest.raises(TypeError, match="or a dict, got Mesh; a mesh is passed to `apply`"):
            ShardingRules.of(Model(), mesh)

    def test_what_apply_takes_is_said(self) -> None:
        with pytest.warns(
            UserWarning,
            match="fsdp_cpu_offload of the configuration is no part of a table; hand offl",
        ):
            ShardingRules.of(Model(), {"fsdp_cpu_offload": True})
        with pytest.warns(UserWarning, match="hand mp_policy=... to `apply`") as caught:
            ShardingRules.of(Model(), {"fsdp_mixed_precision": True})
        assert caught[0].filename == __file__


class TestModels:
    """A model without a plan is refused, entries that match nothing are listed."""

    def test_refused(self) -> None:
        with pytest.raises(TypeError, match=r"expected a torch\.nn\.Module, got str"):
            ShardingRules.of("llama")  # type: ignore[arg-type]
        with pytest.raises(
            ValueError, match="got Linear, in which there is none; write the rules as a table"
        ):
            ShardingRules.of(nn.Linear(2, 2))
        with pytest.raises(
            ValueError, match=r"Model has no _ep_plan for expert='tensor'; leave expert out"
        ):
            ShardingRules.of(with_plans(ep_plan={}), expert="tensor")

    def test_nothing_matches(self) -> None:
        plans = {"tp_plan": {"h.*.q": "colwise"}, "fsdp_plan": {"h.*": "free_full_weight"}}
        with pytest.raises(
            ValueError,
            match=re.escape("match nothing: _tp_plan: h.*.q; _fsdp_plan: h.*; write the"),
        ):
            ShardingRules.of(with_plans(**plans))

    def test_an_idle_entry_is_listed(self) -> None:
        with pytest.warns(
            UserWarning, match=re.escape("of(Model): these entries match nothing")
        ) as caught:
            ShardingRules.of(
                with_plans(tp_plan={"layers.*.up": "colwise", "layers.*.gate": "colwise"})
            )
        assert (
            "_tp_plan: layers.*.gate" in str(caught[0].message) and caught[0].filename == __file__
        )

    def test_so_is_one_of_a_module_that_was_replaced(self) -> None:
        model = Model()
        for layer in model.layers:
            layer.up = nn.Sequential(layer.up)  # type: ignore[assignment, arg-type]
        with pytest.warns(
            UserWarning, match=re.escape("match nothing in the model: _tp_plan: layers.*.up")
        ):
            assert ShardingRules.of(model).spec_of("layers.0.up.0.weight") is None


class TestRun:
    """The table is one like any other: it is kept in a file, and a model sharded by it computes the
    same."""

    @pytest.mark.parametrize("expert", [None, "tensor"])
    def test_values_and_gradients(self, expert: str | None, mesh: Mesh, tmp_path: Any) -> None:
        model, plain = Model(), Model()
        plain.load_state_dict(model.state_dict())
        rules = ShardingRules.of(model, expert=expert)
        rules.save(tmp_path / "rules.toml")
        assert ShardingRules.load(tmp_path / "rules.toml") == rules
        rules.apply(model, mesh)
        tokens = torch.randint(16, (4, 6))
        loss = model.to("xla")(tokens.to("xla")).square().mean()
        expected = plain(tokens).square().mean()
        loss.backward()
        expected.backward()
        check(loss, expected)
        for one, other in zip(model.parameters(), plain.parameters(), strict=True):
            check(one.grad, other.grad)  # type: ignore[arg-type]
        gate_up = spmd.get_sharding(model.layers[0].experts.gate_up)  # type: ignore[union-attr, arg-type]
        assert gate_up is not None
        assert gate_up.partition_spec(3) == (
            (None, "tensor", "fsdp") if expert is None else ("tensor", "fsdp", None)
        )
        assert "kept after forward" in str(fsdp.show(model))
