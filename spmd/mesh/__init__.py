"""Meshes and specs: the devices, and the mesh axes of each dim."""
