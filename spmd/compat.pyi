from .names.compat import *
