"""Lowering rules, aten -> JAX, by op family. Rules are pure functions of arrays: no tensor class, no device, no environment."""

from . import activation as activation
from . import attention as attention
from . import create as create
from . import embedding as embedding
from . import index as index
from . import loss as loss
from . import matmul as matmul
from . import norm as norm
from . import optim as optim
from . import pointwise as pointwise
from . import random as random
from . import reduce as reduce
from . import shape as shape
from .lifting import base_name as base_name
from .lifting import lifted_arguments as lifted_arguments
from .registry import RULES as RULES
from .registry import Promote as Promote
from .registry import Rule as Rule
