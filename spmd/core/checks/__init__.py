"""Checks: known miscompiles, the parser of a program's text, and tensors that the device cannot hold."""

from . import miscompiles as miscompiles
