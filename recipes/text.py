"""Text that every Python has, as bytes: the documentation inside `pydoc_data.topics`, and source
code of its library.

Lives here: the text, its split, batches of it, and the loss of a bigram table. Not here: any model.
"""

import argparse
import inspect
import tarfile
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics

import torch
from torch import Tensor

CODE = (argparse, inspect, tarfile, typing)


@dataclass(frozen=True)
class Text:
    """Two byte tensors (uint8, 1-d) that share no paragraph."""

    train: Tensor
    heldout: Tensor


def load(heldout: float = 0.1) -> Text:
    """Returns Python's topics in sorted order, the last `heldout` of them set aside.

    Some topics quote others in full (`specialnames` holds `customization`). A paragraph is kept
    where it first appears only, so that no held-out paragraph was seen in training.
    """
    return split([topics[name] for name in sorted(topics)], heldout)


def load_code(heldout: float = 0.1) -> Text:
    """Returns the source of some modules of Python's library, the last `heldout` of it set
    aside."""
    return split([Path(module.__file__).read_text("utf-8") for module in CODE], heldout)


def split(pages: list[str], heldout: float) -> Text:
    """Returns the paragraphs of pages, each where it appears first, with the last `heldout` of them
    set aside."""
    paragraphs = "\n\n".join(pages).split("\n\n")
    once = dict.fromkeys(paragraph.strip("\n") for paragraph in paragraphs if paragraph.strip())
    text = torch.frombuffer(bytearray("\n\n".join(once), "utf-8"), dtype=torch.uint8)
    cut = int(len(text) * (1 - heldout))
    return Text(train=text[:cut], heldout=text[cut:])


def batches(
    text: Tensor, *, batch: int, sequence: int, seed: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields random (tokens, targets) for ever, each int64 (batch, sequence); the same seed gives
    the same batches."""
    generator = torch.Generator().manual_seed(seed)
    offsets = torch.arange(sequence + 1)
    while True:
        starts = torch.randint(len(text) - sequence, (batch, 1), generator=generator)
        windows = text[starts + offsets].long()
        yield windows[:, :-1], windows[:, 1:]


def windows(text: Tensor, *, batch: int, sequence: int) -> list[tuple[Tensor, Tensor]]:
    """Returns (tokens, targets) that cover the text once, in batches of one shape.

    The tail that fills no batch is left out.
    """
    span = batch * sequence
    starts = range(0, len(text) - span, span)
    if not starts:
        raise ValueError(
            f"windows: a batch needs {span + 1} bytes of text, there are {len(text)}; use a "
            "smaller batch"
        )
    tokens = text.long()
    return [
        (
            tokens[at : at + span].view(batch, sequence),
            tokens[at + 1 : at + 1 + span].view(batch, sequence),
        )
        for at in starts
    ]


def bigram_loss(text: Text, smoothing: float = 0.1) -> float:
    """Returns the held-out loss, in nats per byte, of a table of how often each byte follows each
    byte.

    `smoothing` is added to every count; 0.1 suits this text better than 1 (2.39 against 2.42).
    """
    counts = torch.bincount(pairs(text.train), minlength=256 * 256).view(256, 256) + smoothing
    log_probabilities = (counts / counts.sum(1, keepdim=True)).log()
    return -log_probabilities.flatten()[pairs(text.heldout)].mean().item()


def pairs(text: Tensor) -> Tensor:
    """Returns every two neighbouring bytes as one number, 256 * first + second."""
    return text[:-1].long() * 256 + text[1:].long()


def decode(tokens: Tensor) -> str:
    """Returns bytes as text, with a replacement character for invalid UTF-8."""
    written = bytes(tokens.tolist()).decode("utf-8", errors="replace")
    return "".join(
        char if char.isprintable() or char in "\n\t" else "\N{REPLACEMENT CHARACTER}"
        for char in written
    )
