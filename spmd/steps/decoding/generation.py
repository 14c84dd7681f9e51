"""transformers' `generate` on xla: the host reads whether to stop one token late, while the device
computes the next.

transformers does so on mps (`DeferredStopCheck`); it undoes the pass that was one too many.
"""

import copy
import sys
from typing import Any

import torch
import torch.nn.functional as F

from ...core import XlaTensor, replaces, storage_of, syncs
from ...core import config as flags
from ..replay.argument_objects import COUNTERS, CountedAttribute
from .host_lists import bring_home, set_decoding
from .module_calls import look_at_next
from .tokens import sample


def _is_on(device: torch.device) -> bool:
    return device.type == "xla" and flags.record_modules


def _is_static(cache: Any) -> bool:
    """True for a cache in which tokens are written in place."""
    return type(cache).__name__ == "StaticCache"


def _defer(utils: Any) -> None:
    """Puts a check for xla in the place of `DeferredStopCheck`, which makes the other devices' as
    before."""
    original: Any = utils.DeferredStopCheck

    class StopCheck(original):
        @staticmethod
        def is_supported(
            device: torch.device, cache: Any, cache_is_returned: bool, is_assistant: bool
        ) -> bool:
            if not _is_on(device):
                return bool(original.is_supported(device, cache, cache_is_returned, is_assistant))
            return not is_assistant and (cache is None or not cache_is_returned)

        def __new__(cls, input_ids: torch.Tensor, *arguments: Any) -> Any:
            return (
                super().__new__(cls)
                if _is_on(input_ids.device)
                else original(input_ids, *arguments)
            )

        def __init__(
            self,
            _: Any,
            max_length: int | None,
            cache: Any,
            _is_returned: bool,
            streamer: Any = None,
        ):
            self.max_length, self.streamer, self.is_static = max_length, streamer, _is_static(cache)
            # whether to stop, and the tokens
            self.latest: tuple[torch.Tensor, torch.Tensor] | None = None
            self.stop_reported = False

        def __call__(
            self, unfinished_sequences: torch.Tensor, tokens: torch.Tensor, length: int
        ) -> bool:
            if self.is_static:
                set_decoding(True)
            # Recorded only: it runs with what the next token needs, while the host reads that of
            # the token before.
            latest = unfinished_sequences.max() == 0, tokens
            if self.latest is not None:
                self._put()
                self.stop_reported = bool(self.latest[0])
            self.latest = latest
            return self.stop_reported or (self.max_length is not None and length >= self.max_length)

        def _put(self) -> None:
            if self.streamer is not None and self.latest is not None:
                self.streamer.put(self.latest[1].cpu())

        def finish(self) -> int:
            if not self.stop_reported:
                self._put()
            return int(self.stop_reported)

    utils.DeferredStopCheck = StopCheck


_STEP, _LEAST = 16, 64  # positions
_MOST = 1 << 13  # positions that a cache has memory for from the start


def _capacity(length: int) -> int:
    """The length to which a prompt is padded.

    Few tokens cost what one does, as the weights are read for either.
    """
    least = next((size for size in (16, 64) if length <= size), 256)
    return max(least, 1 << (length - 1).bit_length())


def _prepare_cache(
    original: Any, model: Any, config: Any, inputs: dict[str, Any], mode: Any, *sizes: int
) -> None:
    """A cache in which each token is written in place, where the caller sees none and the model
    can: with room for the padded prompt, in steps of 16 positions."""
    batch_size, length = sizes
    positions, cache_config = inputs.get("position_ids"), config
    is_on_xla = _is_on(model.device) and config.use_cache is not False
    if is_on_xla and positions is not None and inputs.get("past_key_values") is None:
        is_seen = config.return_dict_in_generate or "assisted" in mode or config.is_assistant
        if (
            config.cache_implementation in (None, "dynamic")
            and model._can_compile_fullgraph
            and not is_seen
            and length < _MOST
        ):
            cache_config = copy.copy(config)
            cache_config.cache_implementation = "static"
        # A cache that is returned has the prompt alone.
        if cache_config.cache_implementation == "static" and not is_seen:
            is_alone = not {"inputs_embeds", "token_type_ids", "mm_token_type_ids"} & inputs.keys()
            if is_alone and config.prefill_chunk_size is None:
                # of this call of generate
                config._padding = _capacity(positions.shape[-1]) - positions.shape[-1]
                length += config._padding
            # A length that the caller has not chosen is that of other calls, too.
            length = (
                length + -length % _STEP
                if cache_config is config
                else max(_LEAST, 1 << (length - 1).bit_length())
            )
    original(model, cache_config, inputs, mode, batch_size, length)
    cache: Any = inputs.get("past_key_values")
    if is_on_xla and _is_static(cache) and not cache.is_initialized:
        sizes = model._get_static_cache_init_shape()  # heads and width
        if sizes is not None:
            rows = batch_size * max(config.num_beams, config.num_return_sequences)
            cache.early_initialization(rows, *sizes, model.dtype, model.device)


def _prefill(
    original: Any, model: Any, ids: torch.Tensor, config: Any, inputs: dict[str, Any], **named: Any
) -> Any:
    """A prefill whose prompt is padded on the left to a length that others have, by a call that is
    looked at."""
    if not _is_on(model.device) or not _is_static(inputs.get("past_key_values")):
        return original(model, ids, config, inputs, **named)
    syncs.sync()
    prompt = ids
    _bring_home(prompt, inputs)
    padding = getattr(config, "_padding", 0)
    if padding:
        mask = inputs.get("attention_mask")
        inputs["attention_mask"] = F.pad(
            torch.ones_like(ids) if mask is None else mask, (padding, 0)
        )
        inputs["position_ids"] = F.pad(inputs["position_ids"], (padding, 0))
        ids = F.pad(ids, (padding, 0))
    set_decoding(False)
    look_at_next(is_generate=True)
    result = original(model, ids, config, inputs, **named)
    _bring_home(prompt, inputs)  # the call has had them uploaded
    return result


def _bring_home(prompt: torch.Tensor, inputs: dict[str, Any]) -> None:
    """Has the host hold the lists of tokens and positions, and compute what is joined to them."""
    for tensor in (prompt, inputs.get("attention_mask"), inputs.get("position_ids")):
        if type(tensor) is XlaTensor:
            bring_home(storage_of(tensor))
    set_decoding(True)


def _masks(
    original: Any,
    config: Any,
    inputs_embeds: torch.Tensor,
    attention_mask: Any,
    past_key_values: Any,
    **named: Any,
) -> Any:
    """The mask of a prompt's tokens in the length of the cache, of which the model makes its own in
    its call, which is replayed. A sliding cache's masks depend on Python numbers."""
    cache = past_key_values
    if not _is_on(inputs_embeds.device) or not _is_static(cache) or any(cache.is_sliding):
        named |= {"attention_mask": attention_mask, "past_key_values": cache}
        return original(config=config, inputs_embeds=inputs_embeds, **named)
    if attention_mask is None:
        return None
    length, _ = cache.get_mask_sizes(inputs_embeds.shape[1], 0)
    return F.pad(attention_mask, (0, length - attention_mask.shape[1]))


def _change(utils: Any) -> None:
    """Changes transformers, of a version that has what is changed."""
    if hasattr(utils, "DeferredStopCheck"):  # and so the loop that `sample` takes the place of
        _defer(utils)
        replaces(utils.GenerationMixin, "_sample")(sample)
    sliding = getattr(sys.modules["transformers.cache_utils"], "StaticSlidingWindowLayer", None)
    if sliding is not None:
        COUNTERS[sliding] = CountedAttribute("cumulative_length_int", _room)
    if hasattr(utils, "create_masks_for_generate"):
        replaces(utils, "create_masks_for_generate")(_masks)
    for name, function in (
        ("_prepare_cache_for_generation", _prepare_cache),
        ("_prefill", _prefill),
    ):
        if hasattr(utils.GenerationMixin, name):
            replaces(utils.GenerationMixin, name)(function)


def _room(layer: Any) -> str:
    """The branch that a sliding cache takes: it is new, it has room for a token, or it is full."""
    count = layer.cumulative_length_int
    return "new" if not count else "full" if count >= layer.max_cache_len else "room"


_change(sys.modules["transformers.generation.utils"])  # which imports this
