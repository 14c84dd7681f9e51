"""The start of a job: processes of a script on one machine, torch.distributed's group of them, and
the installation."""
