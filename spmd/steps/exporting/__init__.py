"""Programs as files: a call of a function or a training step as StableHLO, with weights and a
manifest."""

from .exported import Exported as Exported
from .exporter import export as export
from .loaded import LoadedProgram as LoadedProgram
from .loaded import load_exported as load_exported
