"""The tensor that users hold, the storage behind it, its views and annotations, and how an aten
call becomes an op."""

# A storage is in one of these states: pending (its value is a recorded node), placed (device data
# with a buffer), on the host (device data that is not uploaded), lent (another holder reads its
# buffer, which no program may donate), or failed (its op could not be compiled; a read tries
# again). Every write gives it a new value and a new stamp: what was read before keeps the value of
# before, as in torch, and no op has to be ordered after another one.
#
# Why a tensor is a wrapper over a storage through a chain of views: torch promises that a write
# through one of them is seen by all. Functions of arrays know no aliases, so a view's op is
# recorded when it is read, and a write through a view rebuilds the base. Only `views.py` knows of
# mutation; what is below it sees pure values.
#
# Why calls are looked up by (operand metas, static arguments): running an op on the meta device,
# binding it to its rule and promoting dtypes takes a hundred times as long as finding its op spec
# again. A miss runs once for each op spec.
#
# Why `calls` is a room of its own above `run`: a copy to the host and a list op of several meshes
# need the values and devices of a sync. `call`, `resolve` and `op_watch` use it and stand above it.
#
# Why one lock for recording and running (`storage.LOCK`): a thread that runs a graph may donate a
# buffer that another is about to read. Compiling, which takes long, is outside of it.
