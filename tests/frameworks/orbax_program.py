"""A program of JAX and orbax alone: `python jax_program.py FOLDER`. It reads `FOLDER/ours`, checks
its values, and writes `FOLDER/theirs` in shardings of its own."""

import sys

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from jax.sharding import NamedSharding, PartitionSpec

assert "torch" not in sys.modules and "spmd" not in sys.modules
folder = sys.argv[1]
mesh = jax.make_mesh((4,), ("x",), devices=jax.devices()[:4])
rows, columns = (NamedSharding(mesh, PartitionSpec(*spec)) for spec in (("x", None), (None, "x")))

tree = ocp.StandardCheckpointer().metadata(f"{folder}/ours").item_metadata.tree
assert tree["opt"]["state"]["0"]["exp_avg"].shape == (8, 12), tree


def struct(leaf, sharding):
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


target = jax.tree.map(
    lambda leaf: struct(leaf, NamedSharding(mesh, PartitionSpec())), tree["params"]
)
target["first"]["weight"] = struct(tree["params"]["first"]["weight"], columns)
args = jax.tree.map(
    lambda leaf: ocp.ArrayRestoreArgs(sharding=leaf.sharding, dtype=leaf.dtype), target
)
how = ocp.args.PyTreeRestore(
    item={"params": target}, restore_args={"params": args}, partial_restore=True
)
params = ocp.PyTreeCheckpointer().restore(f"{folder}/ours", args=how)["params"]
weight = params["first"]["weight"]
assert isinstance(weight, jax.Array) and weight.sharding == columns and weight.dtype == jnp.bfloat16
assert (weight.astype(jnp.float32) == jnp.arange(96.0).reshape(8, 12)).all()
assert params["uneven"].shape == (10,) and (params["uneven"] == jnp.arange(10)).all()

whole = ocp.PyTreeCheckpointer().restore(f"{folder}/even")  # in the shardings that were saved
assert (
    whole["first.weight"].sharding.spec == PartitionSpec("fsdp")
    and whole["uneven"].sharding.is_fully_replicated
)
written = {
    "params": {
        "first": {"kernel": jax.device_put(jnp.arange(96.0).reshape(8, 12) * 2, rows)},
        "uneven": jnp.arange(10) + 0.5,
    },
    "step": jnp.array(7),
}
with ocp.CheckpointManager(f"{folder}/theirs") as manager:
    manager.save(5, args=ocp.args.StandardSave(written))
