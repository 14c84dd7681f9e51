"""Partition rules beyond the core's: ops over a sharded sequence, each with the exchange that it
needs."""

from . import eager_experts as eager_experts
from . import experts as experts
from . import grouped_rows as grouped_rows
from . import sequence_attention as sequence_attention
from . import sequence_convolution as sequence_convolution
from . import sequence_embedding as sequence_embedding
from . import sequence_scans as sequence_scans
from . import sequence_sums as sequence_sums
from . import stack_loops as stack_loops
from . import stages as stages
from . import whole_matrices as whole_matrices
