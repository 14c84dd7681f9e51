"""The private names of jax that rules use; the rest is in `core/base/jax_private`, which says how
they are noted."""

import inspect
from importlib import import_module
from types import ModuleType
from typing import Any

from jax._src import config as _config

# Exists in jax 0.10 to 0.12. The partitioner as a context, where the public flag
# `jax_use_shardy_partitioner` is process-wide. None in a jax that has only Shardy.
use_shardy_partitioner: Any = getattr(_config, "use_shardy_partitioner", None)


def is_reordered(sharding: Any) -> bool:
    """True for a `NamedSharding` with an order of devices other than its mesh's."""
    return sharding._logical_device_ids is not None


def _cudnn() -> ModuleType | None:
    names = "_dot_product_attention_fwd_p", "_dot_product_attention_bwd_p"
    module = import_module("jax._src.cudnn.fused_attention_stablehlo")
    return module if all(hasattr(module, name) for name in names) else None


# Exists in jax 0.10 to 0.12. cuDNN's attention: `_dot_product_attention_fwd_p`,
# `_dot_product_attention_bwd_p`, `MaskType`, `AttentionLayout`. The public
# `jax.nn.dot_product_attention` looks for cuDNN while it is traced.
cudnn_attention = _cudnn()


def _cudnn_options() -> dict[str, None]:
    lowering = getattr(cudnn_attention, "_dot_product_attention_fwd_cuda_lowering", None)
    names = () if lowering is None else inspect.signature(lowering).parameters
    return {name: None for name in ("score_mod_name", "score_mod_jaxpr") if name in names}


# Exists in jax 0.12. The two primitives' further parameters: a function of the scores, of which
# there is none.
cudnn_attention_options = _cudnn_options()


# Exists in jax 0.10 to 0.12; None without CUDA's plugin.
_cuda_versions = getattr(import_module("jax._src.lib"), "cuda_versions", None)


def cudnn_version() -> int | None:
    """The version of this machine's cuDNN, 9.10.2 as 91002; None without."""
    try:
        return None if _cuda_versions is None else int(_cuda_versions.cudnn_get_version())
    except RuntimeError:  # the plugin alone, which compiles for GPUs that are not here
        return None
