"""The lazy graph as data."""

# A value is in one of three states, each a class of `graph.py`: device data (a buffer, a row of a
# store, or host data that is not uploaded yet), a node (an op that was recorded and has not run),
# or a tuple element (one result of such a node). A run puts device data into the storages that hold
# nodes; nothing here is ever changed back.
#
# Why nodes are made of an op spec and the rest: what is the same each time (name, rule, layouts,
# sharding) is interned, so that a graph's key is a walk that compares objects, and its digest is
# the same text in every process. Numbers that differ each time (a learning rate, a draw's key) are
# no part of it: they travel next to the program, or each would compile another one.
#
# Why a sharding is an op, or a property of an input or result, and never of a node in general:
# GSPMD and Shardy take constraints between ops, and jit takes shardings of arguments; a third form
# would have to become one of the two.
#
# Why graphs are copied by passes, not changed: the graph as it was recorded stays the key of the
# cache and the text of errors, while what is compiled may have loops in place of its layers.
