"""Plans for GPUs that are not here; by CUDA's plugin of jax, where it is installed
(`make plan-gpu`)."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from support import ROOT, own_environment, run_script

import spmd
from spmd.core.programs.hlo import Module
from spmd.core.sharding.topology import all_devices, num_devices
from spmd.mesh.gpus import GPUS
from spmd.tools.hlo import program_facts
from spmd.tools.planning.clock import CHIPS, Chip
from spmd.tools.planning.step_time import terms_of

H100 = CHIPS["NVIDIA H100 80GB HBM3"]
PLUGIN = (
    importlib.util.find_spec("jax_plugins.xla_cuda12")
    if importlib.util.find_spec("jax_plugins")
    else None
)
without_plugin = pytest.mark.skipif(
    PLUGIN is not None, reason="is of an environment without the extra gpu-plan"
)
needs_plugin = pytest.mark.skipif(
    PLUGIN is None, reason="needs the extra gpu-plan: `make plan-gpu` runs it"
)

# A loop of three iterations: a gather hidden by a product, then a sum that nothing hides.
PROGRAM = """\
HloModule spmd, is_scheduled=true

%product (p0: bf16[4096,4096], p1: bf16[4096,4096]) -> bf16[4096,4096] {
  %p0 = bf16[4096,4096]{1,0} parameter(0)
  %p1 = bf16[4096,4096]{1,0} parameter(1)
  ROOT %dot.1 = bf16[4096,4096]{1,0} dot(%p0, %p1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

%row (p2: f32[16,1024], p3: s32[]) -> f32[1,1024] {
  %p2 = f32[16,1024]{1,0} parameter(0)
  %p3 = s32[] parameter(1)
  %zero = s32[] constant(0)
  ROOT %slice.1 = f32[1,1024]{1,0} dynamic-slice(%p2, %p3, %zero), dynamic_slice_sizes={1,1024}
}

%add (a: bf16[], b: bf16[]) -> bf16[] {
  %a = bf16[] parameter(0)
  %b = bf16[] parameter(1)
  ROOT %sum = bf16[] add(%a, %b)
}

%body (state: (s32[], bf16[4096,4096], bf16[512,4096])) -> (s32[], bf16[4096,4096], bf16[512,4096]) {
  %state = (s32[], bf16[4096,4096]{1,0}, bf16[512,4096]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%state), index=0
  %x = bf16[4096,4096]{1,0} get-tuple-element(%state), index=1
  %shard = bf16[512,4096]{1,0} get-tuple-element(%state), index=2
  %gather = (bf16[512,4096], bf16[4096,4096]) all-gather-start(%shard), replica_groups=[1,8]<=[8], dimensions={0}
  %y = bf16[4096,4096]{1,0} fusion(%x, %x), kind=kCustom, calls=%product
  %gathered = bf16[4096,4096]{1,0} all-gather-done(%gather)
  %reduce = bf16[4096,4096]{1,0} all-reduce-start(%gathered), replica_groups=[1,8]<=[8], to_apply=%add
  %reduced = bf16[4096,4096]{1,0} all-reduce-done(%reduce)
  ROOT %next = (s32[], bf16[4096,4096]{1,0}, bf16[512,4096]{1,0}) tuple(%i, %y, %shard)
}

%condition (before: (s32[], bf16[4096,4096], bf16[512,4096])) -> pred[] {
  %before = (s32[], bf16[4096,4096]{1,0}, bf16[512,4096]{1,0}) parameter(0)
  ROOT %more = pred[] constant(true)
}

ENTRY %main (q0: bf16[4096,4096], q1: bf16[512,4096], q2: f32[16,1024], q3: s32[]) -> f32[1,1024] {
  %q0 = bf16[4096,4096]{1,0} parameter(0)
  %q1 = bf16[512,4096]{1,0} parameter(1)
  %q2 = f32[16,1024]{1,0} parameter(2)
  %q3 = s32[] parameter(3)
  %first = (s32[], bf16[4096,4096]{1,0}, bf16[512,4096]{1,0}) tuple(%q3, %q0, %q1)
  %loop = (s32[], bf16[4096,4096]{1,0}, bf16[512,4096]{1,0}) while(%first), condition=%condition, body=%body, TRIPS
  ROOT %one = f32[1,1024]{1,0} fusion(%q2, %q3), kind=kLoop, calls=%row
}
""".replace("TRIPS", 'backend_config={"known_trip_count":{"n":"3"}}')


class TestCounts:
    """The operations and bytes of a program's kernels."""

    def test_operations_of_every_iteration(self) -> None:
        assert program_facts.flops_of(Module(PROGRAM)) == 3 * 2 * 4096**3

    def test_bytes_of_a_slice_are_its_own(self) -> None:
        module = Module(PROGRAM)
        main = module.computations[module.entry]
        kernel = program_facts.kernel_of(module, main, main.by_name["one"])
        # The slice is read and written; the index and the zero are 4 bytes.
        assert kernel is not None and kernel.bytes - 2 * 1024 * 4 in (0, 4)
        assert program_facts.kernel_of(module, main, main.by_name["loop"]) is None

    def test_attention_of_cudnn(self) -> None:
        """Two products of every pair of positions forward, five backward; half of the pairs under a
        causal mask, and those of a window."""
        line = (
            "  %q = bf16[2,4,128,32]{3,2,1,0} parameter(0)\n"
            "  ROOT %a = (bf16[2,4,128,32]{3,2,1,0}, u8[0]{0}) custom-call(%q, %q, %q), "
            'custom_call_target="__cudnn$fmhaSoftmaxKIND", '
            'backend_config={"cudnn_fmha_backend_config": {"intermediate_tensor_shape": '
            '{"dimensions": ["2", "4", "128", "128"]}, "mask_type": "MASK", '
            '"sliding_window_length": WINDOW}}\n'
        )
        text = (
            "HloModule spmd\n\nENTRY %main (q: bf16[2,4,128,32]) -> bf16[2,4,128,32] {\n"
            + line
            + "}\n"
        )
        pairs = 2 * 2 * 4 * 128 * 128 * 32
        for kind, mask, window, count in (
            ("", "NO_MASK", 0, 2 * pairs),
            ("", "CAUSAL", 0, pairs),
            ("Backward", "NO_MASK", 0, 5 * pairs),
            ("", "CAUSAL", 3, 2 * pairs * (3 * 128 - 3) // 128**2),
        ):
            filled = text.replace("KIND", kind).replace('"MASK"', f'"{mask}"')
            module = Module(filled.replace("WINDOW", str(window)))
            assert program_facts.flops_of(module) == count, (kind, mask)


class TestTime:
    """The time of a step, by hand."""

    def test_collectives_wait_where_nothing_hides_them(self) -> None:
        terms = {term.name: term for term in terms_of(Module(PROGRAM), H100, (0,) * 8, ())[0]}
        product = 3 * 2 * 4096**3 / (989.4e12 * 0.70)
        # 32 x 32 tiles over 132 cores: 7.76 rounds take the time of 8.
        assert terms["products"].seconds == pytest.approx(product * 8 / (1024 / 132))
        gathered = 4096 * 4096 * 2 * 7 / 8 / (450e9 * 0.75) + 12e-6
        summed = 2 * gathered - 12e-6
        hidden = product / 3 * 8 / (1024 / 132) + 2e-6
        waited = 3 * (max(0, gathered - hidden) + summed)
        assert terms["waiting for collectives (ici)"].seconds == pytest.approx(waited)
        assert all(term.low <= term.seconds <= term.high for term in terms.values())
        assert {term.source for term in terms.values()} == {"analytic"}

    def test_the_network_between_nodes(self) -> None:
        """Eight devices of two nodes have half of the node's networks, each one of its own."""
        near, far = (
            {term.name: term.seconds for term in terms_of(Module(PROGRAM), H100, nodes, ())[0]}
            for nodes in ((0,) * 8, (0, 0, 0, 0, 1, 1, 1, 1))
        )
        moved = 4096 * 4096 * 2 * 7 / 8
        more = near.pop("waiting for collectives (ici)")
        waited = far.pop("waiting for collectives (dcn)")
        assert near == far
        both = 3 * (3 * moved / (50e9 * 4 * 0.75) + 2 * 24e-6)
        assert waited > more and waited == pytest.approx(
            both - 3 * (2 * 4096**3 / (989.4e12 * 0.7) * 8 / (1024 / 132) + 2e-6)
        )


class TestDescriptions:
    """GPUs by name, and a user's own."""

    def test_every_gpu_has_constants(self) -> None:
        for name, gpu in GPUS.items():
            chip = CHIPS[gpu.kind]
            assert chip.name == name and chip.is_gpu and chip.clock is None
            assert chip.memory_bytes == gpu.memory_bytes and chip.bandwidth == gpu.bandwidth
            # What the units of the description do in a cycle is the data sheet's peak, within the
            # clock's boost.
            assert chip.f32_flops == pytest.approx(
                2e9 * gpu.cores * gpu.lanes * gpu.clock, rel=0.05
            )

    def test_own_description(self) -> None:
        text = (
            GPUS["h100"]
            .description.replace(GPUS["h100"].kind, "half of an H100")
            .replace("core_count: 132", "core_count: 66")
        )
        spmd.describe_gpu("half_h100", text, peak_flops=495e12, link_bytes=450e9)
        # the same again is no other
        spmd.describe_gpu("half_h100", text, peak_flops=495e12, link_bytes=450e9)
        chip = CHIPS["half of an H100"]
        assert isinstance(chip, Chip) and chip.cores == 66 and chip.network_bytes == 450e9
        assert num_devices("half_h100:4") == 4 and num_devices("2xhalf_h100:4") == 8

    def test_mistakes(self) -> None:
        text = GPUS["l4"].description
        with pytest.raises(ValueError, match="'NVIDIA L4' is another GPU already"):
            spmd.describe_gpu("l4_mine", text, peak_flops=1e12, link_bytes=1e9)
        with pytest.raises(ValueError, match="'h100' is another GPU already"):
            spmd.describe_gpu(
                "h100", text.replace("NVIDIA L4", "L4 of mine"), peak_flops=1e12, link_bytes=1e9
            )
        with pytest.raises(ValueError, match="which has device_memory_size, memory_bandwidth"):
            spmd.describe_gpu("mine", "h100.txtpb", peak_flops=1e12, link_bytes=1e9)
        with pytest.raises(ValueError, match="expected a name of letters"):
            spmd.describe_gpu(
                "8xmine:8", text.replace("NVIDIA L4", "L4 of ours"), peak_flops=1e12, link_bytes=1e9
            )

    @without_plugin
    def test_without_the_plugin(self) -> None:
        assert num_devices("h100:8") == 8
        with pytest.raises(
            ValueError,
            match=r"'h100:8' needs CUDA's plugin of jax.*pip install jax-cuda12-plugin==",
        ):
            all_devices("h100:8")
        with pytest.raises(ValueError, match=r"GPUs such as \"h100:8\" \(a100, b200, .*h100"):
            all_devices("h1000:8")


STEP = """
import warnings; warnings.simplefilter("ignore")
from functools import partial
import torch, fsdp, spmd
from torch import nn

def training(mesh, width=256, layers=4):
    with torch.device("xla"):
        model = nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))
    wrap = partial(fsdp.size_based_auto_wrap_policy, min_num_params=width * width)
    model = fsdp.FullyShardedDataParallel(model, mesh=mesh, auto_wrap_policy=wrap)
    optimizer = torch.optim.AdamW(model.parameters())
    def step(batch):
        loss = model(batch.to("xla")).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss
    return step
"""


@needs_plugin
class TestCompiled:
    """By the compiler itself."""

    def test_node(self) -> None:
        printed = run_script(
            STEP
            + """
spmd.simulate(8)
step = training(spmd.Mesh(range(8), (8,), ("fsdp",)))
plan = spmd.plan(step, torch.zeros(64, 256), target="h100:8")
assert plan.fits and plan.chip == "NVIDIA H100 80GB HBM3" and plan.num_devices == 8
# the batch needs no gradient
assert plan.flops == 6 * 4 * 8 * 256 * 256 - 2 * 8 * 256 * 256, plan.flops
assert {row.axes for row in plan.collectives} == {("fsdp",)}
low, high = plan.seconds_range
assert 0 < low < plan.seconds < high and {term.name for term in plan.terms} >= {
    "products",
    "launches",
}
again = spmd.Plan.from_json(plan.to_json())
assert again.terms == plan.terms and not again.diff(plan)
print(plan)
""",
            timeout=300,
        )
        assert (
            "h100:8 (fsdp=8): fits" in printed
            and "step time = " in printed
            and "analytic" in printed
        )

    def test_stderr_has_no_notice(self) -> None:
        """The plugin's own log writes none of XLA's notices, and libtpu, if it is installed, no
        errors."""
        script = """
import torch, spmd
plan = spmd.plan(lambda x: (x @ x).sum(), torch.empty(256, 256, device="meta"), target="h100:1")
assert plan.flops == 2 * 256**3, plan
"""
        done = subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            timeout=300,
            cwd=ROOT,
            env=own_environment(),
        )
        assert done.returncode == 0, done.stderr
        written = [line for line in done.stderr.splitlines() if "find cuda drivers" not in line]
        assert not [
            line for line in written if not line.startswith(("WARNING: All log messages", "spmd: "))
        ], written

    def test_nodes_and_memory(self) -> None:
        printed = run_script(
            STEP
            + """
mesh = spmd.HybridMesh(
    ici_mesh_shape=(1, 8), dcn_mesh_shape=(2, 1), axis_names=("data", "fsdp"), target="2xh100:8"
)
step = training(mesh)
plan = spmd.plan(step, torch.zeros(64, 256))
assert {row.link for row in plan.collectives} == {"ici", "dcn"}, plan
assert {row.axes for row in plan.collectives if row.link == "ici"} >= {("fsdp",)}
with torch.device("meta"):
    wide = nn.Linear(1 << 17, 1 << 17)
plan = spmd.plan(
    lambda x: wide(x).sum().backward(), torch.empty(8, 1 << 17, device="meta"), target="l4:1"
)
assert not plan.fits and plan.largest and plan.advice
print(plan)
""",
            timeout=300,
        )
        assert "does not fit" in printed and "Advice:" in printed

    @pytest.mark.parametrize("target", ["a100:4", "h200:4", "b200:4", "l4:4", "ours:4"])
    def test_every_gpu(self, target: str) -> None:
        run_script(
            STEP
            + f"""
from spmd.mesh.gpus import GPUS

text = GPUS["h100"].description.replace(GPUS["h100"].kind, "one of ours")
spmd.describe_gpu("ours", text, peak_flops=1e15, link_bytes=4e11)
spmd.simulate(4)
plan = spmd.plan(
    training(spmd.Mesh(range(4), (4,), ("fsdp",)), layers=2),
    torch.zeros(64, 256),
    target={target!r},
)
assert plan.fits and plan.seconds > 0, plan
""",
            timeout=300,
        )

    def test_masks_of_attention(self, tmp_path: Path) -> None:
        """cuDNN's call with its window, its bias and its widths, in the compiled program."""
        run_script(
            f"""
import json, re
from pathlib import Path
import torch, spmd
from torch.nn import functional as F

mesh = spmd.Mesh(range(8), (8,), ("fsdp",), target="h100:8")
number = iter(range(100))


def calls(attend, width=128, of_values=0, *more):
    def step(q, k, v, *more):
        for x in (q, k, v):
            spmd.mark_sharding(x, mesh, ("fsdp", None, None, None)).requires_grad_()
        wanted = q, k, v, *(x.requires_grad_() for x in more if x.is_floating_point())
        return torch.autograd.grad(attend(q, k, v, *more).float().square().mean(), wanted)

    folder = Path({str(tmp_path)!r}) / str(next(number))
    options = {{"xla_dump_to": str(folder), "xla_dump_hlo_as_text": "True"}}
    shapes = [(8, 4, 1024, width)] * 2 + [(8, 4, 1024, of_values or width)]
    operands = [torch.empty(x, dtype=torch.bfloat16, device="meta") for x in shapes]
    plan = spmd.plan(step, *operands, *more, compiler_options=options)
    found = []
    text = max(folder.glob("*after_optimizations.txt"), key=lambda x: x.stat().st_size).read_text()
    for line in text.splitlines():
        if name := re.search(r'custom_call_target="__cudnn.fmha(\\w+)"', line):
            config = json.JSONDecoder().raw_decode(line.partition("backend_config=")[2])[0]
            config = config["cudnn_fmha_backend_config"]
            found.append((name[1], config["mask_type"], int(config["sliding_window_length"])))
    return sorted(found), [x.text for x in plan.findings if x.kind == "kernel"], plan.flops


def window(q, k, v):
    places = torch.arange(1024, device=q.device)
    mask = (places[:, None] >= places) & (places[:, None] - places < 200)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def causal(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def biased(q, k, v, bias):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)


def both(kind, size, prefix="Softmax"):
    return [(prefix, kind, size), (prefix + "Backward", kind, size)], []


*made, flops = calls(window)
assert tuple(made) == both("CAUSAL", 200), made
assert flops == 7 * 2 * 4 * 128 * (1024 * 200 - 200 * 199 // 2), flops
assert tuple(calls(causal, 256)[:2]) == both("CAUSAL", 0)
assert tuple(calls(causal, 192, 128)[:2]) == both("CAUSAL", 0)
bias = torch.empty(1, 4, 1024, 1024, dtype=torch.bfloat16, device="meta")
assert tuple(calls(biased, 128, 0, bias)[:2]) == both("NO_MASK", 0, "ScaleBiasSoftmax")
padding = torch.empty(8, 1, 1, 1024, dtype=torch.bool, device="meta")
assert tuple(calls(biased, 128, 0, padding)[:2]) == both("NO_MASK", 0, "ScaleBiasSoftmax")
made, said, _ = calls(causal, 264)
assert made == [] and said == ["attention in blocks: heads of widths 264 and 264"], said
""",
            timeout=600,
        )

    def test_jax_started_without_a_platform(self) -> None:
        """The plugin registers itself where no GPU is, and the device is the CPU."""
        run_script(
            """
import torch, spmd
assert (torch.ones(3, device="xla") + 1).tolist() == [2, 2, 2]
plan = spmd.plan(lambda x: (x @ x).sum(), torch.empty(256, 256, device="meta"), target="h100:1")
assert plan.flops == 2 * 256**3, plan
""",
            timeout=300,
        )

    def test_experts(self) -> None:
        """GSPMD would end the process at a grouped product: this program alone takes Shardy."""
        run_script(
            """
import torch, spmd

mesh = spmd.Mesh(range(8), (8,), ("expert",), target="h100:8")
weights = torch.nn.Parameter(torch.empty(8, 32, 64, device="meta"))
spmd.ShardingRules({"weight": spmd.P("expert", None, None)}).apply(
    torch.nn.ParameterDict({"weight": weights}), mesh
)


def step(rows, ends):
    spmd.mark_sharding(rows, mesh, ("expert", None))
    return torch.nn.functional.grouped_mm(rows, weights.to(rows.device), offs=ends).sum()


arguments = torch.zeros(64, 32, device="meta"), torch.zeros(8, dtype=torch.int32, device="meta")
assert spmd.plan(step, *arguments).fits and spmd.config.partitioner == "gspmd"
""",
            timeout=300,
        )
