"""Arguments of public functions against their annotations, once a call has failed.

Nothing is checked in a call that succeeds: annotations of Python are no contract, and what fits by
its methods alone works as well.
"""

import functools
import inspect
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

# Errors of Python's own where an argument is of another kind than the code expects.
_RAW = (TypeError, AttributeError, LookupError)
_OWN = re.compile(r"[\w.]+: ")  # how sentences of this library begin
_SELF = ("self", "cls")


@functools.lru_cache(1024)
def _hints(function: Callable[..., Any]) -> Mapping[str, Any]:
    try:
        return typing.get_type_hints(function)
    except NameError:  # a name that is imported for type checkers alone
        return {}


def _fits(value: object, hint: Any) -> bool:
    """True unless a value is certainly no instance of a hint."""
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    for kind in typing.get_args(hint) if is_union else (hint,):
        plain = typing.get_origin(kind) or kind
        if plain in (None, types.NoneType):
            found = value is None
        elif plain is Any or not isinstance(plain, type) or getattr(plain, "_is_protocol", False):
            return True  # or a literal, or a variable
        else:
            found = isinstance(value, (plain, int) if plain is float else plain)
            match typing.get_args(kind):
                case [of] | [of, types.EllipsisType()] if isinstance(value, (Sequence, Set)):
                    found = found and all(_fits(element, of) for element in value)
        if found:
            return True
    return False


def check(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], error: Exception
) -> None:
    """Raises TypeError for an argument that is no instance of its annotation, where an error of
    Python's own came of it."""
    if not isinstance(error, _RAW) or _OWN.match(str(error)):
        return
    name = re.sub(r"\.__(init|new)__$", "", function.__qualname__)
    signature = inspect.signature(function)
    try:
        given = signature.bind(*args, **kwargs).arguments
    except TypeError:  # Python's sentence names what is missing, or one too many
        takes = [
            f"{parameter.name}=" if parameter.kind is parameter.KEYWORD_ONLY else parameter.name
            for parameter in signature.parameters.values()
            if parameter.name not in _SELF
        ]
        raise TypeError(f"{error}; it takes {', '.join(takes) or 'none'}") from None
    hints = _hints(function)
    for parameter, value in given.items():
        is_one = signature.parameters[parameter].kind not in (
            inspect.Parameter.VAR_POSITIONAL,
            inspect.Parameter.VAR_KEYWORD,
        )
        hint = hints.get(parameter, Any)
        if is_one and parameter not in _SELF and not _fits(value, hint):
            words = re.sub(r"\b(?:\w+\.)+(?=\w)", "", inspect.formatannotation(hint))
            raise TypeError(
                f"{name}: expected {parameter} as {words}, got {type(value).__name__} "
                f"({type(error).__name__}: {error})"
            ) from None
    # A function that is passed on together with its arguments, as the step of a plan.
    match [p for p in signature.parameters.values() if p.name not in _SELF]:
        case [step, passed, *_] if passed.kind is passed.VAR_POSITIONAL and "missing" in str(error):
            call = f"{name}({step.name}, *{passed.name})"
            raise TypeError(f"{name}: {error}; write {call}") from None
