"""The sync: the choice of what runs, on which devices, and in which programs."""

# A sync goes through: collect (live storages whose value is pending, of this thread), initialize
# (values that depend on constants and draws alone), schedule (one subgraph for each mesh), prepare
# (the passes, until the graph has a program), launch (PJRT runs asynchronously), and take up (each
# storage gets its result as device data). A failure stops at the step where it is met: what could
# not be compiled stays recorded, what was lost with a donated buffer is named.
#
# Why initial values run by themselves: a first step that also made its parameters would be another
# program than every later step, so that each training would compile its largest program twice.
#
# Why storages are taken in the order in which their values were recorded: a first step creates an
# optimizer's state, and a later one only writes it. Ordered by creation, the two would be two
# programs with the same ops.
#
# Why inputs are donated only if nothing else holds them: XLA writes a result over an argument's
# memory, which halves the memory of a step; a tensor that the user has kept must not change behind
# their back.
#
# Why signals and exceptions wait from the start of a sync to its end: between launch and take up
# the old values are gone and the new ones have no holder. An exception there would lose a model.
#
# Why all processes take the same decisions (`spmd/tools/processes`): each program is one of all of
# them, and a collective that only some of them enter never ends. So every new program is compared
# before it is compiled.
