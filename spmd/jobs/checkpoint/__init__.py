"""Files of a training run: a job's steps saved and restored, models loaded shard by shard from
other files."""

from ...tensors.bare_names import bare_name as bare_name
from .all_or_none import SaveError as SaveError
from .loading import load_checkpoint as load_checkpoint
from .manager import CheckpointManager as CheckpointManager
from .manifest import DamagedError as DamagedError
from .model_saving import save_checkpoint as save_checkpoint
from .optimizer_init import prime_optimizer as prime_optimizer
from .orbax_folder import load_orbax as load_orbax
from .orbax_folder import save_orbax as save_orbax
from .random_state import RandomState as RandomState
from .restore_plan import ProcessPlan as ProcessPlan
from .restore_plan import RestorePlan as RestorePlan
from .streaming import fill_shards as fill_shards
from .writer import SaveReport as SaveReport
