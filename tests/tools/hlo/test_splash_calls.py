"""The scores that jax's attention kernel computes, read in the compiled program: its mask's blocks,
and their sizes."""

from types import SimpleNamespace

import jax
import pytest

from spmd.core.programs.hlo import Module
from spmd.tools.hlo.program_facts import facts_of, kernels, kernels_in_full
from spmd.tools.hlo.splash_calls import computed_share, is_attention
from spmd.tools.planning.figures import Figures, notes_on
from tests.tools.planning import hlo_of_tpu
from tests.tools.planning.hlo_of_tpu import CAUSAL

BLOCKS = "s8[1,4,2]{2,1,0}"
OF_ALL = (
    f"%all = s8[1,8,2]{{2,1,0}} constant({{ {{ {{ 1, 0 }}, {'{ 2, 0 }, ' * 3}{'{ 2, 1 }, ' * 3}{{ "
    "1, 1 } } })"
)
SLICED = f"""%cut (p: s8[1,8,2], i: s32[]) -> s8[1,4,2] {{
  %p = s8[1,8,2]{{2,1,0}} parameter(0)
  %i = s32[] parameter(1)
  %zero = s32[] constant(0)
  ROOT %s = {BLOCKS} dynamic-slice(%p, %zero, %i, %zero), dynamic_slice_sizes={{1,4,2}}
}}

"""


def shares(kinds: str, before: str = "", **how: str) -> list[float | None]:
    """The share of the scores that each part computes."""
    module = Module(hlo_of_tpu.program(hlo_of_tpu.attention(kinds, **how), before))
    return [computed_share(module, one, line) for one, line in module.lines() if is_attention(line)]


class TestShareOfScores:
    """The mask is found where it is a constant, by whatever way it reaches the call."""

    @pytest.mark.parametrize(
        ("kinds", "share"),
        [
            ("", 1.0),  # no mask
            (f"%kinds = {BLOCKS} constant({CAUSAL})", 6 / 8),
            (  # of two heads
                "%kinds = s8[2,4,2]{2,1,0} constant({ { {1,0}, {1,0}, {2,1}, {2,1} }, "
                "{ {1,0}, {1,0}, {0,1}, {0,1} } })",
                5 / 8,
            ),
            # a grid of a window's width
            ("%kinds = s8[1,4,1]{2,1,0} constant({ { {1}, {1}, {1}, {1} } })", 4 / 8),
            (f"%two = s8[] constant(2)\n%kinds = {BLOCKS} broadcast(%two), dimensions={{}}", 1.0),
            (
                (
                    f"%flat = s8[4,2]{{1,0}} constant({CAUSAL[2:-2]})\n%kinds = {BLOCKS} "
                    "bitcast(%flat)"
                ),
                6 / 8,
            ),
            (
                f"%c = {BLOCKS} constant({CAUSAL})\n%s = ({BLOCKS}, {BLOCKS}, u32[]) "
                "copy-start(%c)\n"
                f"%kinds = {BLOCKS} copy-done(%s)",
                6 / 8,
            ),
            (f"%kinds = {BLOCKS} constant({{...}})", None),
            (f"%c = {BLOCKS} constant({CAUSAL})\n%kinds = {BLOCKS} multiply(%c, %c)", None),
        ],
    )
    def test_ways(self, kinds: str, share: float | None) -> None:
        assert shares(kinds) == [share] * 3

    def test_rows_of_a_shard(self) -> None:
        """Of masks cut by the device's number, the one with most blocks: here those of the second
        half."""
        cut = (
            f"{OF_ALL}\n%i = s32[] partition-id()\n%kinds = {BLOCKS} fusion(%all, %i), "
            "kind=kLoop, calls=%cut"
        )
        assert shares(cut, SLICED) == [8 / 8] * 3

    def test_of_a_loop(self) -> None:
        """A mask that a loop carries is the one that it starts with."""
        inside = hlo_of_tpu.attention(
            f"%kinds = {BLOCKS} get-tuple-element(%carried), index=1"
        ).replace("\n%", "\n  %")
        state = f"(s32[], {BLOCKS})"
        before = f"""%condition (carried.1: {state}) -> pred[] {{
  %carried.1 = {state} parameter(0)
  %i.1 = s32[] get-tuple-element(%carried.1), index=0
  %most = s32[] constant(3)
  ROOT %less = pred[] compare(%i.1, %most), direction=LT
}}

%body (carried: {state}) -> {state} {{
  %carried = {state} parameter(0)
  {inside}
  %i = s32[] get-tuple-element(%carried), index=0
  %one = s32[] constant(1)
  %more = s32[] add(%i, %one)
  ROOT %next.1 = {state} tuple(%more, %kinds)
}}

"""
        lines = (
            f"%zero = s32[] constant(0)\n%mask = {BLOCKS} constant({CAUSAL})\n%start = {state} "
            "tuple(%zero, %mask)\n"
            f"%loop = {state} while(%start), condition=%condition, body=%body"
        )
        module = Module(hlo_of_tpu.program(lines, before))
        found = [
            computed_share(module, one, line) for one, line in module.lines() if is_attention(line)
        ]
        assert found == [6 / 8] * 3 and kernels_in_full(module) == 0

    def test_unknown_calls_are_counted(self) -> None:
        """A mask that is computed, and a call without block sizes: a plan says that all scores
        count."""
        for text in (
            hlo_of_tpu.attention(f"%kinds = {BLOCKS} constant({{...}})"),
            hlo_of_tpu.attention(sides=""),
        ):
            assert kernels_in_full(Module(hlo_of_tpu.program(text))) == 3
        (note,) = notes_on([Figures(kernels_in_full=3)], jax.devices()[0], None, None)
        assert note.startswith(
            "3 runs of kernels count all scores or rows, where they may compute fewer"
        )

    def test_one_chip_without_a_loop(self) -> None:
        """The operations of its kernels count as those of several chips do; XLA's own count has
        none of them."""

        class Compiled:
            def as_text(self) -> str:
                return hlo_of_tpu.program(hlo_of_tpu.attention())

            def cost_analysis(self) -> dict[str, float]:
                return {"flops": 7.0}

        program = SimpleNamespace(
            graph=SimpleNamespace(mesh=SimpleNamespace(platform="tpu")), executable=Compiled()
        )
        counted, *rest = facts_of(program)  # type: ignore[arg-type]  # it reads only these
        assert counted == 7 + kernels(Module(program.executable.as_text()))[0] > 7 and rest == [
            {},
            (),
            (),
        ]
