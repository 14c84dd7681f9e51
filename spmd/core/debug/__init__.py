"""Finding a fault: eager runs, comparison with the CPU, where each op is lowered."""
