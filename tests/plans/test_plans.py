"""The causal language models of transformers that have a plan: sharded by it, a tiny one has the
loss and gradients of one device. `sweep_plans.py` runs the same and records the outcomes that are
tested here."""

import pytest
import transformers
from plans.causal_models import plan_classes, run, tiny_model
from plans.sweep_plans import PASSED, outcomes
from transformers.distributed import DistributedConfig

import spmd

# plain, with experts, with fused projections
QUICK = ("LlamaForCausalLM", "MixtralForCausalLM", "Phi3ForCausalLM")
OUTCOMES = {name: outcome for name, (outcome, _) in outcomes().items()}

EACH = [name if name in QUICK else pytest.param(name, marks=pytest.mark.long) for name in OUTCOMES]


@pytest.fixture(scope="module")
def mesh() -> spmd.Mesh:
    return spmd.Mesh(range(8), (4, 2), ("fsdp", "tensor"))


@pytest.mark.parametrize("name", EACH)
def test_sharded_by_its_plan(name: str, mesh: spmd.Mesh) -> None:
    cls, outcome = getattr(transformers, name), OUTCOMES[name]
    if outcome.startswith(PASSED):
        assert "; ".join([PASSED, *run(cls, mesh)]) == outcome
    else:  # what transformers itself cannot build here
        with pytest.raises((ImportError, ValueError)) as raised:
            run(cls, mesh)
        assert outcome.startswith(
            f"{type(raised.value).__name__}: {' '.join(str(raised.value).split())[:60]}"
        )


@pytest.mark.long
def test_each_class_with_a_plan_has_an_outcome() -> None:
    assert sorted(plan_classes()) == sorted(OUTCOMES)


def test_at_least_95_percent_pass() -> None:
    assert set(QUICK) <= OUTCOMES.keys()
    assert sum(outcome.startswith(PASSED) for outcome in OUTCOMES.values()) >= 0.95 * len(OUTCOMES)


def test_a_configuration_of_transformers() -> None:
    """Its plans override entries, and the plans of a model that it has are read where none is
    passed."""
    model = tiny_model(transformers.MixtralForCausalLM)
    config = DistributedConfig(tp_plan={"lm_head": "rowwise_split_input"}, tp_size=2, fsdp_size=4)
    rules = spmd.ShardingRules.of(model, config)
    assert rules["lm_head.weight"] == spmd.P(None, "tensor")
    assert rules["model.layers.*.mlp.experts.down_proj"] == spmd.P(None, None, "tensor")
    model.config.distributed_config = config
    assert spmd.ShardingRules.of(model) == rules
    experts = spmd.ShardingRules.of(model, expert="expert")
    assert experts["model.layers.*.mlp.experts.down_proj"] == spmd.P("expert", None, None)
