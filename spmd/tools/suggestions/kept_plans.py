"""The plans of a search in a file, so that one that was stopped goes on."""

import hashlib
import json
import os
from pathlib import Path

import jaxlib

from ..planning.report import Plan
from .candidates import Model


class KeptPlans:
    """Plan by candidate, in a JSON file; nothing is kept without one.

    Raises ValueError for a file of another search: of a model with other parameters, or other inputs, or another
    jaxlib.
    """

    def __init__(self, file: str | Path | None, model: Model):
        self.path = None if file is None else Path(file)
        self.search, self.plans = _digest(model), dict[str, str]()
        if self.path is None or not self.path.exists():
            return
        try:
            content = json.loads(self.path.read_text())
            search, plans = content["search"], dict(content["plans"])
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"suggest: {self.path} is no file of a search ({error}); delete it") from error
        if search != self.search:
            raise ValueError(
                f"suggest: {self.path} is of another search: another model, batch or jaxlib; give another file"
            )
        self.plans = plans

    def plan(self, key: str) -> Plan | None:
        """The plan of a candidate, if it was compiled before."""
        return Plan.from_json(self.plans[key]) if key in self.plans else None

    def keep(self, key: str, plan: Plan) -> None:
        """Adds a plan and writes the file."""
        if self.path is None:
            return
        self.plans[key] = plan.to_json()
        unfinished = self.path.with_name(self.path.name + ".new")
        unfinished.write_text(json.dumps({"search": self.search, "plans": self.plans}))
        os.replace(unfinished, self.path)


def _digest(model: Model) -> str:
    """The digest of the parameters' names, shapes and dtypes, of the inputs and of the compiler's version."""
    parameters = [(name, tuple(one.shape), str(one.dtype)) for name, one in model.flow.model.named_parameters()]
    facts = (parameters, model.rows, model.length, jaxlib.__version__)
    return hashlib.sha256(repr(facts).encode()).hexdigest()
