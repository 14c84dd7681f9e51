"""From a graph to an executable: lowering, the compiler, the cache of programs, and the causes of
compilations."""
