"""Forty steps in bfloat16 over float32 parameters, against float32 and against other weights."""

from recipes import text
from recipes.benchmarks import bf16


class TestGap:
    """The loss of bfloat16 is nearer to that of float32 than another seed's is."""

    def test_below_two_seeds(self) -> None:
        options = bf16.parse(
            ["--steps=40", "--layers=1", "--width=32", "--sequence=32", "--batch=8", "--lr=5e-3"]
        )
        corpus = text.load()
        short = text.Text(corpus.train, corpus.heldout[:2000])
        runs, gaps = bf16.compare(options, short)
        assert list(runs) == ["bfloat16, seed 0", "float32, seed 0", "float32, seed 1"]
        assert all(run.losses[-1] < 0.7 * run.losses[0] for run in runs.values()), "they learn"
        rounding, seeds = gaps.values()
        assert 0 < rounding[0] < 0.5 * seeds[0], (
            f"training: {rounding[0]}, between seeds {seeds[0]}"
        )
        assert rounding[1] < seeds[1], f"held-out: {rounding[1]}, between seeds {seeds[1]}"

    def test_gathers_in_eight_bits(self) -> None:
        """They are nearer to bfloat16 than another seed is, with each seed."""
        sizes = ["--layers=1", "--width=32", "--sequence=32", "--batch=8"]
        options = bf16.parse(["--steps=40", "--lr=5e-3", "--gather=float8_e4m3fn", *sizes])
        corpus = text.load()
        runs, gaps = bf16.compare(options, text.Text(corpus.train, corpus.heldout[:2000]))
        assert [name.partition(",")[0] for name in runs] == ["float8_e4m3fn"] * 2 + ["bfloat16"] * 2
        *rounding, seeds = gaps.values()
        assert all(0 < training < seeds[0] for training, _ in rounding), (rounding, seeds)
