"""From a graph to an executable: lowering, the compiler, the cache, and the words for why."""
