"""ShardingRules: an ordered table from paths to specs, kept out of the model."""

import copy
import pickle
import re
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
import torch
from support import check
from torch import nn

import fsdp
import spmd
from recipes.llama import Llama, LlamaConfig, cross_entropy
from spmd import Mesh, P, ShardingRules
from spmd.rules import applied
from spmd.rules.patterns import matches, site_of

MEGATRON = ShardingRules(
    {
        "blocks.*.attention.{query,key,value}.weight": P("tensor", None),
        "blocks.*.{gate,up}.weight": P("tensor", None),
        "blocks.*.{attention.out,down}.weight": P(None, "tensor"),
        "{embed,head}.weight": P("tensor", None),
        "blocks.*.norm?:output": P(("data", "fsdp"), None, None),
        "blocks.*.{attention.out,down}:output": P(("data", "fsdp"), "tensor", None),
        "blocks.*:output": P(("data", "fsdp"), "tensor", None),
        ":output": P(("data", "fsdp"), None, "tensor"),
    }
)


@pytest.fixture(scope="module")
def mesh() -> Mesh:
    return Mesh(range(8), (2, 2, 2), ("data", "fsdp", "tensor"))


def sharding_of(tensor: torch.Tensor) -> P:
    sharding = spmd.get_sharding(tensor)
    assert sharding is not None
    return P(*sharding.partition_spec(tensor.dim()))


def two_layers() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))


PAIR = ShardingRules(
    {"0.weight": P("tensor", None), "0.bias": P("tensor"), "2.weight": P(None, "tensor")}
)


class TestPatterns:
    """A glob stays within the parts of a name, unless it says otherwise; a regular expression
    matches a whole path."""

    @pytest.mark.parametrize(
        ("pattern", "path", "does"),
        [
            ("layers.*.weight", "layers.3.weight", True),
            ("layers.*.weight", "layers.3.norm.weight", False),
            ("layers.**.weight", "layers.3.norm.weight", True),
            ("layers.**.weight", "layers.weight", True),
            ("**.weight", "weight", True),
            ("**.weight", "a.b.weight", True),
            ("**.weight", "unweight", False),
            ("a.**", "a", True),
            ("a.**", "ab", False),
            ("**", "", True),
            ("*", "", False),
            ("", "", True),
            ("h.[0-3].w", "h.2.w", True),
            ("h.{8..11}.w", "h.10.w", True),
            ("h.{8..11}.w", "h.1.w", False),
            ("h.{0,2..3}.w", "h.2..3.w", True),
            ("h.[!0-3].w", "h.2.w", False),
            ("h.?.w", "h.12.w", False),
            ("*.{q,k}_proj", "0.k_proj", True),
            ("*.{q,{k,v}}_proj", "0.v_proj", True),
            ("a,b", "a,b", True),
            ("a.weight", "a_weight", False),
            (r"re:h\.\d+\.w", "h.12.w", True),
            (r"re:h\.\d", "h.12", False),
        ],
    )
    def test_matches(self, pattern: str, path: str, does: bool) -> None:
        assert matches(pattern, path) is does

    def test_a_misspelt_site(self) -> None:
        for pattern, meant in (("0:outptu", "0:output"), ("a.*:inputs[0]", "a.*:input[0]")):
            with pytest.raises(
                ValueError,
                match=re.escape(f"neither an input nor an output; did you mean {meant!r}"),
            ):
                spmd.ShardingRules({pattern: P(None)})
        assert list(spmd.ShardingRules({"a:b.weight": P(None)})) == ["a:b.weight"]

    def test_sites(self) -> None:
        site = site_of("layers.*:output[0][hidden]")
        assert site is not None and site == ("layers.*", "output", (0, "hidden"))
        assert str(site) == "layers.*:output[0][hidden]"
        assert site_of("layers.*.weight") is None and site_of("re:(?:a|b)") is None
        assert site_of(":input") == ("", "input", ())

    @pytest.mark.parametrize(
        ("pattern", "text"),
        [
            ("h.{3..2}", "the range {3..2} ends before it begins"),
            ("{a", "a { without its }"),
            ("a}", "a } without its {"),
            ("re:(", "unterminated subpattern"),
        ],
    )
    def test_unreadable(self, pattern: str, text: str) -> None:
        with pytest.raises(ValueError, match=re.escape(text)):
            ShardingRules({pattern: P()})


class TestTable:
    """The table is a value: the first rule that matches counts, editing makes another table."""

    def test_first_match_wins(self) -> None:
        rules = ShardingRules([("a.*", P("x")), (re.compile(r"a\.[bc]"), P("y")), ("**", P())])
        assert rules.match("a.b") == "a.*" and rules.spec_of("a.b") == P("x")
        assert rules.spec_of("b.c.d") == P()
        assert ShardingRules().match("a") is None and len(rules) == 3

    def test_put_and_without(self) -> None:
        rules = ShardingRules({"a": ("x",), "**": P()})
        assert list(rules.put("b", P("x"), before="**")) == ["a", "b", "**"]
        assert rules.put("a", P("y"))["a"] == P("y") and rules["a"] == P("x")
        assert list(rules.without("a")) == ["**"]
        with pytest.raises(KeyError, match="no rule has the pattern 'c'; there are a, "):
            rules.without("c")

    def test_editing_keeps_units_and_checkpoints(self) -> None:
        rules = ShardingRules({}, units=["h.*"], reshard_after_forward=4, checkpoint=["h.*"]).put(
            "a", P("x")
        )
        assert (
            rules.units is not None
            and rules.units.modules == ("h.*",)
            and rules.units.reshard_after_forward == 4
        )
        assert rules.checkpoint == {"h.*": "nothing"}

    def test_round_trips(self, tmp_path: Path) -> None:
        rules = ShardingRules(
            [
                ("a.*", P(("x", "y"), None)),
                (r're:b\."q"', P(0, (1, 2))),
                ("c", P()),
                ("d:output[0]", P(P.UNCONSTRAINED, "x")),
                ("é:input", P(())),  # type: ignore[arg-type]
            ],
            units=["h.*"],
            shard_axis="z",
            extra_data_axis="x",
            reshard_after_forward=False,
            checkpoint=["h.[02]"],
        )
        rules.save(tmp_path / "rules.toml")
        assert ShardingRules.load(tmp_path / "rules.toml") == rules
        assert pickle.loads(pickle.dumps(rules)) == rules == copy.deepcopy(rules)
        assert hash(pickle.loads(pickle.dumps(rules))) == hash(rules)
        plain = ShardingRules({"a": P("x", None)}, units=())
        assert eval(repr(plain)) == plain != ShardingRules({"a": P("x", None)})
        assert ShardingRules.from_toml(plain.to_toml()) == plain
        assert ShardingRules.from_toml("") == ShardingRules()
        saved = ShardingRules(checkpoint={"h.[02]": "dots", "h.*": "nothing"})
        assert (
            eval(repr(saved))
            == ShardingRules.from_toml(saved.to_toml())
            == saved.put("a", P()).without("a")
            == saved
        )
        assert saved != ShardingRules(checkpoint=["h.[02]", "h.*"]) and hash(
            pickle.loads(pickle.dumps(saved))
        )

    def test_prints_as_a_table(self) -> None:
        text = str(ShardingRules({"a": P("x"), "b.c": P()}, units=["h.*"], checkpoint=["h.*"]))
        assert text.splitlines()[:2] == ["a    P('x')", "b.c  P()"]
        assert "fsdp units: h.*, the root" in text and "checkpointed: h.*" in text
        assert (
            str(ShardingRules(checkpoint={"a": "dots", "b": "nothing"}))
            == "checkpointed: a (dots), b"
        )
        assert str(ShardingRules()) == "no rules"

    @pytest.mark.parametrize(
        ("made", "kind", "text"),
        [
            (lambda: ShardingRules([("a", P()), ("a", P("x"))]), ValueError, "'a' is repeated"),
            (lambda: ShardingRules(["ab"]), TypeError, r"expected \(pattern, spec\), got 'ab'"),
            (
                lambda: ShardingRules({3: P()}),
                TypeError,
                "expected a pattern as text or a compiled one, got 3",
            ),
            (lambda: ShardingRules({"a": "x"}), TypeError, "with one entry per dim, got 'x'"),
            (lambda: ShardingRules({"a": None}), TypeError, "with one entry per dim, got None"),
            (
                lambda: ShardingRules({re.compile("a", re.IGNORECASE): P()}),
                ValueError,
                "write the flags",
            ),
            (
                lambda: ShardingRules(units="h.*"),
                TypeError,
                "expected units to be patterns of module paths, got 'h",
            ),
            (
                lambda: ShardingRules(checkpoint="h"),
                TypeError,
                "expected checkpoint to be patterns",
            ),
            (
                lambda: ShardingRules(checkpoint={"h": "all"}),
                ValueError,
                r"checkpoint\['h'\] to be one of 'every.*'all'",
            ),
            (lambda: ShardingRules.from_toml("rules = 3 ="), ValueError, "expected TOML"),
            (
                lambda: ShardingRules.from_toml('rules = [["a", "x"]]'),
                ValueError,
                "expected a rule as",
            ),
            (
                lambda: ShardingRules.from_toml("x = " + "[" * 9999 + "]" * 9999),
                ValueError,
                "expected TOML: ",
            ),
            (
                lambda: ShardingRules.from_toml("fsdp = 3"),
                ValueError,
                r"as a list, .* \[fsdp\] as a table",
            ),
            (lambda: ShardingRules.from_toml("rules = 3"), ValueError, "expected rules as a list"),
            (
                lambda: ShardingRules({"a.{0..999999999999}": P()}),
                ValueError,
                "has more than 10,000 numbers",
            ),
            (lambda: ShardingRules({"re:" + "(" * 9999: P()}), ValueError, "cannot be read"),
            (
                lambda: ShardingRules({"re:a{99999999999999999999}": P()}),
                ValueError,
                "cannot be read",
            ),
            (lambda: ShardingRules.from_toml("ruels = []"), ValueError, "also got ruels"),
            (
                lambda: ShardingRules.from_toml("[fsdp]\nunit = []"),
                ValueError,
                r"\[fsdp\] has unit; expected units, ",
            ),
            (
                lambda: ShardingRules({"a": P("?")}).to_toml(),
                ValueError,
                "an axis called '\\?' cannot be written",
            ),
            (lambda: setattr(ShardingRules(), "units", 1), AttributeError, "immutable"),
        ],
    )
    def test_errors(self, made: Any, kind: type[Exception], text: str) -> None:
        with pytest.raises(kind, match=text):
            made()

    def test_a_bad_file_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "mine.toml").write_text("rules = [3]")
        with pytest.raises(ValueError, match=r"mine\.toml: .*expected a rule"):
            ShardingRules.load(tmp_path / "mine.toml")


class TestApply:
    """The same table lays a model out wherever it is, now or when it reaches the device."""

    @pytest.mark.parametrize("where", ["xla", "cpu", "meta"])
    def test_wherever_the_model_is(self, where: str, mesh: Mesh) -> None:
        model = two_layers().to(where)
        PAIR.apply(model, mesh)
        if where == "meta":
            model.to_empty(device="xla")
        elif where == "cpu":
            assert model[0].weight.device.type == "cpu"
            model.to("xla")
        assert sharding_of(model[0].weight) == P("tensor", None) and sharding_of(
            model[2].weight
        ) == P(None, "tensor")
        assert (
            sharding_of(model[0].bias) == P("tensor") and spmd.get_sharding(model[2].bias) is None
        )

    def test_a_part_that_moves_alone_a_copy_and_another_dtype(self, mesh: Mesh) -> None:
        model = two_layers()
        PAIR.apply(model, mesh)
        twin = copy.deepcopy(model)
        model[2].to("xla")
        assert (
            sharding_of(model[2].weight) == P(None, "tensor")
            and model[0].weight.device.type == "cpu"
        )
        assert sharding_of(twin.to("xla").to(torch.bfloat16)[0].weight) == P("tensor", None)

    def test_the_mesh_around(self, mesh: Mesh) -> None:
        model = two_layers().to("xla")
        with mesh:
            PAIR.apply(model)
            plan = spmd.plan(two_layers(), rules=PAIR)
        assert (
            sharding_of(model[0].weight) == P("tensor", None)
            and plan.layout[0].spec == "P('tensor', None)"
        )
        with pytest.raises(ValueError, match=r"ShardingRules\.apply: expected a mesh, got none"):
            PAIR.apply(model)

    def test_buffers_and_catch_all(self, mesh: Mesh) -> None:
        model = nn.BatchNorm1d(8).to("xla")
        ShardingRules({"running_*": P("tensor"), "**": P()}).apply(model, mesh)
        assert sharding_of(model.running_mean) == P("tensor") and sharding_of(model.weight) == P(
            None
        )
        assert sharding_of(model.num_batches_tracked) == P()

    def test_tied_weights(self, mesh: Mesh) -> None:
        model = two_layers()
        model.append(nn.Linear(8, 16))
        model[3].weight = model[0].weight
        PAIR.apply(model, mesh)
        with pytest.raises(
            ValueError,
            match=r"0\.weight and 3\.weight are one tensor \(tied\).*P\('tensor', None\)",
        ):
            PAIR.put("3.weight", P()).apply(model, mesh)
        PAIR.put("3.weight", P("tensor", None)).apply(model.to("xla"), mesh)
        assert sharding_of(model[3].weight) == P("tensor", None)

    def test_activations_of_tuples_dicts_and_dataclasses(self, mesh: Mesh) -> None:
        Pair = namedtuple("Pair", "left right")

        class Many(nn.Module):
            def forward(self, x: Any, mask: Any = None) -> Any:
                inside.append((x, mask))
                return {"pair": Pair(x * 1, x[0] * 1), "mask": mask * 1}

        inside: list[Any] = []
        model, seen = Many(), {}
        rules = ShardingRules(
            {
                ":input[mask]": P("fsdp", None),
                ":input[0]": P("data", None, "tensor"),
                ":output[pair][left]": P("data", "tensor", None),
                ":output": P(None, "tensor"),
            }
        )
        handle = rules.apply(model, mesh)
        x, mask = torch.ones(4, 2, 8, device="xla") * 2, torch.ones(4, 2, device="xla") * 2
        seen = model(x, mask=mask)
        assert [sharding_of(one) for one in inside[0]] == [
            P("data", None, "tensor"),
            P("fsdp", None),
        ]
        assert spmd.get_sharding(x) is None  # who reads it elsewhere reads it as it was
        assert sharding_of(seen["pair"].left) == P("data", "tensor", None)
        assert sharding_of(seen["pair"].right) == P(None, "tensor") == sharding_of(seen["mask"])
        handle.remove()
        assert spmd.get_sharding(model(x, mask=mask)["mask"]) is None
        # on the CPU nothing is laid out
        assert model(torch.ones(2, 2, 2), mask=torch.ones(1)) is not None

    @pytest.mark.parametrize("where", ["cpu", "meta"])
    def test_what_is_to_come_is_told(self, where: str, mesh: Mesh) -> None:
        """`spmd.inspect` of what is not on the device yet; of copies, too, and of what was moved in
        between."""
        model = two_layers().to(where)
        handle = PAIR.apply(model, mesh)
        for one in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model)).to("meta")):
            weight, bias, other = spmd.inspect(one[0].weight, one[0].bias, one[2].bias)
            assert (weight.spec, weight.mesh, weight.decided_by) == (
                P("tensor", None),
                mesh,
                "rules",
            )
            assert weight.residence == one[0].weight.device.type
            assert weight.bytes_per_device == 16 * 8 * 4 // mesh.shape()[
                "tensor"
            ] and bias.spec == P("tensor")
            assert f"{weight.residence}, on arrival as P('tensor', None) over" in weight.headline
            assert (other.sharding, other.decided_by) == (None, "")
        ShardingRules({"0.weight": P()}).apply(model, mesh)
        assert [found.spec for found in spmd.inspect(model[0].weight, model[0].bias)] == [
            P(None, None),
            None,
        ]
        handle = PAIR.apply(model, mesh)
        told = spmd.inspect(model[2].weight)
        model.to_empty(device="xla")
        found = spmd.inspect(model[2].weight)
        assert found.sharding is told.sharding and found.decided_by == "annotation"
        model.to("cpu")
        handle.remove()
        assert spmd.inspect(model[2].weight).sharding is None

    def test_removing_forgets_what_was_to_come(self, mesh: Mesh) -> None:
        model = two_layers()
        with PAIR.apply(model, mesh) as handle:
            assert handle.tensors == {
                "0.weight": "0.weight",
                "0.bias": "0.bias",
                "2.weight": "2.weight",
            }
        assert spmd.get_sharding(model.to("xla")[0].weight) is None

    @pytest.mark.parametrize(
        ("rules", "text"),
        [
            (
                {"0.weight": P("tenser", None)},
                r"the rule '0\.weight' for 0\.weight of shape \(16, 8\): axis 'tenser'",
            ),
            ({"0.weight": P("tenser", None)}, "did you mean 'tensor'"),
            ({"*.weight": P("tensor")}, "has 1 entries, but the tensor has 2 dims"),
            ({"0.weight": P("tensor", "tensor")}, "is used twice"),
            ({"0:output": P("batch", None)}, "the rule '0:output': axis 'batch'"),
            (
                {"0.wieght": P()},
                r"the rule '0\.wieght' matches no parameter or buffer.*did you mean '0\.weight'",
            ),
            ({"5:output": P()}, "the rule '5:output' matches no module"),
        ],
    )
    def test_errors(self, rules: Any, text: str, mesh: Mesh) -> None:
        with pytest.raises(ValueError, match=re.compile(text, re.DOTALL)):
            ShardingRules(rules).apply(two_layers(), mesh)

    def test_errors_of_other_kinds(self, mesh: Mesh) -> None:
        model = two_layers()
        with pytest.raises(TypeError, match=r"expected a torch\.nn\.Module, got function"):
            PAIR.apply(lambda x: x, mesh)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"expected a spmd\.Mesh, got tuple"):
            PAIR.apply(model, (2, 4))  # type: ignore[arg-type]
        with pytest.raises(
            TypeError, match="got mp_policy, which fsdp takes, but the table has no units"
        ):
            PAIR.apply(model, mesh, mp_policy=None)
        with pytest.raises(ValueError, match=r"the rule 'h\.\*' matches no module"):
            ShardingRules(units=["h.*"]).apply(model, mesh)
        ShardingRules({"other.weight": P("tensor")}, units=["h.*"]).apply(model, mesh, strict=False)

    def test_an_activation_of_another_rank(self, mesh: Mesh) -> None:
        model = two_layers().to("xla")
        ShardingRules({"0:output": P("data", None, None)}).apply(model, mesh)
        with pytest.raises(
            ValueError, match=r"0:output is for tensors with 3 dims .* have shape \(4, 16\)"
        ):
            model(torch.ones(4, 8, device="xla"))
        other = two_layers().to("xla")
        ShardingRules({"0:output[hidden]": P("data", None)}).apply(other, mesh)
        with pytest.raises(ValueError, match=r"finds no \[hidden\] in a XlaTensor"):
            other(torch.ones(4, 8, device="xla"))


class TestWithFsdp:
    """Rules and FSDP, in any order: FSDP adds a dim to what the rules say, and the numbers are
    those of one device."""

    def test_units_need_fsdp(self, mesh: Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
        """A program that never imported it; it registers what makes units."""
        monkeypatch.setattr(applied, "_registered", None)
        for table in (ShardingRules(units=["0"]), ShardingRules(checkpoint=["0"])):
            with pytest.raises(
                RuntimeError, match="need the package fsdp: `import fsdp` before apply"
            ):
                table.apply(two_layers().to("xla"), mesh)

    def test_three_orders_one_layout(self, mesh: Mesh) -> None:
        before, after, inside = two_layers(), two_layers(), two_layers()
        PAIR.apply(before, mesh)
        fsdp.FullyShardedDataParallel(before, mesh, extra_data_axis="data")
        wrapped = fsdp.FullyShardedDataParallel(after, mesh, extra_data_axis="data")
        PAIR.apply(wrapped, mesh)
        ShardingRules(PAIR, units=(), extra_data_axis="data").apply(inside, mesh)
        for model in (before, after, inside):
            assert [sharding_of(tensor) for tensor in model.parameters()] == [
                P("tensor", "fsdp"),
                P("tensor"),
                P("fsdp", "tensor"),
                P("fsdp"),
            ]

    def test_a_rule_that_names_the_axis_of_the_units(self, mesh: Mesh) -> None:
        model = two_layers()
        ShardingRules({"0.weight": P(("tensor", "fsdp"), None)}, units=()).apply(model, mesh)
        assert sharding_of(model[0].weight) == P(("tensor", "fsdp"), None) and sharding_of(
            model[2].weight
        ) == P(None, "fsdp")

    def test_what_checkpoints_save(self, mesh: Mesh) -> None:
        """Each block by the first pattern that matches it; operations as they are then computed
        again."""
        tokens = torch.zeros(8, 32, dtype=torch.long, device="xla")

        def operations(**checkpoint: str) -> float:
            model = Llama(LlamaConfig(heads=4, kv_heads=2, layers=2)).to("xla")
            rules = ShardingRules(
                units=[],
                checkpoint={f"blocks.{name[1]}": word for name, word in checkpoint.items()},
            )
            return spmd.plan(
                lambda x: cross_entropy(model(x), x).backward(), tokens, mesh=mesh, rules=rules
            ).flops

        none, first, dots = (
            operations(),
            operations(_0="nothing"),
            operations(_0="nothing", _1="dots"),
        )
        assert (
            operations(_0="everything", _1="everything")
            == none
            < first
            < dots
            < operations(_0="nothing", _1="nothing")
        )

    def test_values_and_gradients(self, mesh: Mesh) -> None:
        torch.manual_seed(0)
        model = Llama(LlamaConfig(heads=4, kv_heads=2))
        plain = copy.deepcopy(model)
        rules = ShardingRules(
            MEGATRON, units=["blocks.*"], extra_data_axis="data", checkpoint={"blocks.0": "dots"}
        )
        rules.apply(model, mesh)
        tokens = torch.arange(8 * 32).reshape(8, 32) % 251
        logits = model(tokens.to("xla"))
        assert sharding_of(logits) == P(("data", "fsdp"), None, "tensor")
        loss = cross_entropy(logits, tokens.to("xla"))
        loss.backward()
        expected = cross_entropy(plain(tokens), tokens)
        expected.backward()
        check(loss, expected)
        for (name, one), two in zip(model.named_parameters(), plain.parameters(), strict=True):
            assert two.grad is not None and one.grad is not None, name
            check(one.grad, two.grad)
            assert sharding_of(one.grad) == sharding_of(one)
        assert sharding_of(model.blocks[0].down.weight) == P("fsdp", "tensor")
