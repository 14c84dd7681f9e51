"""Libraries that record no read of a value into a captured CUDA stream: a call recorded here is one to them.

transformers looks at the values of attention masks, to leave out those that mask nothing, but not in such a stream.
"""

import functools
from typing import Any

from ...core import observation, patch_when_imported


@functools.cache
def join_stream_capture() -> None:
    """Has transformers make the masks of a recorded call without a look at their values; transformers 4 looks."""
    purpose = "recorded calls of attention masks, whose values transformers reads"
    patch_when_imported("transformers.utils.import_utils", _join, purpose, "is_cuda_stream_capturing()")


def _join(import_utils: Any) -> None:
    is_capturing = import_utils.is_cuda_stream_capturing
    import_utils.is_cuda_stream_capturing = lambda: observation.active() is not None or is_capturing()
