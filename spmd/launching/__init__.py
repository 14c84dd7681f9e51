"""Several processes of a script on one machine, and torch.distributed's names for those that there are."""
