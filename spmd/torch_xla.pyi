from .names.torch_xla import *
