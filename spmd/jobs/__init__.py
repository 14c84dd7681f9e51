"""Training jobs: checkpoints, data, the frameworks that run them, and their processes."""
