"""The warning for keywords and methods that are accepted and change nothing here; it names what takes their place."""

import difflib
import warnings
from collections.abc import Iterable, Mapping

# Reasons: the mechanism that takes the place of a setting of other implementations.
SCHEDULED = "XLA schedules the collectives of the whole step"
REDUCED = "set_requires_gradient_sync says which backward passes reduce gradients"
ONE_VIEW = "there is one global view of the model, and no rank or process group"


def warn_without_meaning(caller: str, reasons: Mapping[str, str], *, stacklevel: int = 3) -> None:
    """Warns once of names that change nothing; reasons: name -> the mechanism that takes its place."""
    if reasons:
        listed = "; ".join(f"{name} ({reason})" for name, reason in reasons.items())
        warnings.warn(f"{caller}: accepted, but changes nothing here: {listed}", UserWarning, stacklevel=stacklevel)


def unknown_keyword(caller: str, name: str, known: Iterable[str]) -> TypeError:
    """The error for a keyword that is neither ours nor another library's."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else f"; expected some of {', '.join(names)}"
    return TypeError(f"{caller}: got an unexpected keyword argument {name!r}{hint}")
