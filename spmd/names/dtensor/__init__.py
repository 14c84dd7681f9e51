"""torch.distributed.tensor's interface in a global view: placements, distribute_*, parallel plans;
no process group."""

from torch.distributed.tensor import Partial as Partial
from torch.distributed.tensor import Placement as Placement
from torch.distributed.tensor import Replicate as Replicate
from torch.distributed.tensor import Shard as Shard
from torch.distributed.tensor.parallel import ColwiseParallel as ColwiseParallel
from torch.distributed.tensor.parallel import ParallelStyle as ParallelStyle
from torch.distributed.tensor.parallel import PrepareModuleInput as PrepareModuleInput
from torch.distributed.tensor.parallel import PrepareModuleInputOutput as PrepareModuleInputOutput
from torch.distributed.tensor.parallel import PrepareModuleOutput as PrepareModuleOutput
from torch.distributed.tensor.parallel import RowwiseParallel as RowwiseParallel
from torch.distributed.tensor.parallel import SequenceParallel as SequenceParallel

from ...mesh.device_mesh import DeviceMesh as DeviceMesh
from ...mesh.device_mesh import init_device_mesh as init_device_mesh
from .distribute import DTensor as DTensor
from .distribute import distribute_module as distribute_module
from .distribute import distribute_tensor as distribute_tensor
from .distribute import empty as empty
from .distribute import full as full
from .distribute import ones as ones
from .distribute import placements_of as placements_of
from .distribute import rand as rand
from .distribute import randn as randn
from .distribute import zeros as zeros
from .parallel import loss_parallel as loss_parallel
from .parallel import parallelize_module as parallelize_module
