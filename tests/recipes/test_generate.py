"""Generation as a user runs it, tiny: every way writes plain PyTorch's tokens, by few programs."""

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

import spmd
from recipes import generate

SIZES = [
    "--layers=1",
    "--width=32",
    "--heads=8",
    "--draft-width=16",
    "--sequence=32",
    "--batch=128",
    "--prompt=8",
]
TINY = [*SIZES, "--tokens=8", "--steps=2", "--warmup=1", "--eval-every=2"]


ARGS = generate.parse(TINY)


@pytest.fixture(scope="module")
def models() -> tuple[generate.Place, list[Any], list[Any]]:
    """Target and draft over the mesh, and on the CPU with equal weights; the draft is right at
    times."""
    torch.manual_seed(1)
    place, config = generate.Place(ARGS), generate.configure(ARGS)
    plain = [AutoModelForCausalLM.from_config(config).eval() for _ in range(2)]
    noise = {
        name: 0.01 * torch.randn_like(weight) for name, weight in plain[0].state_dict().items()
    }
    plain[1].load_state_dict(
        {name: weight + noise[name] for name, weight in plain[0].state_dict().items()}
    )
    sharded = [place.model(config).eval() for _ in range(2)]
    for one, other in zip(sharded, plain, strict=True):
        one.load_state_dict(other.state_dict())
    assert spmd.get_sharding(sharded[0].model.layers[0].mlp.down_proj.weight).partition_spec(2) == (
        None,
        "tensor",
    )
    return place, sharded, plain


class TestReport:
    """It prints the figures of each way, all with the CPU's tokens, and a sample; it leaves
    tokens.png."""

    def test_plain_pytorch(self, tmp_path: Path) -> None:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            generate.main([*TINY, "--device=cpu", "--batches", "1", "2", "--out", str(tmp_path)])
        found = printed.getvalue()
        rows = re.findall(
            r"^(generate|a loop|speculative), .*?  +(\d) +[\d.]+ .* (yes|NO) *$",
            found,
            re.MULTILINE,
        )
        assert [row[1:] for row in rows] == [("1", "yes")] * 3 + [("2", "yes")] * 3
        assert "A sample" in found
        assert (tmp_path / "tokens.png").read_bytes().startswith(b"\x89PNG")


class TestSharded:
    """Over a mesh: the same tokens, and a program for the prompt and one for each token or round,
    compiled or not."""

    @pytest.mark.parametrize("way", ["a loop, spmd.compile", "speculative, spmd.compile"])
    def test_tokens_and_programs(self, way: str, models: Any) -> None:
        args = ARGS
        place, sharded, plain = models
        prompts = torch.randint(1, 256, (2, args.prompt))
        expected = plain[0].generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            max_new_tokens=args.tokens,
            **generate.HOW,
        )[:, args.prompt :]
        spmd.sync()
        make, how = generate.WAYS[way]
        with torch.no_grad():
            before = spmd.metrics.num_compiles()
            decode = make(tuple(sharded), place, args, 2, how)
            found = [decode(place.put(prompts))[0] for _ in range(3)]
        assert all(torch.equal(tokens, expected) for tokens in found)
        assert spmd.metrics.num_compiles() - before <= 3, spmd.metrics.report()
        if how == "compiled":
            assert decode.first_step.num_recorded <= 2 and decode.step.num_recorded <= 2, (
                decode.step.explain()
            )
            assert decode.step.num_replayed > 2, decode.step.explain()

    def test_a_draft_that_is_right_saves_calls(self, models: Any) -> None:
        args = ARGS
        place, sharded, _ = models
        prompt = place.put(torch.randint(1, 256, (1, args.prompt)))
        with torch.no_grad():
            _, _, per_call = generate.Speculative((sharded[0], sharded[0]), place, args, 1, "lazy")(
                prompt
            )
        assert per_call == args.ahead + 1


class TestTarget:
    """--target plans the step for other devices; nothing is trained."""

    def test_planned(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        generate.main([*TINY, "--target=cpu:8", "--out", str(tmp_path)])
        printed = capsys.readouterr().out
        assert (
            "cpu:8 (data=2, tensor=4)" in printed
            and "all-reduce" in printed
            and "held-out" not in printed
        )
        assert [path.name for path in tmp_path.iterdir()] == ["plan.html"]


class TestArguments:
    """A wrong command line is an error that says what to do, before anything runs."""

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ("--mesh fsdp=8", "the axes are tensor and, if wanted, data, each once"),
            ("--heads 4", "half as many heads of keys must be a multiple of the mesh's tensor=4"),
            ("--load nowhere", "--load nowhere has no config.json"),
            ("--tokens 0", "--tokens, --ahead and --batches must be at least 1"),
        ],
    )
    def test_refused(
        self, arguments: str, message: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with pytest.raises(SystemExit):
            generate.parse(arguments.split())
        assert message in capsys.readouterr().err
