"""Lowering rules, aten -> JAX, by op family: pure functions of arrays, without tensor class, device
or environment."""

from . import activation as activation
from . import attention as attention
from . import conv as conv
from . import create as create
from . import embedding as embedding
from . import fft as fft
from . import index as index
from . import linalg as linalg
from . import linear_cross_entropy as linear_cross_entropy
from . import loss as loss
from . import matmul as matmul
from . import norm as norm
from . import optim as optim
from . import order as order
from . import pointwise as pointwise
from . import quantize as quantize
from . import random as random
from . import reduce as reduce
from . import resample as resample
from . import rnn as rnn
from . import shape as shape
from . import windows as windows
from .checks import CHECKS as CHECKS
from .checks import check as check
from .registry import ON_CPU as ON_CPU
from .registry import RULES as RULES
from .registry import Promote as Promote
from .registry import Rule as Rule
from .registry import base_name as base_name
