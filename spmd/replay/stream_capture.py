"""Libraries that record no read of a value into a captured CUDA stream: a call recorded here is one to them.

transformers looks at the values of attention masks, to leave out those that mask nothing, but not in such a stream.
"""

from typing import Any

from ..core.backend.when_imported import patch_when_imported
from ..core.base import observation


def join_stream_capture() -> None:
    """Has transformers make the masks of a recorded call without a look at their values."""
    patch_when_imported("transformers.utils.import_utils", _join)


def _join(import_utils: Any) -> None:
    is_capturing = import_utils.is_cuda_stream_capturing
    import_utils.is_cuda_stream_capturing = lambda: observation.active() is not None or is_capturing()
