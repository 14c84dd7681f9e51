"""Words for people: why a program was compiled, what it costs, what failed."""
