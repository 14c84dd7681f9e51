"""Libraries that record no read of a value into a captured CUDA stream: a call recorded here is one
to them.

transformers reads the values of attention masks, to leave out those that mask nothing, but not in
such a stream. Where nothing is read (no mask, or constants as the positions of a batch that is not
packed) it must leave them out here, too: a mask in full is one that no kernel of attention takes.
"""

import functools
from typing import Any

import torch

from ...core import XlaTensor, observation, patch_when_imported, replaces, storage_of
from ...core.extend import host_ops


@functools.cache
def join_stream_capture() -> None:
    """Has transformers make the masks of a recorded call without a look at their values;
    transformers 4 looks."""
    purpose = "recorded calls of attention masks, whose values transformers reads"
    patch_when_imported(
        "transformers.utils.import_utils", _join, purpose, "is_cuda_stream_capturing()"
    )
    patch_when_imported(
        "transformers.masking_utils", _look_at_constants, purpose, "is_tracing(tensor)"
    )


def _join(import_utils: Any) -> None:
    replaces(import_utils, "is_cuda_stream_capturing")(
        lambda is_capturing: observation.active_observation.value is not None or is_capturing()
    )


def _look_at_constants(masking_utils: Any) -> None:
    is_tracing = masking_utils.is_tracing

    def may_not_look(tensor: Any = None) -> bool:
        return is_tracing(tensor) and (torch.compiler.is_compiling() or not _is_known(tensor))

    # Dynamo follows no function of this library: to it this one is transformers' own, which it has
    # read through before.
    may_not_look.__code__ = may_not_look.__code__.replace(
        co_filename=is_tracing.__code__.co_filename
    )
    masking_utils.is_tracing = may_not_look


def _is_known(mask: Any) -> bool:
    """True in a recorded call without a mask, or with one whose values are constants."""
    if observation.active_observation.value is None or mask is None:
        return observation.active_observation.value is not None
    return type(mask) is XlaTensor and host_ops.constant_ops(storage_of(mask).value) is not None
