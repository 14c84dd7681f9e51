"""Hints of error messages: the known name that is nearest to an unknown one."""

import difflib
from collections.abc import Iterable


def did_you_mean(
    name: object, choices: Iterable[str], form: str = "; {}", *, cutoff: float = 0.6
) -> str:
    """Returns the question for the name that was meant, in the form; empty where no known name is
    near.

    >>> did_you_mean("modle", ("data", "model")), did_you_mean("seq", ("data", "model"))
    ("; did you mean 'model'?", '')
    """
    near = difflib.get_close_matches(str(name), list(choices), n=1, cutoff=cutoff)
    return form.format(f"did you mean {near[0]!r}?") if near else ""
