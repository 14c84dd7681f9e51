"""Functions that are in a registration point while a flag is on."""

from typing import Any

from .config import WHEN_SET, config


def join_while(flag: str, point: list[Any], function: Any) -> None:
    """Keeps a function in a registration point while a flag is on, or always ("")."""

    def follow(value: Any) -> None:
        if function in point:
            point.remove(function)
        if value:
            point.append(function)

    WHEN_SET.setdefault(flag, []).append(follow)
    follow(getattr(config, flag, True))
