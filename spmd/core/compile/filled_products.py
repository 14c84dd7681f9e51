"""Finds programs in which XLA's CPU compiler computes a product with a filled matrix wrongly, in their optimised HLO.

If one number fills an operand of a product (`x @ torch.ones(n, n)`, the gradient of a sum) and YNNPACK fuses the
product with its reader, its packing reads beyond that number: the results are arbitrary, or the process ends (jaxlib
0.10.2; `jnp.matmul(x, jnp.full((64, 64), 0.5)).max(-1)` alone shows it). Without these fusions the results are right.
"""

import re
from typing import Any

# Turns off all fusions by YNNPACK; every XLA that makes them knows the option.
WITHOUT_FUSIONS = {"xla_cpu_experimental_ynn_fusion_type": ""}

_FUSIONS = re.compile(r"calls=%([\w.-]+),.*__ynn_fusion")
_OP = re.compile(r"^\s*(?:ROOT )?%(?P<name>[\w.-]+) = \S+ (?P<op>[\w-]+)\((?P<operands>[^)]*)\)(?P<rest>.*)$")
_SAME_VALUES = ("bitcast", "convert", "copy", "reshape", "transpose")


def has_filled_product(executable: Any) -> bool:
    """True for an executable in which a fusion by YNNPACK has a product with an operand that one number fills."""
    text = executable.as_text()
    fusions = set(_FUSIONS.findall(text))
    if not fusions:
        return False
    is_inside, filled = False, set[str]()
    for line in text.splitlines():
        if line.startswith("%"):
            is_inside, filled = line[1:].split(" ", 1)[0] in fusions, set()
        op = _OP.match(line) if is_inside else None
        if op is None:
            continue
        operands = re.findall(r"%([\w.-]+)", op["operands"])
        is_broadcast = op["op"] == "broadcast" and "dimensions={}" in op["rest"]
        if is_broadcast or (op["op"] in _SAME_VALUES and operands[0] in filled):
            filled.add(op["name"])
        elif op["op"] == "dot" and not filled.isdisjoint(operands):
            return True
    return False
