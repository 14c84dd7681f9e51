"""Programs as files: a call of a function or a training step as StableHLO, with weights and a
manifest."""

from .exported import Exported as Exported
from .exported import has_weights as has_weights
from .exporter import export as export
from .loaded import LoadedProgram as LoadedProgram
from .loaded import load_exported as load_exported
from .loaded import read_exported as read_exported
from .open_dims import OpenProgram as OpenProgram
from .open_dims import has_open_dims as has_open_dims
