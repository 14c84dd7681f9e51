"""Finds programs in which XLA's CPU compiler computes a product with a filled matrix wrongly, in their optimised HLO.

If one number fills an operand of a product (`x @ torch.ones(n, n)`, the gradient of a sum) and YNNPACK fuses the
product with its reader, its packing reads beyond that number: the results are arbitrary, or the process ends (jaxlib
0.10.2; `jnp.matmul(x, jnp.full((64, 64), 0.5)).max(-1)` alone shows it). Without these fusions the results are right.
"""

from typing import Any

from .hlo import Module

# Turns off all fusions by YNNPACK; every XLA that makes them knows the option.
WITHOUT_FUSIONS = {"xla_cpu_experimental_ynn_fusion_type": ""}

_FUSION = "__ynn_fusion"
_SAME_VALUES = ("bitcast", "convert", "copy", "reshape", "transpose")


def has_filled_product(executable: Any) -> bool:
    """True for an executable in which a fusion by YNNPACK has a product with an operand that one number fills."""
    text = executable.as_text()
    if _FUSION not in text:
        return False
    module = Module(text)
    lines = [line for computation in module.computations.values() for line in computation.lines]
    fused = {name for line in lines if _FUSION in line.rest for _, name in line.called}
    for name in fused:
        filled: set[str] = set()
        for line in module.computations[name].lines:
            is_broadcast = line.opcode == "broadcast" and "dimensions={}" in line.rest
            if is_broadcast or (line.opcode in _SAME_VALUES and line.operands[0] in filled):
                filled.add(line.name)
            elif line.opcode == "dot" and not filled.isdisjoint(line.operands):
                return True
    return False
