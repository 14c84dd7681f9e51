"""The estimated time of a TPU's program: cycles, kernels, and collectives by the links that they
cross."""

import itertools
from typing import Any

import pytest

from spmd.core.programs.hlo import Module
from spmd.tools.hlo.program_facts import kernels, kernels_in_full, repeated_flops
from spmd.tools.planning.clock import CHIPS, HOST, host_copy
from spmd.tools.planning.tpu_clock import ATTENTION, CYCLES, KERNELS, TpuClock, TpuRates
from tests.tools.planning import hlo_of_tpu

V5E = CHIPS["TPU v5 lite"]
PEAK = TpuRates(1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0)
ICI, DCN = "waiting for collectives (ici)", "waiting for collectives (dcn)"
BYTES = 1024 * 1024 * 4


def clock_of(
    lines: str, *, num_slices: int = 1, sides: tuple[int, int] = (2, 2), before: str = ""
) -> TpuClock:
    """The clock of a program over slices of so many chips."""
    places = list(itertools.product(*map(range, sides))) * num_slices
    slices = tuple(i * num_slices // len(places) for i in range(len(places)))
    return TpuClock(Module(hlo_of_tpu.program(lines, before)), V5E, slices, places, PEAK)


def spent(lines: str, **how: Any) -> dict[str, float]:
    """The seconds of a program."""
    return clock_of(lines, **how).run()


def work(seconds: float) -> str:
    """The part of a line that says how long it computes."""
    return (
        f'backend_config={{"window_config":{{"estimated_cycles":"{round(seconds * V5E.clock)}"}}}}'
    )


def gather(size: int) -> str:
    """An all-gather over the first devices."""
    group = ",".join(map(str, range(size)))
    return (
        f"%g = f32[{size * 1024},1024]{{1,0}} all-gather(%x), replica_groups={{{{{group}}}}}, "
        "dimensions={0}"
    )


class TestCompute:
    """The compiler's cycles, and the operations of kernels, which have none."""

    def test_cycles(self) -> None:
        found = spent(f"%y = f32[1024,1024]{{1,0}} negate(%x), {work(0.25)}")
        assert found[CYCLES] == pytest.approx(0.25) and sum(found.values()) == found[CYCLES]

    def test_a_conditional(self) -> None:
        """The longest branch stands for all, wherever it is: another one may leave the work out."""
        square = "f32[1024,1024]{1,0}"
        skip = (
            "%skip (p: f32[1024,1024]) -> f32[1024,1024] {\n"
            f"  ROOT %p = {square} parameter(0)\n}}\n\n"
        )
        compute = (
            f"%compute (q: f32[1024,1024]) -> f32[1024,1024] {{\n  %q = {square} parameter(0)\n"
            f"  ROOT %n = {square} negate(%q), {work(0.25)}\n}}\n\n"
        )
        for branches in ("%skip, %compute", "%compute, %skip"):
            how = f"branch_computations={{{branches}}}"
            line = f"%i = s32[] constant(0)\n%y = {square} conditional(%i, %x, %x), {how}"
            assert spent(line, before=skip + compute)[CYCLES] == pytest.approx(0.25)

    def test_attention(self) -> None:
        """Two products of 2 x 8 x scores x (16 or 32); the backward parts have four and three. The
        mask leaves 6 of 8 blocks; without a mask all 64 x 64 count."""
        for kinds, share in ((hlo_of_tpu.KINDS, 6 / 8), ("", 1)):
            parsed = Module(hlo_of_tpu.program(hlo_of_tpu.attention(kinds)))
            forward, keys, queries = (
                8192 * 8 * (16 + 32),
                8192 * 8 * 2 * (16 + 32),
                8192 * 8 * (2 * 16 + 32),
            )
            assert (
                kernels(parsed) == ((forward + keys + queries) * share, 0)
                and kernels_in_full(parsed) == 0
            )
            assert repeated_flops(parsed) == (forward + keys + queries) * share
            found = spent(hlo_of_tpu.attention(kinds))
            assert found[ATTENTION] == pytest.approx(
                (forward + keys + queries) * share / V5E.peak_flops
            )
            assert found[KERNELS] == 0

    def test_attention_whose_gradients_are_one_kernel(self) -> None:
        """Of five products: the scores and two of the gradients over the width of keys, two over
        that of values."""
        parsed = Module(hlo_of_tpu.program(hlo_of_tpu.attention("", is_joined=True)))
        assert kernels(parsed) == (8192 * 8 * (16 + 32) + 8192 * 8 * (3 * 16 + 2 * 32), 0)

    def test_another_kernel(self) -> None:
        """Of a user's kernel what it states; of a grouped product the rows in the blocks up to the
        last group, not those of its buffer, which it states."""
        times = spent(hlo_of_tpu.kernel("mine", 10**9))
        assert times[KERNELS] == pytest.approx(1e9 / V5E.peak_flops) and times[ATTENTION] == 0
        for name in ("gmm", "tgmm"):
            stated = hlo_of_tpu.program(hlo_of_tpu.kernel(name, 2 * 4096 * 16 * 64))
            assert (
                kernels(Module(stated)) == (2 * 4096 * 16 * 64, 0)
                and kernels_in_full(Module(stated)) == 1
            )
            text = hlo_of_tpu.kernel(name, 2 * 4096 * 16 * 64, "rows=1536")
            assert kernels_in_full(Module(hlo_of_tpu.program(text))) == 0
            computed = 2 * 1536 * 16 * 64
            assert spent(text)[KERNELS] == pytest.approx(computed / V5E.peak_flops)
            assert repeated_flops(Module(hlo_of_tpu.program(text))) == computed - 2 * 4096 * 16 * 64


class TestLinks:
    """The time of a collective depends on the rings that it goes round."""

    @pytest.mark.parametrize(
        ("emitter", "share"),
        [
            ('"emitter":"1DAllGatherOnMajorDim"', 0.5),  # one ring through all chips
            ('"emitter":"2DAllGatherOnMajorDim"', 1.0),
            ('"debug":"active_dims:01"', 0.5),
            ("", 1.0),
        ],
    )
    def test_dims_of_the_torus(self, emitter: str, share: float) -> None:
        found = spent(f"{gather(256)}, backend_config={{{emitter}}}", sides=(16, 16))
        assert found[ICI] == pytest.approx(255 * BYTES / (V5E.link_bytes * share))
        assert sum(found.values()) == found[ICI]

    @pytest.mark.parametrize(
        ("size", "sides", "share"), [(4, (2, 2), 0.5), (4, (2, 4), 0.25), (16, (1, 16), 0.5)]
    )
    def test_a_line_is_no_ring(self, size: int, sides: tuple[int, int], share: float) -> None:
        """The ends of a row of four chips are not linked, a whole side of 16 is a ring."""
        found = spent(gather(size), sides=sides)
        assert found[ICI] == pytest.approx((size - 1) * BYTES / (V5E.link_bytes * share))

    def test_overlap(self) -> None:
        """A collective in parts of several fusions waits at the last of them, for what is left."""
        whole = 3 * BYTES / (V5E.link_bytes / 2)
        before = "".join(hlo_of_tpu.part(i) for i in range(2))
        lines = [
            f"%f.{i} = f32[1024,1024]{{1,0}} fusion(%x), kind=kOutput, calls=%part.{i}, "
            for i in range(2)
        ]
        for computed in (whole / 4, whole):
            found = spent("\n".join(line + work(computed) for line in lines), before=before)
            assert found[CYCLES] == pytest.approx(2 * computed)
            assert found[ICI] == pytest.approx(max(0.0, whole - 2 * computed))

    @pytest.mark.parametrize("form", hlo_of_tpu.PAIRS)
    @pytest.mark.parametrize("share", [0.0, 0.25, 2.0])
    def test_pairs(self, form: str, share: float) -> None:
        """A pair waits at its end for what is not hidden; the collective in it has both times."""
        start, done = hlo_of_tpu.PAIRS[form]
        whole = 3 * BYTES / (V5E.link_bytes / 2)
        lines = f"{start}\n%y = f32[1024,1024]{{1,0}} negate(%x), {work(share * whole)}\n{done}"
        clock = clock_of(lines, before=hlo_of_tpu.CALLED)
        waiting = max(0.0, 1 - share) * whole
        assert clock.run()[ICI] == pytest.approx(waiting)
        assert [*clock.times.values()] == [(pytest.approx(whole), pytest.approx(waiting))]

    def test_behind_another(self) -> None:
        """A gather that stands behind another waits for both; each has the time in which it is
        transferred."""
        first, _ = hlo_of_tpu.PAIRS["a call on the SparseCore"]
        lines = [
            first,
            first.replace("%s =", "%t ="),
            "%d = f32[4096,1024]{1,0} call-done(%t)",
            "%e = f32[4096,1024]{1,0} call-done(%s)",
        ]
        second = hlo_of_tpu.CALLED.replace("%called", "%other").replace("%g", "%h")
        lines[1] = lines[1].replace("%called", "%other")
        clock = clock_of("\n".join(lines), before=hlo_of_tpu.CALLED + second)
        whole = pytest.approx(3 * BYTES / (V5E.link_bytes / 2))
        assert clock.run()[ICI] == pytest.approx(2 * whole.expected)
        assert [*clock.times.values()] == [(whole, whole)] * 2

    def test_between_slices(self) -> None:
        """A transfer starts where it is sent and is waited for where it is received."""
        whole = 2 * BYTES * 1 // 2 / V5E.network_bytes
        found = spent(hlo_of_tpu.between_slices(work(whole / 4)), num_slices=2)
        assert found[DCN] == pytest.approx(whole * 3 / 4) and found[ICI] == 0


class TestHost:
    """Copies to and from the host's memory: one stream each way, next to what is computed."""

    SECONDS = BYTES / V5E.host_bytes
    ARRAY = "f32[1024,1024]{1,0:T(8,128)}"
    OF_HOST = "f32[1024,1024]{1,0:T(8,128)S(5)}"
    STACK = "f32[3,1024,1024]{2,1,0:T(8,128)S(5)}"
    ROW = "f32[1,1024,1024]{2,1,0:T(8,128)}"
    AWAY = f"%away = ({OF_HOST}, {ARRAY}, u32[]) copy-start(%x)"
    AWAY_DONE = f"%gone = {OF_HOST} copy-done(%away)"
    BACK = f"%back = (({STACK}, s32[]), {ROW}, u32[]) dynamic-slice-start(%rows, %i)"
    BACK_DONE = f"%row = {ROW} dynamic-slice-done(%back)"

    @pytest.mark.parametrize("share", [0.0, 0.25, 2.0])
    def test_what_is_not_hidden(self, share: float) -> None:
        busy = f"%y = f32[1024,1024]{{1,0}} negate(%x), {work(share * self.SECONDS)}"
        found = spent("\n".join([self.AWAY, busy, self.AWAY_DONE]))
        assert found[HOST] == pytest.approx(max(0.0, 1 - share) * self.SECONDS)

    def test_both_ways_at_once(self) -> None:
        """A row of a stack, not the stack, is what a slice moves; it waits for no copy the other
        way."""
        before = f"%rows = {self.STACK} parameter(1)\n%i = s32[] parameter(2)"
        lines = [before, self.AWAY, self.BACK, self.AWAY_DONE, self.BACK_DONE]
        assert spent("\n".join(lines))[HOST] == pytest.approx(self.SECONDS)
        twice = [
            self.AWAY,
            self.AWAY.replace("%away", "%second"),
            self.AWAY_DONE,
            "%last = " + self.OF_HOST + " copy-done(%second)",
        ]
        assert spent("\n".join(twice))[HOST] == pytest.approx(2 * self.SECONDS)

    def test_writes_of_a_row(self) -> None:
        shape = f"(({self.STACK}, {self.ROW}, s32[]), {self.STACK}, u32[])"
        (line,) = (
            Module(hlo_of_tpu.program(f"%put = {shape} dynamic-update-slice-start(%x)"))
            .computations["main"]
            .lines[1:2]
        )
        assert host_copy(line) == ("to host", BYTES)

    def test_copies_on_the_device(self) -> None:
        """A copy between the device's own memories is part of the compiler's cycles."""
        near = self.OF_HOST.replace("S(5)", "S(1)")
        assert (
            spent(
                f"%away = ({near}, {self.ARRAY}, u32[]) copy-start(%x)\n%gone = {near} "
                "copy-done(%away)"
            )[HOST]
            == 0
        )
