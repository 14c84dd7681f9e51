"""Versions of dicts: every write of another object is seen, whatever method makes it."""

import random
from collections import OrderedDict, defaultdict
from typing import Any

import pytest
import torch

from spmd.steps.replay.guards import OF_ATTRIBUTES, DictVersions


def contents(box: dict[Any, Any]) -> list[tuple[int, int]]:
    return [(id(key), id(value)) for key, value in dict.items(box)]


WRITES: dict[str, Any] = {
    "item": lambda box, key, value: box.__setitem__(key, value),
    "del": lambda box, key, value: box.pop(key, None),
    "update": lambda box, key, value: box.update({key: value}),
    "keywords": lambda box, key, value: box.update(**{key: value}),
    "pairs": lambda box, key, value: box.update([(key, value)]),
    "several": lambda box, key, value: box.update(dict.fromkeys("abcdefgh", value)),
    "or": lambda box, key, value: box.__ior__({key: value}),
    "setdefault": lambda box, key, value: box.setdefault(key, value),
    "popitem": lambda box, key, value: box and box.popitem(),
    "clear": lambda box, key, value: box.clear(),
    "both": lambda box, key, value: box.update({key: value}, a=value),
    "copy of a copy": lambda box, key, value: box.update({key: value}.copy()),
}


@pytest.mark.parametrize(
    "kind", [dict, OrderedDict, lambda: defaultdict(list)], ids=["dict", "ordered", "default"]
)
def test_writes(kind: Any) -> None:
    draws = random.Random(0)
    for _ in range(200):
        box = kind()
        known = [object() for _ in range(3)]
        for _ in range(8):
            before, was = DictVersions([box]).now(), contents(box)
            name = draws.choice(list(WRITES))
            WRITES[name](box, draws.choice("abc"), draws.choice(known))
            if contents(box) != was:
                assert DictVersions([box]).now() != before, name
            after = DictVersions([box]).now()
            list(box.items()), box.get("a"), "a" in box, len(box)
            assert DictVersions([box]).now() == after, "a read"


def test_the_dict_that_was_written() -> None:
    boxes: list[dict[Any, Any]] = [{"a": object()} for _ in range(3)]
    versions = DictVersions(boxes)
    for write in (
        lambda: boxes[1].update(a=object()),
        lambda: boxes[1].clear(),
        lambda: boxes[1].update({"b": object()}),  # a copy, which Dynamo does not count
    ):
        then = versions.now()
        write()
        assert versions.now() != then
        assert versions.written_since(then) == [False, True, False]


@pytest.mark.skipif(
    not OF_ATTRIBUTES, reason="assignments to attributes pass the dict by: guards compare them"
)
def test_attributes() -> None:
    class Plain:
        pass

    for owner in (Plain(), torch.nn.Linear(1, 1), torch.nn.Parameter(torch.ones(1))):
        for write in (
            lambda: setattr(owner, "own", object()),  # noqa: B023
            lambda: setattr(owner, "own", object()),  # noqa: B023
            lambda: vars(owner).update(own=object()),  # noqa: B023
            lambda: delattr(owner, "own"),  # noqa: B023
        ):
            before = DictVersions([vars(owner)]).now()
            write()
            assert DictVersions([vars(owner)]).now() != before
