"""Targets by the names under which clouds rent them.

Sources: cloud.google.com/tpu/docs/{v4,v5e,v5p,v6e,tpu7x}, cloud.google.com/compute/docs/gpus,
aws.amazon.com/ec2/instance-types (p4, p5, p6, g6), learn.microsoft.com/azure/virtual-machines
(ND series).
"""

import re
from typing import Any

from ..core import topology

# Chips by their shape. Google counts TensorCores in the names of v2 to v4 and v5p, chips in others.
_FLAT = {1: "1x1", 4: "2x2", 8: "2x4", 16: "4x4", 32: "4x8", 64: "8x8", 128: "8x16", 256: "16x16"}
_DEEP = {
    4: "2x2x1",
    8: "2x2x2",
    16: "2x2x4",
    32: "2x4x4",
    64: "4x4x4",
    128: "4x4x8",
    256: "4x8x8",
    512: "8x8x8",
    1024: "8x8x16",
    2048: "8x16x16",
    4096: "16x16x16",
}
# By the word before the number: the kind, the devices that the number counts a chip, the shapes.
_SLICES: dict[str, tuple[str, int, dict[int, str]]] = {
    "v4": ("v4", 2, _DEEP),
    "v5litepod": ("v5e", 1, _FLAT),
    "v5e": ("v5e", 1, _FLAT),
    "v5p": ("v5p", 2, _DEEP),
    "v6e": ("v6e", 1, _FLAT),
    "tpu7x": ("tpu7x", 1, _DEEP),
}
_MACHINES = {
    "a2-highgpu-8g": "a100:8",
    "a2-ultragpu-8g": "a100:8",
    "a3-highgpu-8g": "h100:8",
    "a3-megagpu-8g": "h100:8",
    "a3-ultragpu-8g": "h200:8",
    "a4-highgpu-8g": "b200:8",
    "g2-standard-96": "l4:8",
    "g6.48xlarge": "l4:8",
    "nd96amsr_a100_v4": "a100:8",
    "nd96asr_v4": "a100:8",
    "nd96isr_h100_v5": "h100:8",
    "nd96isr_h200_v5": "h200:8",
    "p4d.24xlarge": "a100:8",
    "p4de.24xlarge": "a100:8",
    "p5.48xlarge": "h100:8",
    "p5e.48xlarge": "h200:8",
    "p5en.48xlarge": "h200:8",
    "p6-b200.48xlarge": "b200:8",
}
_SLICE = re.compile(r"(?:tpu )?(\w+)-(\d+)")
_MANY = re.compile(r"^\d+x")
_COUNTED = re.compile(r"(\d+)x([a-z]+\d+)")


def target_of(name: Any, function: str) -> Any:
    """Returns the target of a name that a cloud has for it; any other target as it is.

    function: the caller, for errors. Raises ValueError for a kind without a number of devices, and
    for a slice that is not rented.

    >>> from spmd.mesh.rented import target_of
    >>> target_of("v5p-256", "plan"), target_of("8xA100", "plan"), target_of("H100:8", "plan")
    ('v5p:4x4x8', 'a100:8', 'h100:8')
    """
    is_text = isinstance(name, str)
    if not is_text or _MANY.sub("", name).rpartition(":")[0] in topology.GPU_DESCRIPTIONS:
        return name
    word = name.strip().lower().removeprefix("standard_")
    if word in _MACHINES:
        return _MACHINES[word]
    counted = _COUNTED.fullmatch(word)
    if counted and counted[2] in topology.GPU_DESCRIPTIONS:
        return f"{counted[2]}:{counted[1]}"
    word = word.removeprefix("tpu ")
    if (match := _SLICE.fullmatch(word)) and match[1] in _SLICES:
        kind, per_chip, shapes = _SLICES[match[1]]
        sizes = {size * per_chip: f"{kind}:{shape}" for size, shape in shapes.items()}
        if int(match[2]) not in sizes:
            known = ", ".join(f"{match[1]}-{size}" for size in sizes)
            raise ValueError(f"{function}: there is no {name!r}; slices are {known}")
        return sizes[int(match[2])]
    kinds = {kind: shapes for kind, _, shapes in _SLICES.values()}
    if word in kinds:
        shown = ", ".join(f'"{word}:{shape}"' for shape in [*kinds[word].values()][1:5])
        raise ValueError(f"{function}: target {name!r} has no shape: write {shown} or another one")
    if word in topology.GPU_DESCRIPTIONS:
        raise ValueError(f'{function}: target {name!r} has no number: write "{word}:8"')
    return word
