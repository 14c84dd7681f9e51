"""A token of transformers' `generate` as one program: the model's call, the choice of the token and
the check for the end are one recorded function, whose results are its next arguments.

It takes the place of `GenerationMixin._sample` where a token depends on the tokens before it by the
cache alone: a static cache, and processors and criteria that read no earlier token. Other calls
decode as before, with the model's call recorded alone.
"""

import contextlib
import operator
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from ...core import config
from .module_calls import ModuleCall, RecordedCall

# Of these no attribute is a tensor or counts calls, and none reads earlier tokens.
_OF_SCORES = frozenset(
    {
        "EpsilonLogitsWarper",
        "InfNanRemoveLogitsProcessor",
        "LogitNormalization",
        "MinPLogitsWarper",
        "TemperatureLogitsWarper",
        "TopHLogitsWarper",
        "TopKLogitsWarper",
        "TopPLogitsWarper",
        "TypicalLogitsWarper",
    }
)
_CRITERIA = {"EosTokenCriteria", "MaxLengthCriteria"}
_MODULES = ("transformers.generation.logits_process", "transformers.generation.stopping_criteria")
_METHODS = ("prepare_inputs_for_generation", "_update_model_kwargs_for_generation")


class _State(NamedTuple):
    """What a token hands to the next one. B: the batch; L: the room for tokens.

    tokens: the newest, [B, 1]. positions: theirs, [..., B, 1]. mask: of the tokens in the cache,
    [B, L - 1]. written: all tokens, [B, L]. place: of the newest among them, []. unfinished: 1
    where a sequence has not ended, [B].
    """

    tokens: torch.Tensor
    positions: torch.Tensor | None
    mask: torch.Tensor | None
    written: torch.Tensor
    place: torch.Tensor
    unfinished: torch.Tensor


def sample(
    original: Any,
    model: Any,
    input_ids: torch.Tensor,
    logits_processor: Any,
    stopping_criteria: Any,
    generation_config: Any,
    synced_gpus: bool = False,
    streamer: Any = None,
    **inputs: Any,
) -> Any:
    """`GenerationMixin._sample`, with a program a token where one can be."""
    kind = (
        None
        if synced_gpus
        else _kind(model, logits_processor, stopping_criteria, generation_config, inputs)
    )
    if kind is None:
        named = {"synced_gpus": synced_gpus, "streamer": streamer, **inputs}
        return original(
            model, input_ids, logits_processor, stopping_criteria, generation_config, **named
        )
    cache = inputs["past_key_values"]
    ends = [end for x in stopping_criteria for end in _ends(x)]
    pad = generation_config._pad_token_tensor.item() if ends else 0
    choice = _Choice(logits_processor, generation_config.do_sample, ends, pad)
    outputs = model._prefill(input_ids, generation_config, inputs, is_first_iteration=True)
    state = _after_prompt(input_ids, inputs, cache)
    state, stop = choice(state, outputs.logits)
    call = _call_of(model, (*kind, *ends, pad), choice)
    length, is_over, waiting = input_ids.shape[1] + 1, False, None
    with model._optimize_model_for_decode(), call.holds(cache):
        while True:
            # A program behind: the device computes the next token while the host reads this one.
            if waiting is not None:
                _put(streamer, waiting[0])
                is_over = bool(ends) and bool(waiting[1])
            waiting = state.tokens, stop
            if is_over or length >= stopping_criteria.max_length:
                break
            *fields, stop = call(*state, cache)
            state = _State(*fields)
            length += 1
    if not is_over:
        _put(streamer, state.tokens)
    if streamer is not None:
        streamer.end()
    # On the host: a slice on the device would be a program for each length.
    length, end = length - is_over, int(state.place) + 1 - is_over
    return state.written.cpu()[:, end - length : end].to(input_ids.device)


def _put(streamer: Any, tokens: torch.Tensor) -> None:
    if streamer is not None:
        streamer.put(tokens.cpu()[:, 0])


def _kind(
    model: Any, processors: Any, criteria: Any, how: Any, inputs: Mapping[str, Any]
) -> tuple[Hashable, ...] | None:
    """What a token depends on besides tensors; None where it depends on earlier tokens, or a method
    of the model's own makes its arguments."""
    cache: Any = inputs.get("past_key_values")
    base = sys.modules["transformers.generation.utils"].GenerationMixin
    is_own = any(
        getattr(getattr(model, name), "__func__", None) is not getattr(base, name)
        for name in _METHODS
    ) or hasattr(model, "create_masks_for_generate")
    if (
        is_own
        or not (model.device.type == "xla" and config.record_modules)
        or type(cache).__name__ != "StaticCache"
        or any(cache.is_sliding)
        or getattr(cache, "_is_user_defined", False)
        or how.return_dict_in_generate
        or how.is_assistant
        or model.config.is_encoder_decoder
        or criteria.max_length is None
        or not all(_is_of(x, _MODULES[1], _CRITERIA) for x in criteria)
        or not all(_is_of(x, _MODULES[0], _OF_SCORES) for x in processors)
    ):
        return None
    constants = _constants(inputs)
    settings = [(type(x), *sorted(vars(x).items())) for x in processors]
    values = [*constants.values(), *(value for _, *pairs in settings for _, value in pairs)]
    if not all(isinstance(value, (bool, int, float, str, type(None))) for value in values):
        return None
    return how.do_sample, tuple(settings), tuple(constants.items())


def _ends(criterion: Any) -> list[int]:
    """The end tokens of a criterion."""
    ends: list[int] = getattr(criterion, "eos_token_id", torch.empty(0)).tolist()
    return ends


def _is_of(thing: Any, module: str, names: set[str] | frozenset[str]) -> bool:
    return type(thing).__module__ == module and type(thing).__name__ in names


def _constants(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The model's arguments that stay, by name."""
    ours = ("past_key_values", "attention_mask", "position_ids", "labels")
    return {name: value for name, value in inputs.items() if name not in ours}


def _after_prompt(ids: torch.Tensor, inputs: Mapping[str, Any], cache: Any) -> _State:
    """The state behind a prompt, without its newest token; integers that the host computes."""
    mask, positions = inputs.get("attention_mask"), inputs.get("position_ids")
    room, first = cache.get_mask_sizes(1, 0)[0], (ids if mask is None else mask).shape[1]
    return _State(
        ids[:, -1:],
        None if positions is None else positions[..., -1:],
        None if mask is None else F.pad(mask, (0, room - first)),
        F.pad(ids, (first - ids.shape[1], room + 1 - first)),
        torch.tensor(first - 1, device="cpu").to(ids.device),
        torch.ones(len(ids), dtype=torch.long, device=ids.device),
    )


class _Choice:
    """The choice of the next token by its scores."""

    def __init__(self, processors: Any, is_sampled: bool, ends: list[int], pad: int):
        self.processors, self.is_sampled, self.ends, self.pad = processors, is_sampled, ends, pad

    def __call__(self, state: _State, logits: torch.Tensor) -> tuple[_State, torch.Tensor]:
        """The state with a token more, and whether all sequences have ended."""
        scores = self.processors(None, logits[:, -1].to(copy=True, dtype=torch.float32))
        if self.is_sampled:
            tokens = torch.multinomial(F.softmax(scores, dim=-1), num_samples=1)
        else:
            tokens = scores.argmax(dim=-1, keepdim=True)
        unfinished = state.unfinished
        if self.ends:
            tokens = torch.where(unfinished[:, None] > 0, tokens, self.pad)
        for end in self.ends:
            unfinished = unfinished * (tokens[:, 0] != end)
        place = state.place + 1
        is_new = torch.arange(state.written.shape[1], device=place.device) == place
        new = _State(
            tokens,
            None if state.positions is None else state.positions + 1,
            None if state.mask is None else torch.where(is_new[:-1], 1, state.mask),
            torch.where(is_new, tokens, state.written),
            place,
            unfinished,
        )
        return new, unfinished.max() == 0


class _Held:
    """What is known of the calls with one cache, which nobody else changes between them: its parts,
    the last results, and the kind of a call with these."""

    def __init__(self, parts: Any):
        self.parts, self.results = parts, tuple[Any, ...]()
        self.key: tuple[Any, ...] | None = None


class _TokenCall(RecordedCall):
    """Calls whose results are the next one's arguments."""

    def __init__(self, module: Any, function: Callable[..., Any]):
        super().__init__(module, function)
        self._held: dict[int, _Held] = {}  # by the id of a cache

    @contextlib.contextmanager
    def holds(self, cache: Any) -> Iterator[None]:
        """A context of calls with one cache."""
        self._held[id(cache)] = _Held(super()._parts_of(cache))
        try:
            yield
        finally:
            del self._held[id(cache)]

    def __call__(self, *arguments: Any) -> Any:
        result = super().__call__(*arguments)
        self._held[id(arguments[-1])].results = result[:-1]
        return result

    def _keys_of(self, flat: Sequence[Any], apart: Mapping[int, Any]) -> Iterable[Any]:
        """The same for each call with the last one's results: they are those of one recording."""
        held = self._held[id(flat[len(_State._fields)])]
        if not (held.results and all(map(operator.is_, flat, held.results))):
            return super()._keys_of(flat, apart)
        if held.key is None:
            held.key = tuple(super()._keys_of(flat, apart))
        return held.key

    def _parts_of(self, item: Any) -> Any:
        held = self._held.get(id(item))
        return super()._parts_of(item) if held is None else held.parts


def _call_of(model: Any, kind: Any, choice: _Choice) -> _TokenCall:
    """The recorded function of a token: of an earlier call of `generate`, where one has run so."""
    call = vars(model).get("_compiled_call_impl")
    known: dict[Any, Any] = call.of_tokens if isinstance(call, ModuleCall) else {}
    if kind not in known:
        constants = kind[2]

        def token(*arguments: Any) -> tuple[Any, ...]:
            *fields, cache = arguments
            state = _State(*fields)
            named = {"position_ids": state.positions, "attention_mask": state.mask}
            outputs = model(
                input_ids=state.tokens,
                past_key_values=cache,
                **{name: value for name, value in named.items() if value is not None},
                **dict(constants),
                return_dict=True,
            )
            state, stop = choice(state, outputs.logits)
            return *state, stop

        known[kind] = _TokenCall(model, token)
    token_call: _TokenCall = known[kind]
    return token_call
