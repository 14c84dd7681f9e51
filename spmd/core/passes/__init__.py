"""From a graph to a graph: turns of loops, what differs from run to run, the search for NaN."""
