from .jobs.checkpoint import *
