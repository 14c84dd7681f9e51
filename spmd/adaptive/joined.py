"""The points of the core that this package joins: passes, what runs between two ops, a graph's run."""

from ..core import points
from ..core.extend import Pass
from . import changing, iteration_counts, lm_head, shared_programs, unsynced

points.PASSES.join(
    Pass("cut changing again", shared_programs.changing_again, processes=True, threads=False), before="pad again"
)
# Iterations whose number differs from run to run: one loop with a dynamic trip count.
points.PASSES.join(Pass("scan iterations", iteration_counts.scan), before="cut long")
# A graph of many iterations: several programs.
points.PASSES.join(Pass("cut iterations", shared_programs.between_iterations, plans=True), before="cut long")
# A sync whose graph keeps changing with the data: programs of a few ops, which its graphs share.
points.PASSES.join(Pass("cut changing", shared_programs.changing_graph, threads=False))
# Large logits that only a loss reads: computed in chunks of classes.
points.COMPILE_PASSES.append(("fuse LM heads", lm_head.fuse))
points.between_ops.append(unsynced.run_iterations)
points.on_schedule.append(changing.note_run)
