"""From a graph to a graph: loops and their iterations, differences from run to run, the search for NaN."""
