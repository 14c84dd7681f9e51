"""The donated argument whose memory each result takes, in programs that also have arrays in the host's memory."""

from typing import Any

from ..base.jax_private import ir
from ..graph.graph import Graph, Port
from ..sharding.value import DEVICE

_ALIAS, _DONOR = "tf.aliasing_output", "jax.buffer_donor"


def alias_by_memory(graph: Graph, module: Any) -> None:
    """Aliases each donated argument with the result that is written over it, and with no other.

    jax pairs donated arguments with results by shape and dtype, in order; it compares their memories only if both are
    named, which they are not where the compiler chooses. Programs with device memory alone stay as jax makes them.
    """
    inputs, outputs = graph.arguments(), graph.results()
    if all(port.sharding is None or port.sharding.memory == DEVICE for port in (*inputs, *outputs)):
        return
    place_of = {port.places: i for i, port in enumerate(outputs)}
    main = next(op for op in module.body.operations if ir.StringAttr(op.attributes["sym_name"]).value == "main")
    arguments = list(ir.ArrayAttr(main.attributes["arg_attrs"]))
    with module.context:
        number = ir.IntegerType.get_signless(32)
        for i, port in enumerate(inputs):
            given: Any = ir.DictAttr(arguments[i])  # jaxlib's stubs omit that it is iterable
            known = {named.name: named.attr for named in given}
            known.pop(_ALIAS, None)
            known.pop(_DONOR, None)
            place = place_of.get(_written_over(graph, port)) if port.is_donated else None
            if place is not None:
                known[_ALIAS] = ir.IntegerAttr.get(number, place)
            arguments[i] = ir.DictAttr.get(known)
        main.attributes["arg_attrs"] = ir.ArrayAttr.get(arguments)


def _written_over(graph: Graph, port: Port) -> Any:
    """Returns the places of the roots that take an argument's memory (see `Graph.stacked`)."""
    if isinstance(port.places, int):
        return graph.onto[port.places]
    return tuple(graph.onto[place] if graph.donated[place] else ~place for place in port.places)
