"""The sync: the choice of what runs, on which devices, and in which programs."""
