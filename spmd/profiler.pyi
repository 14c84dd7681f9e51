from .tools.profiler import *
