"""A graph of Dynamo run op by op, each under the user's line that it comes from."""

import functools
import re
from types import CodeType
from typing import Any

from torch.fx import GraphModule, Interpreter

from ...core.extend import user_lines

_FRAME = re.compile(r'File "([^"\n]+)", line (\d+), in (\S+)')


def place_of(node: Any) -> tuple[str, int, str]:
    """Returns the file, line and function of the user's innermost line behind a node of a graph."""
    innermost = ("unknown file", 0, "unknown")
    for file, line, name in _FRAME.findall(node.stack_trace or "") if node is not None else ():
        if not user_lines.is_library(_code(file, int(line), name)):
            innermost = file, int(line), name
    return innermost


@functools.cache
def _code(file: str, line: int, name: str) -> CodeType:
    """Returns code that calls `run()` as if at a user's line."""
    return compile("\n" * (line - 1) + "run()", file, "exec").replace(co_name=name)


class WithLines(Interpreter):
    """Runs a graph with each op at the user's line that it comes from."""

    def __init__(self, graph_module: GraphModule):
        super().__init__(graph_module)
        self.extra_traceback = False

    def run_node(self, n: Any) -> Any:
        file, line, name = place_of(n)
        if not line:
            return super().run_node(n)
        result: list[Any] = []
        # A frame with this line.
        exec(_code(file, line, name), {"run": lambda: result.append(Interpreter.run_node(self, n))})
        return result[0]
