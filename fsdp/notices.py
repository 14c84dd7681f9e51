"""One warning for what is accepted and has no meaning here: it names what takes its place."""

import difflib
import warnings
from collections.abc import Iterable, Mapping

# What takes the place of what other implementations leave to the user.
SCHEDULED = "XLA schedules the collectives of the whole step"
REDUCED = "gradients are reduced in every backward and add up exactly; no partial sum outlives a program"
ONE_VIEW = "there is one global view of the model, and no rank or process group"


def warn_without_meaning(caller: str, reasons: Mapping[str, str], *, stacklevel: int = 3) -> None:
    """Warns once of names that change nothing; reasons: by name, what takes its place."""
    if reasons:
        said = "; ".join(f"{name} ({reason})" for name, reason in reasons.items())
        warnings.warn(f"{caller}: accepted, but changes nothing here: {said}", UserWarning, stacklevel=stacklevel)


def unknown_keyword(caller: str, name: str, known: Iterable[str]) -> TypeError:
    """The error for a keyword that nobody knows."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else f"; expected some of {', '.join(names)}"
    return TypeError(f"{caller}: got an unexpected keyword argument {name!r}{hint}")
