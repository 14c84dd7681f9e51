"""Values from files: a model's data is read piece by piece, each device's own bytes and no others."""

from .filling import fill_shards as fill_shards
from .loading import bare_name as bare_name
from .loading import load_checkpoint as load_checkpoint
