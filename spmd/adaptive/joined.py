"""The points of the core that this package joins: passes, marks of tensors, what runs between two
ops, each run."""

from functools import partial

from ..core import points
from ..core.extend import pass_result
from . import changing, lm_head, loop_copies, unsynced
from .padding import learning, marks
from .padding import padded_windows as padded_windows
from .padding import sums as sums

# A graph that was cut or padded before: decided by its key.
points.PASSES.join(
    pass_result.Pass("cut changing again", changing.changing_again, processes=True, threads=False),
    successor="cut long",
)
points.PASSES.join(
    pass_result.Pass("pad again", learning.again, processes=True, reads=True), successor="cut long"
)
# A graph of many iterations: several programs.
points.PASSES.join(
    pass_result.Pass("cut iterations", unsynced.between_iterations, plans=True),
    successor="cut long",
)
# Starts, small lists and lengths that differ from run to run: operands of one program.
points.PASSES.join(pass_result.Pass("dynamic starts", learning.starts, reads=True))
points.PASSES.join(pass_result.Pass("on the host", learning.on_host, reads=True))
points.PASSES.join(
    pass_result.Pass("dynamic dims", learning.dims, processes=True, reads=True, plans=True)
)
points.PASSES.join(pass_result.Pass("learn", learning.learn, reads=True))
# A sync whose graph keeps changing with the data: programs of a few ops, which its graphs share.
points.PASSES.join(pass_result.Pass("cut changing", changing.changing_graph, threads=False))
# Large logits that only a loss reads: computed in chunks of classes.
points.COMPILE_PASSES.append(("fuse LM heads", lm_head.fuse, {"spmd.cross_entropy"}))
# A program whose loops copy their stacks: the same without loops.
points.refuse_loops.append(loop_copies.costs_more)
points.between_ops.append(unsynced.run_iterations)
points.on_schedule.append(changing.note_run)
points.keeps_start.append(partial(filter, learning.has_dynamic_dims))
# Dims that the user marks, here or by torch's functions.
points.after_upload.append(marks.keep_marks)
points.AT_FIRST_USE.append(marks.join_marks)
