"""Parts of error messages: the known name that is nearest to an unknown one, a list of names, the
kind of a value."""

import difflib
from collections.abc import Iterable
from typing import Any


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


def listed(items: Iterable[Any]) -> str:
    """Returns items as text for a message.

    >>> listed(("data", "model")), listed(())
    ("'data', 'model'", 'none')
    """
    return ", ".join(map(repr, items)) or "none"


def kind_of(value: object) -> str:
    """Returns the kind of a value as text for a message; of a class, how an instance is made.

    >>> kind_of(3), kind_of(dict)
    ('int', 'the class dict; write dict(...)')
    """
    if isinstance(value, type):
        return f"the class {value.__name__}; write {value.__name__}(...)"
    return type(value).__name__
