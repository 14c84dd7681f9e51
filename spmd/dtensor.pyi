from .names.dtensor import *
