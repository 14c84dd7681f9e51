"""Nested values of a call as JSON: what is rebuilt, what fits, and what an error says."""

import json
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from spmd.steps.exporting.nested_values import describe, matched, rebuild

Pair = namedtuple("Pair", ["left", "right"])


@dataclass
class Batch:
    """A value with fields."""

    rows: Any
    name: str


def described(value: Any) -> tuple[Any, list[tuple[str, torch.Tensor]]]:
    """The description of a value as it comes out of a file, and its tensors."""
    tensors: list[tuple[str, torch.Tensor]] = []
    return json.loads(json.dumps(describe(value, "args", tensors))), tensors


class TestRoundTrip:
    """A value comes back of the same structure; a dataclass or mapping as a dict."""

    @pytest.mark.parametrize(
        "value",
        [
            None, True, 3, "text", 2.5, [], (), {}, [1, (2, [None])], {"a": 1, 3: (4,)},
            Pair(1, [2]), torch.float32, torch.device("cpu"), torch.channels_last,
            torch.Size([2, 3]),
        ],
    )  # fmt: skip
    def test_equal(self, value: Any) -> None:
        description, tensors = described(value)
        result = rebuild(description, lambda index: tensors[index][1])
        assert result == value
        assert matched(description, value, "args") == []

    def test_as_dicts(self) -> None:
        for value in (Batch([1], "first"), OrderedDict(rows=[1], name="first")):
            assert rebuild(described(value)[0], lambda index: None) == {
                "rows": [1],
                "name": "first",
            }

    def test_tensors_with_their_paths(self) -> None:
        x, y, z = (torch.full((2,), float(i)) for i in range(3))
        value = {"pair": Pair(x, [y]), "same": (x, z)}
        description, tensors = described(value)
        assert [path for path, _ in tensors] == [
            "args['pair'].left",
            "args['pair'].right[0]",
            "args['same'][0]",
            "args['same'][1]",
        ]
        result = rebuild(description, lambda index: tensors[index][1])
        assert (
            type(result["pair"]).__name__ == "Pair"
            and result["pair"].left is x
            and result["same"] == (x, z)
        )
        assert [id(tensor) for tensor in matched(description, value, "args")] == [
            id(t) for t in (x, y, x, z)
        ]


class TestDifferences:
    """A value fits the description of its like; an error says where it does not."""

    @pytest.mark.parametrize(
        ("value", "other"),
        [
            ((1, 2), [1, 2]),
            (Pair(1, 2), (1, 2)),
            (Batch(1, "a"), {"rows": 1, "name": "a"}),
            (float("nan"),) * 2,
        ],
    )
    def test_fit(self, value: Any, other: Any) -> None:
        assert matched(described(value)[0], other, "args") == []

    @pytest.mark.parametrize(
        ("value", "other", "message"),
        [
            (
                1,
                1.0,
                (
                    r"args: the program was exported with 1, which is part of the program, got "
                    r"1\.0; call it as"
                ),
            ),
            (1, True, "with 1, .* got True"),
            ([1, 2], [1], r"args: .* a list or tuple of 2, got a list of 1"),
            ([[1]], [2], r"args\[0\]: .* a list or tuple of 1, got 2"),
            ({"a": 1}, {"b": 1}, "args: .* a dict with the keys 'a', got the keys 'b'"),
            ({}, 4, "a dict with the keys none, got 4"),
            ({"a": torch.ones(1)}, {"a": 1}, r"args\['a'\]: .* a tensor, got 1"),
            (1, torch.ones(1), "with 1, .* got a Tensor"),
            (torch.float32, torch.float16, "with 'torch.float32', which is part .* got a dtype"),
        ],
    )
    def test_differ(self, value: Any, other: Any, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            matched(described(value)[0], other, "args")

    def test_unknown_values(self) -> None:
        with pytest.raises(
            TypeError, match=r"export: args\[0\] is a set; a program takes and returns tensors"
        ):
            described([{1}])
        with pytest.raises(
            TypeError, match=r"export: args has the key \(1,\); keys of dicts must be strings"
        ):
            described({(1,): 1})
        with pytest.raises(
            ValueError, match=r"expected the description of a value, got \{'other': 1\}"
        ):
            matched({"other": 1}, 1, "args")
