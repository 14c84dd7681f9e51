"""The result of spmd.suggest: the layouts that were compiled, ranked, and those of them that
nothing is better than."""

import json
import operator
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...mesh.mesh import Mesh
from ...rules.rules import ShardingRules
from ..planning.report import VIEWS, Plan, text_of


@dataclass(frozen=True)
class Trial:
    """One candidate layout.

    Attributes:
        name: its mesh and options. family: "data", "fsdp", "hybrid", "tensor", "tensor + sequence",
            or two of these.
        mesh, rules: of the layout; None where the model does not go with it, or its parameters and
            optimizer with the memory. plan: the compiler's figures; None if it was not compiled.
            seconds: by the measure of the search; None without a plan. reason: why it is not the
            first.
        target: the devices. chips: their number. rows: of the batch. precision: the `mp_policy` of
            the layout. price: of a device for an hour; None where none was given. keywords: those
            of the step that were tried.
    """

    name: str = ""
    family: str = ""
    mesh: Mesh | None = None
    rules: ShardingRules | None = None
    plan: Plan | None = None
    seconds: float | None = None
    reason: str = ""
    target: str | None = None
    chips: int = 1
    rows: int = 1
    precision: Any = None
    price: float | None = None
    keywords: Mapping[str, Any] = field(default_factory=dict)

    @property
    def fits(self) -> bool:
        return self.plan is not None and self.plan.fits

    @property
    def rate(self) -> float:
        """The seconds of a step for each row of its batch; infinite without a plan."""
        return float("inf") if self.seconds is None else self.seconds / self.rows

    @property
    def money(self) -> float | None:
        """The price of a thousand rows: devices x hours x price; None without a plan or a price."""
        if self.price is None or self.seconds is None:
            return None
        return 1000 * self.rate * self.chips * self.price / 3600

    def costs(self) -> tuple[float, ...]:
        """Seconds a row, peak bytes of a device, devices, and money where there is a price: less is
        better."""
        assert self.plan is not None
        money = self.money
        return (self.rate, self.plan.peak, self.chips, *(() if money is None else (money,)))

    def is_better(self, other: "Trial") -> bool:
        """True if no cost is more than the other's, and one is less."""
        return self.costs() != other.costs() and all(map(operator.le, self.costs(), other.costs()))


@dataclass(frozen=True, repr=False)
class Suggestion:
    """The result of `spmd.suggest`.

    Attributes:
        trials: those that fit, best first, then those that do not fit or were not compiled.
            measure: the formula that ranks them. spent: seconds of the search.
    """

    trials: tuple[Trial, ...]
    measure: str
    spent: float = field(compare=False)

    @property
    def best(self) -> Trial:
        """The first trial.

        Raises ValueError where none fits, with the reason of the nearest one.
        """
        first = self.trials[0]
        if not first.fits:
            raise ValueError(
                f"suggest: no layout was found to fit; the nearest is {first.name}: {first.reason}"
            )
        return first

    @property
    def front(self) -> tuple[Trial, ...]:
        """The trials that fit and that no other one is better than or equal to in everything:
        seconds a row, peak memory of a device, number of devices, and money where there are prices.
        Fastest first."""
        fitting = [trial for trial in self.trials if trial.fits]
        return tuple(
            trial for trial in fitting if not any(rival.is_better(trial) for rival in fitting)
        )

    @property
    def least_memory(self) -> Trial:
        """The compiled trial that fits with the least peak memory: the best itself, or an
        alternative to it.

        Raises ValueError where none fits.
        """
        return min((self.best, *self.front), key=lambda trial: trial.plan.peak)  # type: ignore[union-attr]

    @property
    def least_money(self) -> Trial:
        """The compiled trial that fits with the least money for a row. Raises ValueError where none
        fits, or without prices."""
        if self.best.money is None:
            raise ValueError(
                "suggest: no costs without price=; give the price of a device for an hour"
            )
        return min((self.best, *self.front), key=lambda trial: trial.money or 0.0)

    @property
    def mesh(self) -> Mesh:
        """The mesh of the best trial."""
        assert self.best.mesh is not None
        return self.best.mesh

    @property
    def rules(self) -> ShardingRules:
        """The rules of the best trial, to be read, edited, saved and applied."""
        assert self.best.rules is not None
        return self.best.rules

    @property
    def plan(self) -> Plan:
        """The plan of the best trial."""
        assert self.best.plan is not None
        return self.best.plan

    def to_json(self) -> str:
        """Returns all trials as JSON, in their order: name, family, target, chips, rows, precision,
        seconds, peak bytes, moved bytes, money of a thousand rows, keywords, whether it fits and is
        on the front, and the reason."""
        front = set(map(id, self.front))
        names = ("name", "family", "target", "chips", "rows", "seconds", "money", "fits", "reason")
        rows = [
            {name: getattr(trial, name) for name in names}
            | {
                "peak": trial.plan and trial.plan.peak,
                "moved": trial.plan and trial.plan.moved_bytes,
            }
            | {"precision": precision_name(trial.precision), "front": id(trial) in front}
            | {"keywords": {name: str(value) for name, value in trial.keywords.items()}}
            for trial in self.trials
        ]
        return json.dumps({"measure": self.measure, "trials": rows}, indent=1)

    def __rich__(self) -> Any:
        return VIEWS["table"]().ranked(self)

    def __repr__(self) -> str:
        return text_of(self)


def precision_name(policy: Any) -> str:
    """The dtype that a precision computes in, as "bfloat16"; "as it is" for None."""
    dtype = getattr(policy, "param_dtype", None)
    return "as it is" if dtype is None else str(dtype).removeprefix("torch.")
