"""Graph passes, in their order.

A pass returns a changed graph, a cut into several programs, or the reason for neither
(`pass_result`); the checker checks changed graphs. `run/prepare.py` runs both lists: PASSES on each
new graph of a sync, until it has a known program; COMPILE_PASSES on a graph that is to be compiled.
Packages join both (`spmd.adaptive`).
"""

from . import cuts, equal_masks, list_elements, long_lists, pass_result, scan_layers
from .pass_result import EXPORT_PASSES as EXPORT_PASSES
from .pass_result import Pass, Passes

PASSES = Passes(
    [
        # A graph that was cut before: decided by its key.
        Pass("cut long again", cuts.long_again, processes=True),
        # List ops of thousands of tensors: programs of some hundred elements each.
        Pass("cut lists again", long_lists.cut_again, processes=True, threads=False, plans=True),
        Pass("cut lists", long_lists.cut, processes=True, threads=False, plans=True),
        # A long graph: several programs.
        Pass("cut long", cuts.long, processes=True, plans=True),
    ]
)

COMPILE_PASSES = pass_result.COMPILE_PASSES = [
    # A mask that layers share: one, in front of their loop.
    ("equal masks", equal_masks.once, {equal_masks.KNOWN_MASK}),
    # Isomorphic layers: one op, a loop, with their weights as rows of stacks. What is read only
    # behind it: computed before it, where that is cheaper to keep.
    (cuts.SCAN, scan_layers.scan, None),
    # Elements of list ops on the host: loops that fetch a row at a time.
    ("loops over rows", list_elements.loops_over_rows, None),
]
