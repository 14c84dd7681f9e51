from .jobs.data import *
