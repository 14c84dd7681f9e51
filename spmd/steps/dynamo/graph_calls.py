"""A graph of Dynamo as one op of the lazy graph, or, where it cannot be one, op by op.

The graph is recorded once for each layout of its inputs, under the user's lines; Dynamo's guards
say when it is another graph.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import GraphModule

from ...core import BodyError, XlaTensor, counters, storage_of
from ...core.extend import body, walks
from ...loops.recorded_call import RecordedFunction
from ...loops.recorded_ops import of_tensors, settings, signature
from .calls import left_on_error
from .lines import WithLines, place_of

# A graph that is met with more layouts than these (lengths of a dynamic dim) runs op by op with the
# others.
_MOST = 16


# Functions with the same result each time, if all their arguments are written in the graph.
_CONSTANTS = frozenset(
    {torch.tensor, torch.scalar_tensor, torch.zeros, torch.ones, torch.full, torch.arange}
)


class GraphCall:
    """The function that Dynamo calls in place of a graph."""

    def __init__(self, graph_module: GraphModule):
        self.graph_module = graph_module
        self._why_not = _why_not(graph_module)
        self._calls: dict[Any, RecordedFunction] = {}
        if self._why_not:
            self._tell(self._why_not)

    def __call__(self, *inputs: Any) -> Any:
        """Records the graph's results for these inputs."""
        tensors = [value for value in inputs if type(value) is XlaTensor]
        # Data with a dim that is marked as dynamic stays padded from op to op, so one program has
        # all lengths.
        if (
            self._why_not
            or body.names.value
            or any(walks.is_unpadded(storage_of(tensor).value) for tensor in tensors)
        ):
            return self._op_by_op(inputs)
        key = settings(), *map(_key, inputs)
        call = self._calls.get(key)
        if call is None:
            if len(self._calls) == _MOST:
                return self._op_by_op(inputs)
            try:
                call = RecordedFunction("spmd.call", of_tensors(self._with_lines, inputs), tensors)
            except (NotImplementedError, BodyError) as error:
                self._why_not = str(error)
                self._tell(self._why_not)
                return self._op_by_op(inputs)
            self._calls[key] = call
        return call(tensors)

    def _op_by_op(self, inputs: Sequence[Any]) -> Any:
        with left_on_error():
            return self.graph_module(*inputs)

    def _with_lines(self, inputs: Sequence[Any]) -> Any:
        with left_on_error():
            return WithLines(self.graph_module).run(*inputs)

    def _tell(self, reason: str) -> None:
        file, line, _ = place_of(
            next((node for node in self.graph_module.graph.nodes if node.stack_trace), None)
        )
        counters.add_note(
            f"torch.compile: a graph from {file}:{line} is recorded op by op: {reason}"
        )


def _key(value: Any) -> Any:
    return signature(value) if type(value) is XlaTensor else (type(value), value)


def _why_not(graph_module: GraphModule) -> str:
    """Returns the reason why a graph cannot be one op, as far as the graph shows it; "" if there is
    none."""
    for node in graph_module.graph.nodes:
        value = node.meta.get("example_value")
        if (
            isinstance(value, torch.Tensor)
            and value.device.type != "xla"
            and node.target not in _CONSTANTS
        ):
            return f"it has a tensor on {value.device} ({node.name})"
        if isinstance(value, (torch.SymFloat, float)) and node.op == "placeholder":
            return f"it has a number among its inputs ({node.name})"
    return ""
