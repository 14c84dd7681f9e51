"""Plans of a step that does not fit, and by the TPU's own compiler."""

import importlib.util
import math
import os
import re
from typing import Any
from unittest import mock

import jax
import pytest
import torch
from support import ROOT, run_script
from torch import nn
from torch.utils.checkpoint import checkpoint

import spmd
from spmd import Plan
from spmd.core.programs import program
from spmd.core.run.executables import graph_of
from spmd.core.run.execute import roots_of
from spmd.core.run.pjrt import devices
from spmd.core.sharding.topology import standing_in
from spmd.core.sharding.value import Sharding


class TestDoesNotFit:
    """A plan where the compiler refuses: the largest values first, and what the step does not do
    already."""

    @pytest.fixture(autouse=True)
    def refusal(self) -> Any:
        def refuse(lowered: Any, **kwargs: Any) -> Any:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: it takes 3.00G of 1.00G")

        with mock.patch.object(jax.stages.Lowered, "compile", refuse):
            yield

    def plan(self, layers: nn.Module, *, recomputed: bool = False) -> Plan:
        def step(x: torch.Tensor) -> torch.Tensor:
            for layer in layers:  # type: ignore[attr-defined]
                x = checkpoint(layer, x, use_reentrant=False) if recomputed else layer(x)
            loss = x.square().sum()
            loss.backward()
            return loss

        dtype = next(layers.parameters()).dtype
        return spmd.plan(step, torch.ones(64, 32, dtype=dtype, device="meta"))

    def test_the_largest_values(self) -> None:
        with torch.device("meta"):
            plan = self.plan(
                nn.Sequential(nn.Linear(32, 512, bias=False), nn.Linear(512, 32, bias=False))
            )
        assert (
            not plan.fits
            and plan.verdict == "it takes 3.00G of 1.00G"
            and plan.temporaries == 3 << 30
        )
        assert (
            len(plan.largest) == 8
            and "float32[64,512]" in plan.largest[0]
            and "test_plan_of_chips.py" in plan.largest[0]
        )
        sizes = [
            math.prod(map(int, re.search(r"float32\[([\d,]*)\]", one)[1].split(",")))
            for one in plan.largest
        ]  # type: ignore[index]
        assert sizes == sorted(sizes, reverse=True) and sizes[0] == 64 * 512

    def test_equal_ones_are_counted(self) -> None:
        with torch.device("meta"):
            plan = self.plan(nn.Sequential(*(nn.Linear(32, 32, bias=False) for _ in range(12))))
        assert len(plan.largest) == 8 and any(" x " in one for one in plan.largest)

    def test_what_it_does_already_is_no_advice(self) -> None:
        with torch.device("meta"):
            layers = nn.Sequential(*(nn.Linear(32, 32) for _ in range(2)))
        said = " ".join(self.plan(layers).advice)
        assert "checkpointing" in said and "bfloat16" in said and "smaller batch" in said
        said = " ".join(self.plan(layers.bfloat16(), recomputed=True).advice)
        assert "checkpointing" not in said and "bfloat16" not in said and "smaller batch" in said

    def test_the_first_step_does_not_fit(self) -> None:
        """It makes values whose layouts the compiler chooses: a plan compiles it, too."""
        mesh = spmd.Mesh(range(8), (8,), ("fsdp",))
        x = spmd.mark_sharding(torch.ones(64, 32, device="xla"), mesh, ("fsdp", None))
        kept: list[torch.Tensor] = []

        def step() -> None:
            kept[:] = [(kept[0] if kept else x) * 2 @ torch.ones(32, 32, device="xla")]

        plan = spmd.plan(step)
        assert not plan.fits and plan.verdict == "it takes 3.00G of 1.00G" and plan.num_ops


def test_efforts_are_numbers() -> None:
    """jax takes these options of `config.compiler_options` as numbers and all others as text."""
    assert program._parsed("exec_time_optimization_effort=-0.5") == (
        "exec_time_optimization_effort",
        -0.5,
    )
    assert program._parsed("xla_dump_to=3") == ("xla_dump_to", "3")


def chosen(x: torch.Tensor) -> dict[str, Any]:
    """The options of the program of a product."""
    roots = roots_of([(x @ x)._storage])
    return program.options_of(graph_of(roots, devices.default_sharding()))


@pytest.mark.parametrize(
    ("kind", "names"), [("TPU v5 lite", 4), ("TPU v5", 3), ("TPU7x", 3), ("TPU v4", 3)]
)
def test_overlap_on_tpus(monkeypatch: pytest.MonkeyPatch, kind: str, names: int) -> None:
    """Collectives are hidden behind computation by the options that this libtpu has, where there
    are several chips; gathers are fused with products on v5e alone, as libtpu warns of wrong
    results on others, or refuses it; chips with a SparseCore run them there."""
    monkeypatch.setattr(Sharding, "platform", "tpu")
    monkeypatch.setattr(program, "is_known_to_libtpu", lambda option: "async" in option)
    x = torch.ones(4, 4, device="xla")
    assert not chosen(x)
    monkeypatch.setattr(Sharding, "device_ids", (0, 1))
    monkeypatch.setattr(program, "_kind", lambda graph: kind)
    fused = program._OVERLAPPED_OF_V5E
    on_sparse_core = (
        {name for name in program._SPARSE_CORE if "async" in name}
        if kind in ("TPU v5", "TPU7x")
        else set()
    )
    overlapped = {name for name in program._OVERLAPPED if "async" in name} | (
        {fused} if names == 4 else set()
    )
    assert set(chosen(x)) == overlapped | on_sparse_core and len(overlapped) == names
    assert {name for name, value in chosen(x).items() if value != "True"} == on_sparse_core & {
        fused
    }
    with mock.patch.object(
        spmd.config, "compiler_options", "auto xla_enable_async_all_gather=false"
    ):
        assert chosen(x)["xla_enable_async_all_gather"] == "False" and len(
            chosen(x)
        ) == names + len(on_sparse_core)


def test_windows_of_exact_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan for chips that are not here spares the search for them; a run, and products of one
    pass, do not."""
    monkeypatch.setattr(Sharding, "platform", "tpu")
    monkeypatch.setattr(
        program, "is_known_to_libtpu", lambda option: option.endswith("performance_target")
    )
    exact = torch.ones(4, 4, device="xla")
    assert not chosen(exact)
    with standing_in("v5e:2x4"):
        (name,) = chosen(exact)
        assert name.endswith("performance_target") and not chosen(exact.bfloat16())
        with mock.patch.object(spmd.config, "compiler_options", "xla_dump_to=3"):
            assert chosen(exact) == {"xla_dump_to": "3"}
        torch.set_float32_matmul_precision("medium")
        try:
            assert not chosen(exact)
        finally:
            torch.set_float32_matmul_precision("highest")
        monkeypatch.setattr(program, "is_known_to_libtpu", lambda option: False)
        assert not chosen(exact)


class TestTpu:
    """By the TPU's own compiler, where libtpu is installed."""

    def test_without_libtpu(self) -> None:
        printed = run_script(
            """
            import os, sys

            sys.modules["libtpu"] = None  # as where it is not installed
            # libtpu leaves its own for those that are started later
            os.environ.pop("TPU_LIBRARY_PATH", None)
            import torch, spmd

            try:
                spmd.plan(torch.sin, torch.ones(2, device="xla"), target="v5e:2x4")
            except ValueError as error:
                print(error)
            """,
        )
        assert (
            "target 'v5e:2x4' is not known" in printed
            and "installed: pip install 'jax[tpu]" in printed
        )

    @pytest.mark.skipif(
        importlib.util.find_spec("libtpu") is None, reason="needs the extra tpu; without: see above"
    )
    def test_one_chip(self) -> None:
        printed = run_script(
            """
            import torch, spmd

            layer = torch.nn.Linear(256, 256, device="meta")
            plan = spmd.plan(layer.forward, torch.empty(8, 256, device="meta"), target="v5e:1x1")
            assert plan.fits and plan.cycles and not plan.collectives, plan
            print(plan.num_devices, plan.chip)
            """
        )
        assert printed.strip() == "1 TPU v5 lite"

    @pytest.mark.skipif(
        importlib.util.find_spec("libtpu") is None, reason="needs the extra tpu; without: see above"
    )
    def test_slice(self) -> None:
        printed = run_script(
            """
            import warnings

            warnings.simplefilter("ignore")
            import torch, spmd
            from test_plan import training, tokens

            spmd.simulate(8)
            _, _, step = training(spmd.Mesh(range(8), (8,), ("fsdp",)))
            plan = spmd.plan(step, tokens(), target="v5e:2x4")
            assert plan.fits and plan.cycles and plan.seconds > 0 and plan.chip == "TPU v5 lite", (
                plan
            )
            kinds = {row.kind for row in plan.collectives}
            assert "all-gather" in kinds and {row.axes for row in plan.collectives} == {
                ("fsdp",)
            }, plan
            terms = {term.name: term for term in plan.terms}
            # Copies that run next to the instructions have cycles of their own.
            assert 0.5 < terms["instructions"].seconds * plan.clock / plan.cycles <= 1, terms
            assert (
                terms["waiting for collectives (ici)"].low > 0
                and sum(plan.seconds_range) > plan.seconds
            ), terms
            print(plan.formula)
            big = torch.nn.Linear(1 << 17, 1 << 15, device="meta")
            plan = spmd.plan(
                lambda x: big(x).sum().backward(),
                torch.ones(8, 1 << 17, device="meta"),
                target="v5e:2x4",
            )
            assert not plan.fits and "HBM" in plan.verdict and plan.largest and plan.advice, plan
            print(plan)
            """,
            PYTHONPATH=(
                f"{ROOT}/tests:{ROOT}/tests/tools/planning:{os.environ.get('PYTHONPATH', ROOT)}"
            ),
        )
        assert "utilisation = " in printed and "does not fit" in printed and "Advice:" in printed

    @pytest.mark.skipif(
        importlib.util.find_spec("libtpu") is None, reason="needs the extra tpu; without: see above"
    )
    def test_two_devices_a_chip(self) -> None:
        """A slice of four TPU7x chips is eight devices, each with half of a chip's units."""
        run_script(
            """
            import torch, spmd
            from spmd.core.sharding.topology import num_devices

            assert num_devices("tpu7x:2x2x1") == 8
            mesh = spmd.Mesh(range(8), (8,), ("data",), target="tpu7x:2x2x1")


            def step(x):
                x = spmd.mark_sharding(x, mesh, ("data", None))
                return (x.mT @ x).float().sum()


            plan = spmd.plan(step, torch.empty(8192, 1024, dtype=torch.bfloat16, device="meta"))
            assert (
                plan.chip == "TPU7x" and plan.num_devices == 8 and plan.memory == int(94.75 * 2**30)
            ), plan
            assert {row.axes for row in plan.collectives} == {
                ("data",)
            } and 0 < plan.utilisation < 1, plan
            """,
            timeout=300,
        )

    @pytest.mark.skipif(
        importlib.util.find_spec("libtpu") is None, reason="needs the extra tpu; without: see above"
    )
    def test_gradients_reduced_once_between_slices(self) -> None:
        """The bytes over the network between slices do not depend on the number of
        micro-batches."""
        printed = run_script(
            """
            from functools import partial
            import torch, spmd, fsdp
            from torch import nn

            mesh = spmd.HybridMesh(
                ici_mesh_shape=(1, 16),
                dcn_mesh_shape=(2, 1),
                axis_names=("data", "fsdp"),
                target="2xv5e:4x4",
            )


            def planned(count, reduce):
                with torch.device("meta"):
                    model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(4)))
                policy = partial(fsdp.size_based_auto_wrap_policy, min_num_params=512 * 512)
                model = fsdp.FullyShardedDataParallel(
                    model, mesh=mesh, auto_wrap_policy=policy, extra_data_axis="data"
                )
                optimizer = torch.optim.AdamW(model.parameters())

                def step(x):
                    fsdp.accumulate_gradients(
                        model, lambda part: model(part).square().mean(), x, count, reduce=reduce
                    )
                    optimizer.step()
                    optimizer.zero_grad()

                return spmd.plan(step, torch.empty(256 * count, 512, device="meta"))


            for reduce in ("each", {"data": "once"}, "once"):
                plans = [planned(count, reduce) for count in (2, 8)]
                dcn, ici = (
                    [
                        sum(row.moved_bytes for row in plan.collectives if row.link == link)
                        for plan in plans
                    ]
                    for link in ("dcn", "ici")
                )
                assert (dcn[0] == dcn[1]) == (reduce != "each") and 0 < ici[0] < ici[1], (
                    reduce,
                    dcn,
                    ici,
                )
                print(reduce, dcn, ici, [plan.peak for plan in plans])
            """,
            timeout=300,
        )
        assert printed.count("\n") == 3

    @pytest.mark.skipif(
        importlib.util.find_spec("libtpu") is None, reason="needs the extra tpu; without: see above"
    )
    def test_experts_of_mixtral(self) -> None:
        """The kernels of one layer's experts compile at their full size; one with larger blocks is
        named, and is no matter of memory."""
        printed = run_script(
            """
            import torch, spmd
            from spmd.ops.kernels import grouped


            def step(rows, weights, ends):
                rows, weights = rows.requires_grad_(), weights.requires_grad_()
                torch.nn.functional.grouped_mm(
                    rows, weights, offs=ends
                ).float().square().sum().backward()
                return rows.grad, weights.grad


            shapes = (
                ((4096, 4096), torch.bfloat16),
                ((8, 4096, 28672), torch.bfloat16),
                ((8,), torch.int32),
            )
            given = [torch.empty(shape, dtype=dtype, device="meta") for shape, dtype in shapes]
            plan = spmd.plan(step, *given, target="v5e:2x2")
            assert plan.fits and plan.kernel_flops > 0, plan
            grouped._RESULT = 1024 * 1024
            try:
                spmd.plan(
                    step,
                    *(tensor.clone() for tensor in (given[0][1024:], *given[1:])),
                    target="v5e:2x2",
                )
            except RuntimeError as error:
                print(type(error).__name__, error)
            """,
            timeout=300,
        )
        assert (
            printed.startswith("LoweringError a kernel of aten._grouped_mm")
            and "does not compile" in printed
        )
        assert (
            "more devices or a smaller batch do not change" in printed
            and "exceeded scoped vmem limit" in printed
        )

    @pytest.mark.long  # 25 s
    @pytest.mark.skipif(
        importlib.util.find_spec("libtpu") is None, reason="needs the extra tpu; without: see above"
    )
    def test_layers_of_mixtral_are_a_loop(self) -> None:
        """Four layers of Hugging Face's Mixtral with experts by grouped_mm, forward and
        backward."""
        printed = run_script(
            """
            from functools import partial
            import torch, fsdp, spmd
            from transformers import MixtralConfig, MixtralForCausalLM
            from transformers.models.mixtral.modeling_mixtral import MixtralDecoderLayer

            config = MixtralConfig(
                vocab_size=64,
                hidden_size=32,
                intermediate_size=64,
                num_hidden_layers=4,
                num_attention_heads=2,
                num_key_value_heads=1,
                num_local_experts=4,
                num_experts_per_tok=2,
                use_cache=False,
            )
            config._experts_implementation = "grouped_mm"
            with torch.device("meta"):
                model = MixtralForCausalLM(config)
            mesh = spmd.Mesh(range(8), (8,), ("fsdp",), target="v5e:2x4")
            policy = partial(
                fsdp.transformer_auto_wrap_policy, transformer_layer_cls={MixtralDecoderLayer}
            )
            model = fsdp.FullyShardedDataParallel(model, mesh, auto_wrap_policy=policy)
            optimizer = torch.optim.AdamW(model.parameters())


            def step(tokens):
                loss = model(input_ids=tokens, labels=tokens).loss
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                return loss


            plan = spmd.plan(
                step, torch.zeros(8, 32, dtype=torch.long, device="meta"), target="v5e:2x4"
            )
            print(model.config._experts_implementation, *plan.notes, sep="\\n")
            """,
            timeout=300,
        )
        assert printed.startswith("grouped_mm\n")
        assert printed.count("4 equal layers of model.layers.* are one loop of the program") == 2, (
            printed
        )

    @pytest.mark.skipif(
        importlib.util.find_spec("libtpu") is None, reason="needs the extra tpu; without: see above"
    )
    def test_offloaded_activations_take_less(self) -> None:
        """Equal layers that offload a wide value are one loop, and a chip holds less than if it
        kept them."""
        run_script(
            """
            import warnings

            warnings.simplefilter("ignore")
            from functools import partial
            import torch, spmd, fsdp
            from torch import nn


            class Layer(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.up, self.down = nn.Linear(256, 1024), nn.Linear(1024, 256)

                def forward(self, x):
                    return x + self.down(torch.tanh(spmd.checkpoint_name(self.up(x), "wide")))


            policies = spmd.checkpoint_policies
            saved = policies.save_only_these_names("wide")
            offloaded = policies.save_and_offload_only_these_names(
                names_which_can_be_offloaded=["wide"]
            )
            mesh = spmd.Mesh(range(8), (8,), ("fsdp",), target="v5e:2x4")
            plans = []
            for policy in (saved, offloaded):
                with torch.device("meta"):
                    layers = nn.Sequential(*(spmd.remat(Layer(), policy=policy) for _ in range(6)))
                wrap = partial(fsdp.transformer_auto_wrap_policy, transformer_layer_cls={Layer})
                model = fsdp.FullyShardedDataParallel(layers, mesh=mesh, auto_wrap_policy=wrap)
                step = lambda x: model(x.to("xla")).square().mean().backward()
                plans.append(
                    spmd.plan(step, torch.empty(8192, 256, device="meta"), target="v5e:2x4")
                )
            kept, away = plans
            wide = 8192 // 8 * 1024 * 4
            print(kept.peak, away.peak, kept.host, away.host)
            assert kept.host == 0 and away.host >= 3 * wide, (kept.host, away.host)
            assert away.peak <= kept.peak - 2 * wide, (kept.peak, away.peak)
            """,
            timeout=300,
            PYTHONPATH=os.environ.get("PYTHONPATH", str(ROOT)),
        )

    @pytest.mark.skipif(
        importlib.util.find_spec("libtpu") is None, reason="needs the extra tpu; without: see above"
    )
    def test_offloaded_state_takes_less(self) -> None:
        """Moments on the host are fetched row by row; so are parameters there, and their gradients
        are written so."""
        run_script(
            """
            import warnings

            warnings.simplefilter("ignore")
            from functools import partial
            import torch, spmd, fsdp
            from torch import nn

            LAYERS, WIDTH = 16, 1024


            class Layer(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

                def forward(self, x):
                    return x + self.down(torch.tanh(self.up(x)))


            mesh = spmd.Mesh(range(8), (8,), ("fsdp",), target="v5e:2x4")
            wrap = partial(fsdp.transformer_auto_wrap_policy, transformer_layer_cls={Layer})
            plans = []
            for policy in (None, fsdp.OffloadPolicy(), fsdp.CPUOffloadPolicy(), "alone"):
                with torch.device("meta"):
                    layers = (spmd.remat(Layer(), policy="nothing") for _ in range(LAYERS))
                    ends = (
                        [nn.Identity()] * 2
                        if policy == "alone"
                        else [nn.Linear(8, WIDTH), nn.Linear(WIDTH, 8)]
                    )
                    whole = nn.Sequential(ends[0], *layers, ends[1])
                policy = fsdp.CPUOffloadPolicy() if policy == "alone" else policy
                model = fsdp.FullyShardedDataParallel(
                    whole,
                    mesh=mesh,
                    auto_wrap_policy=wrap,
                    offload_policy=policy or fsdp.OffloadPolicy(),
                )
                optimizer = torch.optim.AdamW(model.parameters())
                if policy is not None:
                    spmd.offload_optimizer(optimizer)

                def step(x):
                    model(x.to("xla")).square().mean().backward()
                    optimizer.step()
                    optimizer.zero_grad()

                width = 8 if isinstance(whole[0], nn.Linear) else WIDTH
                plans.append(
                    spmd.plan(step, torch.empty(64, width, device="meta"), target="v5e:2x4")
                )
            kept, moments, everything, alone = (plan.arguments + plan.temporaries for plan in plans)
            state = LAYERS * 8 * WIDTH * WIDTH * 4 // 8  # what a chip has of the layers' matrices
            print(
                state,
                kept,
                moments,
                everything,
                alone,
                [(plan.host, plan.peak, plan.moved_bytes) for plan in plans],
            )
            assert [plan.host // state for plan in plans[:3]] == [0, 2, 4], (
                "moments; then parameters and gradients"
            )
            assert moments <= kept - 1.5 * state, "a row or two of the moments"
            assert everything <= state, "of all the state no more than what layers are gathered"
            assert alone <= 1.2 * everything, (
                "the first layer's input needs no gradient: its backward is no turn"
            )
            assert all(plan.peak < plan.arguments + plan.temporaries + 1e6 for plan in plans[1:]), (
                "without the host"
            )
            assert plans[2].moved_bytes <= 1.01 * plans[0].moved_bytes, "gathered by the chips"
            """,
            timeout=300,
            PYTHONPATH=os.environ.get("PYTHONPATH", str(ROOT)),
        )
