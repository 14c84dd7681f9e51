"""A small Llama on four GPUs: every layout compiled, and the best of those that `spmd.suggest`
compiles.

    python tests/tools/planning/every_layout.py --folder /tmp/every

Every layout is each placement (mesh, sequence, parameters kept or freed) with each choice of what
is saved of the blocks (everything, results of products on the chip or on the host, nothing). Then
`suggest` runs with its usual limit of trials, once with the GPU's memory and once with each of
three smaller ones, of which the fastest layouts need more. Its best must be within 2 % of the best
of all that fit. Plans are kept in the folder; needs the extra gpu-plan.
"""

import argparse
import dataclasses
import itertools
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT)]

import pytest  # noqa: E402
import torch  # noqa: E402

import spmd  # noqa: E402
from recipes.llama import PRECISION, Llama, LlamaConfig, cross_entropy  # noqa: E402
from spmd.tools.planning.report import Plan  # noqa: E402
from spmd.tools.suggestions import suggest  # noqa: E402
from spmd.tools.suggestions.candidates import SAVED, CandidateLayout, placements  # noqa: E402
from spmd.tools.suggestions.search import Search  # noqa: E402
from spmd.tools.suggestions.suggestion import Trial  # noqa: E402

CONFIG = LlamaConfig(2, 512, 8, 4, 1536, 8192, 512)
TARGET, ROWS = "h100:4", 32
SHARES = (0.9, 0.8, 0.75)  # of the memory that the fastest layout needs


def training() -> tuple[Callable[[torch.Tensor], torch.Tensor], torch.Tensor]:
    with torch.device("meta"):
        model, tokens = Llama(CONFIG), torch.zeros(ROWS, CONFIG.sequence, dtype=torch.long)
    optimizer = torch.optim.AdamW(model.parameters())

    def step(tokens: torch.Tensor) -> torch.Tensor:
        loss = cross_entropy(model(tokens), tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step, tokens


class EveryLayout(Search):
    """Compiles all of them."""

    def run(self, until: float, most: int) -> list[Trial]:
        for placement in placements(self.model, self.of.chips):
            for saved in itertools.combinations_with_replacement(
                [*SAVED][::-1], self.model.num_saved
            ):
                trial = self._trial(dataclasses.replace(placement, saved=saved))
                print(
                    f"{time.strftime('%T')} {self.num_compiled} {trial.name}: {trial.reason}",
                    flush=True,
                )
        return [*self.trials.values()]

    def _why_not(self, layout: CandidateLayout) -> str:
        return ""


def search_within(limit: int | None) -> type[Search]:
    """The search on a chip with so many bytes; None: with its own."""

    class Limited(Search):
        def __init__(self, *args: Any):
            super().__init__(*args)
            self.memory = self.memory if limit is None else limit

        def _compiled(self, *args: Any) -> tuple[Plan | None, str]:
            plan, reason = super()._compiled(*args)
            if plan is None or plan.peak <= (self.memory or 0):
                return plan, reason
            return dataclasses.replace(plan, memory=self.memory), "does not fit"

    return Limited


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, required=True)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    step, tokens = training()
    file = given.folder / "plans.json"
    keywords: dict[str, Any] = {
        "target": TARGET,
        "mp_policy": PRECISION,
        "file": file,
        "progress": False,
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(suggest, "Search", EveryLayout)
        every = [
            trial
            for trial in spmd.suggest(step, tokens, **keywords).trials
            if trial.plan is not None
        ]
    fastest = min((trial for trial in every if trial.fits), key=lambda trial: trial.seconds)
    print(f"{len(every)} layouts; the fastest: {fastest.name}, {fastest.seconds * 1e3:.3f} ms")
    for share in (None, *SHARES):
        limit = None if share is None else int(share * fastest.plan.peak)

        fitting = [
            trial for trial in every if trial.fits and (limit is None or trial.plan.peak <= limit)
        ]
        best = min(fitting, key=lambda trial: trial.seconds)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(suggest, "Search", search_within(limit))
            found = spmd.suggest(step, tokens, **keywords)
        compiled = [one for one in found.trials if one.plan is not None]
        ours = [one for one in compiled if one.fits and (limit is None or one.plan.peak <= limit)]
        chosen = min(ours, key=lambda trial: trial.seconds)
        print(
            f"memory {'of the chip' if limit is None else f'{limit / 2**20:,.0f} MiB'}: "
            f"{len(fitting)} fit; best {best.name}, {best.seconds * 1e3:.3f} ms; suggest compiled "
            f"{len(compiled)}: {chosen.name}, {chosen.seconds * 1e3:.3f} ms, "
            f"{chosen.seconds / best.seconds - 1:+.2%}",
            flush=True,
        )


if __name__ == "__main__":
    main()
