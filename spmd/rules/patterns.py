"""Patterns of paths: a glob whose `*` stays within one part of a name and whose `{8..11}` is a
range of numbers, or a regular expression after `re:`."""

import difflib
import functools
import re
from collections.abc import Sized
from typing import Any, NamedTuple

REGEX = "re:"
_SITE = re.compile(r"(?P<path>.*):(?P<side>input|output)(?P<at>(?:\[[^\[\]]*\])*)", re.DOTALL)


class HookSite(NamedTuple):
    """The place of an activation: the inputs or outputs of a module, and one tensor of them.

    key_path: the positions and names that lead to the tensor; empty: every tensor of the spec's
    rank.
    """

    path: str
    side: str
    key_path: tuple[int | str, ...] = ()

    def __str__(self) -> str:
        return f"{self.path}:{self.side}{''.join(f'[{step}]' for step in self.key_path)}"

    def part(self, spec: Sized) -> tuple[Any, ...]:
        """The tensors of a module that a rule with this spec is for; the first rule for the same
        ones counts."""
        return self.side, self.key_path, None if self.key_path else len(spec)


def site_of(pattern: str) -> HookSite | None:
    """The site of a pattern; None for a pattern of parameters."""
    match = _SITE.fullmatch(pattern)
    if match is None:
        return None
    steps = re.findall(r"\[([^\[\]]*)\]", match["at"])
    return HookSite(
        match["path"], match["side"], tuple(int(step) if step.isdigit() else step for step in steps)
    )


def near_site(pattern: str) -> str | None:
    """The site closest to a misspelt one; None for a pattern of parameters."""
    path, colon, side = pattern.rpartition(":")
    close = (
        difflib.get_close_matches(side.partition("[")[0], ("input", "output"), n=1) if colon else []
    )
    return (
        f"{path}:{close[0]}{side[len(side.partition('[')[0]) :]}"
        if close and f"{path}:" != REGEX
        else None
    )


def matches(pattern: str, path: str) -> bool:
    """True if the pattern matches the full path.

    >>> (
    ...     matches("layers.*.weight", "layers.3.weight"),
    ...     matches("layers.*", "layers.3.weight"),
    ...     matches("**", "a.b"),
    ... )
    (True, False, True)
    >>> matches("*.{q,k}_proj", "0.k_proj"), matches(r"re:layers\\.[0-3]\\..*", "layers.3.weight")
    (True, True)
    >>> matches("layers.{8..11}", "layers.10"), matches("layers.{8..11}", "layers.1")
    (True, False)
    """
    if not path:  # the root: its path has no part that one `*` could match
        return pattern in ("", "**", f"{REGEX}.*", REGEX)
    return _compiled(pattern).fullmatch(path) is not None


def check(pattern: str) -> None:
    """Raises ValueError for a pattern that cannot be read."""
    try:
        _compiled(pattern)
    except (re.error, ValueError, OverflowError, RecursionError) as error:
        raise ValueError(
            f"ShardingRules: the pattern {pattern!r} cannot be read: {error}"
        ) from None


@functools.lru_cache(4096)
def _compiled(pattern: str) -> re.Pattern[str]:
    if pattern.startswith(REGEX):
        return re.compile(pattern.removeprefix(REGEX))
    return re.compile(_translated(pattern))


_TOKEN = re.compile(
    r"(\{\d+\.\.\d+\}|\*\*\.|\.\*\*$|\*\*|\*|\?|\[!?[^\]]+\]|\{|\}|,)|([^*?\[{},.]+|.)", re.DOTALL
)


def _translated(glob: str) -> str:
    """The regular expression of a glob. `**.` and a last `.**` match the empty text, too."""
    depth, parts = 0, []
    for token, text in _TOKEN.findall(glob):
        depth += {"{": 1, "}": -1}.get(token, 0)
        if depth < 0:
            raise re.error("a } without its {")
        if token.startswith("{") and token != "{":
            first, last = map(int, token[1:-1].split(".."))
            if last < first:
                raise re.error(f"the range {token} ends before it begins")
            if last - first >= _LONGEST:
                raise re.error(f"the range {token} has more than {_LONGEST:,} numbers")
            parts.append(f"(?:{'|'.join(map(str, range(first, last + 1)))})")
        elif token.startswith("["):
            inner = token[1:-1]
            parts.append(f"[{'^' if inner.startswith('!') else ''}{inner.removeprefix('!')}]")
        elif token == ",":
            parts.append("|" if depth else ",")
        elif token:
            parts.append(_GLOB[token])
        else:
            parts.append(re.escape(text))
    if depth:
        raise re.error("a { without its }")
    return "".join(parts)


_LONGEST = 10_000  # numbers of a range
_GLOB = {
    "**.": r"(?:.*\.)?",
    ".**": r"(?:\..*)?",
    "**": r".*",
    "*": r"[^.]*",
    "?": r"[^.]",
    "{": "(?:",
    "}": ")",
}
