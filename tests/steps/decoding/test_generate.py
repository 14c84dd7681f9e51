"""Unmodified `generate` of transformers runs the model's call from a recording, and writes the
CPU's tokens in every mode."""

import copy
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

import fsdp
import spmd
from spmd.core import storage_of
from spmd.core.graph.graph import Graph
from spmd.steps.decoding.host_lists import HostLists, set_decoding

SIZES = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
HOW = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0, "eos_token_id": 1}
IDS = torch.randint(3, 96, (2, 9), generator=torch.Generator().manual_seed(1))
MASK = torch.ones_like(IDS)
MASK[0, :4] = 0  # prompts of two lengths


def llama(**more: Any) -> Any:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES | more))


def gemma(window: int) -> Any:
    """Every other layer's cache is sliding."""
    config = transformers.Gemma2Config(**SIZES, head_dim=8, sliding_window=window)
    return transformers.Gemma2ForCausalLM(config)


def pair(make: Callable[[], Any] = llama) -> tuple[Any, Any]:
    """A model on the CPU, and on xla."""
    torch.manual_seed(0)
    model = make().eval()
    return model, copy.deepcopy(model).to("xla")


def written(model: Any, device: str, ids: Tensor = IDS, mask: Tensor = MASK, **how: Any) -> Tensor:
    result: Tensor = model.generate(ids.to(device), attention_mask=mask.to(device), **HOW | how)
    return result.cpu()


def calls(model: Any) -> list[Any]:
    """The recorded calls of a model: of its own, and of tokens."""
    call = vars(model).get("_compiled_call_impl")
    return [] if call is None else [call, *call.of_tokens.values()]


def counted(model: Any, name: str) -> int:
    return sum(getattr(call, name) for call in calls(model))


def replayed(model: Any) -> int:
    return counted(model, "num_replayed")


class Odd(transformers.LogitsProcessor):
    """No word of an even number where the length is odd."""

    def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
        is_even = torch.arange(scores.shape[-1], device=scores.device) % 2 == 0
        return torch.where(is_even, scores - 1e9 * (ids.shape[1] % 2), scores)


MODES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "static": {"cache_implementation": "static"},
    "dynamic": {"cache_implementation": "dynamic"},
    "beams": {"num_beams": 3},
    "sampling": {"do_sample": True, "top_k": 1},
    "repetition": {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2},
    "processor": {"logits_processor": transformers.LogitsProcessorList([Odd()])},
}


@pytest.mark.parametrize("mode", MODES)
def test_modes(mode: str) -> None:
    model, on_xla = pair()
    expected = written(model, "cpu", **MODES[mode])
    for _ in range(2):
        assert torch.equal(written(on_xla, "xla", **MODES[mode]), expected)
    assert replayed(on_xla) >= 12
    assert counted(on_xla, "num_recorded") == 2  # of a prompt, and of a token


@pytest.mark.parametrize("mode", ["greedy", "beams", "sliding"])
def test_each_call_is_checked(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """None is another one than what was recorded, and the tokens stay the CPU's."""
    monkeypatch.setattr(spmd.config, "check_replays", 1)
    model, on_xla = pair((lambda: gemma(12)) if mode == "sliding" else llama)
    for _ in range(2):
        assert torch.equal(
            written(on_xla, "xla", **MODES.get(mode, {})),
            written(model, "cpu", **MODES.get(mode, {})),
        )
    checked = counted(on_xla, "num_checked")
    assert checked == replayed(on_xla) >= 10, [call.explain() for call in calls(on_xla)]


@pytest.mark.parametrize("window", [12, 20])
def test_sliding_caches(window: int) -> None:
    """A cache that is full from the prompt on, and one that becomes full."""
    model, on_xla = pair(lambda: gemma(window))
    for _ in range(2):
        assert torch.equal(written(on_xla, "xla"), written(model, "cpu"))
    assert replayed(on_xla) >= 10


@pytest.mark.parametrize(
    "make",
    [
        lambda: transformers.GPT2LMHeadModel(
            transformers.GPT2Config(vocab_size=96, n_embd=32, n_layer=2, n_head=2)
        ),
        lambda: transformers.MixtralForCausalLM(
            transformers.MixtralConfig(**SIZES, num_local_experts=4)
        ),
        lambda: llama().bfloat16(),
        lambda: llama(attn_implementation="eager"),
    ],
    ids=["gpt2", "mixtral", "bfloat16", "eager"],
)
def test_models(make: Callable[[], Any]) -> None:
    model, on_xla = pair(make)
    for _ in range(2):
        assert torch.equal(written(on_xla, "xla"), written(model, "cpu"))
    assert replayed(on_xla) >= 12


def test_end_in_the_middle() -> None:
    """The pass that was one too many leaves no trace, in tokens, in what a streamer is given, and
    in scores."""
    model, on_xla = pair()
    end = int(written(model, "cpu", IDS[:1], MASK[:1] | 1)[0, -4])

    class Streamer:
        def __init__(self) -> None:
            self.words: list[int] = []

        def put(self, words: Tensor) -> None:
            self.words += words.flatten().tolist()

        def end(self) -> None:
            self.words.append(-1)

    found = []
    for one, device in ((model, "cpu"), (on_xla, "xla"), (on_xla, "xla")):
        streamer, ids = Streamer(), IDS[:1].to(device)
        how = HOW | {"eos_token_id": end, "streamer": streamer, "cache_implementation": "static"}
        words = one.generate(ids, attention_mask=torch.ones_like(ids), **how)
        found.append((words.cpu().tolist(), streamer.words))
    assert found[0] == found[1] == found[2]
    how = {"eos_token_id": end, "return_dict_in_generate": True, "output_scores": True}
    one, other = (
        m.generate(IDS[:1].to(d), **HOW | how) for m, d in ((model, "cpu"), (on_xla, "xla"))
    )
    assert len(one.scores) == len(other.scores)
    torch.testing.assert_close(other.scores[-1].cpu(), one.scores[-1], rtol=1e-4, atol=1e-4)


def test_twenty_lengths() -> None:
    """Prompts of twenty lengths have three programs, for 16 tokens and 64 and two caches; a token
    two."""
    model, on_xla = pair()
    lengths = torch.randperm(48, generator=torch.Generator().manual_seed(0))[:20] + 1
    spmd.metrics.clear()
    for length in lengths.tolist():
        ids = torch.randint(3, 96, (1, length), generator=torch.Generator().manual_seed(length))
        mask = torch.ones_like(ids)
        assert torch.equal(written(on_xla, "xla", ids, mask), written(model, "cpu", ids, mask))
    prefills = [one for one in spmd.metrics.compiles() if one.nodes > 100]
    assert len(prefills) == counted(on_xla, "num_recorded") == 5


@pytest.mark.parametrize("mode", ["greedy", "sampling"])
def test_a_token_is_one_program(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty tokens more launch twenty programs more, and record no op."""
    monkeypatch.setattr(spmd.config, "check_replays", 0)
    _, on_xla = pair()
    how = {"eos_token_id": 95} | MODES[mode]
    counts = []
    for count in (8, 8, 28):
        before = [spmd.metrics.counter(name) for name in ("runs", "recorded_ops")]
        tokens = written(on_xla, "xla", **how | {"max_new_tokens": count})
        assert tokens.shape[1] == IDS.shape[1] + count
        after = [spmd.metrics.counter(name) for name in ("runs", "recorded_ops")]
        counts.append([new - old for old, new in zip(before, after, strict=True)])
    assert counts[2] == [counts[1][0] + 20, counts[1][1]]


def test_sampled_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """A recorded token draws what the loop as it is written draws."""
    found = []
    for is_recorded in (True, False):
        monkeypatch.setattr(spmd.config, "record_modules", is_recorded)
        _, on_xla = pair()
        for processors in ({"top_k": 20}, {"top_p": 0.9, "temperature": 1.3}, {"min_p": 0.02}):
            torch.manual_seed(3)
            found.append(written(on_xla, "xla", do_sample=True, **processors))
    assert all(map(torch.equal, found[:3], found[3:]))
    assert len({tuple(words.flatten().tolist()) for words in found}) > 1


def test_a_cache_of_the_users_has_the_tokens_alone() -> None:
    """A cache that is passed to `generate` outlives it: no pass is one too many."""
    model, on_xla = pair()
    end = int(written(model, "cpu", IDS[:1], MASK[:1] | 1)[0, -4])
    caches = []
    for one, device in ((model, "cpu"), (on_xla, "xla")):
        caches.append(transformers.StaticCache(one.config, max_cache_len=32))
        how = {"past_key_values": caches[-1], "eos_token_id": end}
        words = written(one, device, IDS[:1], MASK[:1] | 1, **how)
        assert int(caches[-1].get_seq_length()) == words.shape[1] - 1


def test_after_training_and_back() -> None:
    model, on_xla = pair()
    found = []
    for one, device in ((model, "cpu"), (on_xla, "xla")):
        optimizer = torch.optim.SGD(one.parameters(), lr=0.5)
        ids, words = IDS.to(device), []
        for _ in range(3):
            words.append(written(one, device))
            loss = one(input_ids=ids, labels=ids).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        found.append((words, loss.item()))
    assert all(map(torch.equal, found[0][0], found[1][0]))
    assert not torch.equal(found[0][0][0], found[0][0][-1])
    assert found[1][1] == pytest.approx(found[0][1], rel=1e-4)
    assert replayed(on_xla) >= 20


def test_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spmd.config, "record_modules", False)
    model, on_xla = pair()
    assert torch.equal(written(on_xla, "xla"), written(model, "cpu"))
    assert not replayed(on_xla)


class TestSharded:
    @pytest.mark.parametrize("how", ["tensor", "fsdp"])
    def test_generate(self, how: str) -> None:
        model, on_xla = pair(lambda: llama(num_key_value_heads=4))
        mesh = spmd.Mesh(range(8), (2, 4), ("fsdp", "tensor"))
        if how == "tensor":
            spmd.ShardingRules.of(on_xla, fsdp=None).apply(on_xla, mesh)
        else:
            for layer in on_xla.model.layers:
                fsdp.fully_shard(layer, mesh=mesh)
            fsdp.fully_shard(on_xla, mesh=mesh)
        for _ in range(2):
            assert torch.equal(written(on_xla, "xla"), written(model, "cpu"))
        assert replayed(on_xla) >= 12


class TestAReturnedCache:
    """A static cache that `generate` returns holds the prompt and its tokens alone: transformers'
    own test of it."""

    @pytest.mark.parametrize("new", [4, 20])
    def test_shapes(self, new: int) -> None:
        model, on_xla = pair()
        how = {
            "max_new_tokens": new,
            "return_dict_in_generate": True,
            "output_scores": True,
            "eos_token_id": None,
        }
        static = on_xla.generate(IDS.to("xla"), **HOW | how, cache_implementation="static")
        dynamic = model.generate(IDS, **HOW | how)
        length = IDS.shape[1] + new - 1  # the last token has no place in it
        assert (
            isinstance(static.past_key_values, transformers.StaticCache)
            and len(static.past_key_values) == 2
        )
        assert int(static.past_key_values.get_seq_length()) == length
        for layer, expected in zip(
            static.past_key_values.layers, dynamic.past_key_values.layers, strict=True
        ):
            assert layer.keys.shape == layer.values.shape == (2, 2, length, 8)
            torch.testing.assert_close(layer.keys.cpu(), expected.keys, rtol=1e-4, atol=1e-4)
        assert torch.equal(static.sequences.cpu(), dynamic.sequences)
        torch.testing.assert_close(
            static.scores[-1].cpu(), dynamic.scores[-1], rtol=1e-4, atol=1e-4
        )

    def test_going_on_from_it(self) -> None:
        model, on_xla = pair()
        words = {}
        for one, device in ((model, "cpu"), (on_xla, "xla")):
            how = {
                "return_dict_in_generate": True,
                "do_sample": False,
                "pad_token_id": 0,
                "eos_token_id": None,
            }
            cache = transformers.StaticCache(one.config, max_cache_len=32)
            first = one.generate(IDS.to(device), past_key_values=cache, max_new_tokens=4, **how)
            second = one.generate(
                first.sequences, past_key_values=first.past_key_values, max_new_tokens=4, **how
            )
            words[device] = second.sequences.cpu()
        assert torch.equal(words["xla"], words["cpu"])


def test_the_programs_between_tokens_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty tokens make few keys."""
    keys: list[Graph] = []
    key = Graph.key
    monkeypatch.setattr(Graph, "key", lambda graph: keys.append(graph) or key(graph))
    # Another thread that has recorded reads nothing of a list.
    thread = threading.Thread(target=lambda: torch.ones(2, device="xla").sum().item())
    thread.start()
    thread.join()
    model, on_xla = pair()
    expected = written(model, "cpu", max_new_tokens=20)
    for _ in range(3):
        keys.clear()
        assert torch.equal(written(on_xla, "xla", max_new_tokens=20), expected)
    # Of a program that other tests have noted often, no graph is kept any more (`num_notes`).
    assert len(keys) < 10


def test_a_list_keeps_a_token_that_is_overwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    """A known graph writes into a copy of a token that has not come to the host."""
    come = HostLists._come

    def not_yet(lists: HostLists, value: Any, *, waits: bool = False) -> Any:
        return come(lists, value, waits=True) if waits else None

    monkeypatch.setattr(HostLists, "_come", not_yet)
    ids, token = torch.tensor([[1, 2]]).to("xla"), torch.tensor([[2]]).to("xla")
    try:
        for _ in range(6):
            set_decoding(True)
            token.add_(1)
            ids = torch.cat([ids, token], dim=1)
            spmd.sync()
        assert ids.tolist() == [list(range(1, 9))]
    finally:
        set_decoding(False)


def test_a_list_that_no_read_has_asked_for_starts_no_program() -> None:
    """Its tokens come in the syncs after the loop, and the host joins them."""
    model, on_xla = pair()
    how = HOW | {"max_new_tokens": 5}
    written(on_xla, "xla", **how)
    ids = on_xla.generate(IDS.to("xla"), attention_mask=MASK.to("xla"), **how)
    x = torch.ones(2).to("xla")
    for _ in range(6):
        x.add_(1)
        spmd.sync(wait=True)
    assert storage_of(ids).value.host is not None
    assert torch.equal(ids.cpu(), written(model, "cpu", **how))
