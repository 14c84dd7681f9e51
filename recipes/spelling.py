"""Numbers and how they are spelled in English, as tokens: those of 417 are "4@2 1@1 7@0", each
digit with its place, and "four hundred seventeen". Not here: any model.
"""

import zlib
from collections.abc import Iterator

import torch
from torch import Tensor

ONES = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
]
TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
PLACES = [f"{digit}@{place}" for place in range(6) for digit in range(10)]
TOKENS = ["<pad>", "</s>", *PLACES, *ONES, *TENS, "hundred", "thousand"]
PAD, END = 0, 1
IDS = {token: number for number, token in enumerate(TOKENS)}
IGNORED = -100  # the label of padding (torch's cross_entropy)


def spelled(number: int) -> list[str]:
    """Returns the words of a number below a million."""
    if number < 20:
        return [ONES[number]]
    if number < 100:
        return [TENS[number // 10 - 2], *(spelled(number % 10) if number % 10 else [])]
    unit, name = (100, "hundred") if number < 1000 else (1000, "thousand")
    return [*spelled(number // unit), name, *(spelled(number % unit) if number % unit else [])]


def placed(number: int) -> list[str]:
    """Returns the digits of a number below a million, each with its place."""
    return [f"{digit}@{place}" for place, digit in reversed([*enumerate(reversed(str(number)))])]


def is_heldout(number: int) -> bool:
    """Returns True for the tenth of the numbers that no training batch has."""
    return zlib.crc32(str(number).encode()) % 10 == 0


def padded(rows: list[list[str]], padding: int) -> Tensor:
    """Returns rows of tokens, each with its end, as one tensor as long as the longest."""
    longest = max(map(len, rows)) + 1
    return torch.tensor(
        [
            [*(IDS[token] for token in row), END, *[padding] * (longest - len(row) - 1)]
            for row in rows
        ]
    )


def encoded(numbers: list[int]) -> dict[str, Tensor]:
    """Returns a batch as transformers' encoder-decoders take it: input_ids, attention_mask,
    labels."""
    ids = padded([placed(number) for number in numbers], PAD)
    labels = padded([spelled(number) for number in numbers], IGNORED)
    return {"input_ids": ids, "attention_mask": (ids != PAD).long(), "labels": labels}


def decoded(ids: Tensor) -> list[str]:
    """Returns the words of each row, up to its end."""
    rows = [row[: row.index(END)] if END in row else row for row in ids.tolist()]
    return [" ".join(TOKENS[token] for token in row if token not in (PAD, IGNORED)) for row in rows]


def drawn(count: int, digits: int, generator: torch.Generator, *, heldout: bool) -> list[int]:
    """Returns random numbers of so many digits."""
    numbers: list[int] = []
    while len(numbers) < count:
        found = torch.randint(
            10 ** (digits - 1), 10**digits, (count,), generator=generator
        ).tolist()
        numbers += [number for number in found if is_heldout(number) == heldout]
    return numbers[:count]


def batches(*, batch: int, seed: int) -> Iterator[dict[str, Tensor]]:
    """Yields training batches for ever; the numbers of a batch have equally many digits, two to
    six, and so similar lengths."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        digits = int(torch.randint(2, 7, (), generator=generator))
        yield encoded(drawn(batch, digits, generator, heldout=False))


def heldout(*, batch: int, count: int) -> list[dict[str, Tensor]]:
    """Returns batches of numbers of three to six digits that no training batch has; the same for
    any seed."""
    generator = torch.Generator().manual_seed(0)
    per_length = [
        drawn(batch * count // 4 + 1, digits, generator, heldout=True) for digits in range(3, 7)
    ]
    numbers = [number for mixed in zip(*per_length, strict=True) for number in mixed]
    return [encoded(numbers[at : at + batch]) for at in range(0, batch * count, batch)]
