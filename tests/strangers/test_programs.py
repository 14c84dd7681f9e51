"""Exports, compiled programs, plans and rules that strangers may have changed: the right values, or
a sentence."""

import contextlib
import hashlib
import json
import os
import platform
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import spmd
from spmd.core.files import disk
from spmd.tensors import sealed_json

platform.processor()  # Python asks a process for it, once
sys.path.insert(0, str(Path(__file__).parent))
from changes import Kind, Values, loaded  # noqa: E402

# --- exported programs ----------------------------------------------------------------------------


def mesh() -> spmd.Mesh:
    return spmd.Mesh(range(8), (8,), ("data",))


def write_export(folder: Path) -> None:
    """A training step of a model, with weights, moments and draws."""
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2)).to("xla")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)

    def step(
        batch: dict[str, torch.Tensor], scale: float
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        optimizer.zero_grad()
        loss = (model(batch["x"]) * scale).square().sum()
        loss.backward()
        optimizer.step()
        return loss, {"twice": loss * 2}

    x = spmd.mark_sharding(torch.ones(8, 4, device="xla"), mesh(), ("data", None))
    spmd.export(step, ({"x": x}, 0.5)).save(folder)


def call_export(folder: Path) -> Values:
    program = spmd.load_exported(folder)
    torch.manual_seed(0)
    x = spmd.mark_sharding(torch.ones(8, 4, device="xla"), mesh(), ("data", None))
    loss, more = program({"x": x}, 0.5)
    return {
        "loss": loss.cpu(),
        **more,
        **{name: spmd.full_tensor(value) for name, value in program.state.items()},
    }


def load_export(folder: Path) -> Values:
    """Loads what a stranger has sealed: it may be another program, so that its values are its
    own."""
    spmd.load_exported(folder)
    return {}


def seal_export(folder: Path) -> None:
    """Renews the checksums of the program, the weights and the manifest."""
    body = json.loads((folder / "manifest.json").read_bytes())
    body.pop("sha256", None)
    body["program"]["sha256"] = hashlib.sha256(
        (folder / "program.jax_export").read_bytes()
    ).hexdigest()
    weights = (folder / "weights.safetensors").read_bytes()
    body["weights"] = {"bytes": len(weights), "sha256": hashlib.sha256(weights).hexdigest()}
    (folder / "manifest.json").write_text(sealed_json.text(body))


# --- compiled programs ----------------------------------------------------------------------------

HEADER, BODY = {"jaxlib": "1", "devices": "0,1"}, bytes(range(256)) * 40


def write_cache(folder: Path) -> None:
    """A cache as the library writes it; its body is no program, as what is read is compared, not
    executed."""
    spmd.config.program_cache, spmd.config.program_cache_dir = True, str(folder / "cache")
    disk.write("a" * 64, HEADER, BODY)


def load_cache(folder: Path) -> Values:
    spmd.config.program_cache, spmd.config.program_cache_dir = True, str(folder / "cache")
    # the audit of an open does not show that it follows none
    if any(map(Path.is_symlink, folder.rglob("*"))):
        raise ValueError(f"a link in {folder}: see tests/core/programs/test_disk.py")
    # the cache opens and removes files by the folder's descriptor
    with contextlib.suppress(OSError):
        os.chdir(folder / "cache")
    body = disk.read("a" * 64, HEADER)
    if body is None:
        raise ValueError(f"a miss: the program in {folder / 'cache'} is compiled")
    return {"body": body}


def write_programs(folder: Path) -> None:
    model = nn.Linear(4, 2, device="meta")
    spmd.plan(lambda x: model(x).sum().backward(), torch.ones(3, 4)).save_program(
        folder / "programs"
    )


def load_programs(folder: Path) -> Values:
    """The number of programs, and the content of each that is used: one with its checksum."""
    count = spmd.load_programs(folder / "programs")
    return {"count": count}


# --- plans and rules ------------------------------------------------------------------------------


def write_plan(folder: Path) -> None:
    model = nn.Sequential(nn.Linear(16, 32, device="meta"), nn.Linear(32, 4, device="meta"))
    rules = spmd.ShardingRules({"0.weight": ("data", None), "no.such": ()})
    plan = spmd.plan(
        lambda x: model(x).sum().backward(), torch.ones(8, 16), mesh=mesh(), rules=rules
    )
    (folder / "plan.json").write_text(plan.to_json())


def load_plan(folder: Path) -> Values:
    try:
        plan = spmd.Plan.from_json(
            sealed_json.content(folder / "plan.json", follows_links=True).decode()
        )
    except (ValueError, UnicodeDecodeError) as error:  # `from_json` takes a text, which has no name
        raise ValueError(f"plan.json: {error}") from error
    return {
        "text": str(plan),
        "json": plan.to_json(),
        "fits": plan.fits,
        "same": bool(plan.diff(plan)),
    }


def write_rules(folder: Path) -> None:
    rules = spmd.ShardingRules(
        {
            "**.{query,key}.weight": spmd.P("tensor", None),
            "layers.{0..11}.up:output": spmd.P(None, ("data", "tensor")),
        },
        units=("layers.*",),
        shard_axis="data",
        checkpoint={"layers.*": "dots"},
    )
    rules.save(folder / "rules.toml")


def load_rules(folder: Path) -> Values:
    rules = spmd.ShardingRules.load(folder / "rules.toml")
    return {"text": str(rules), "match": str(rules.match("layers.3.query.weight"))}


_ERRORS = (ValueError, TypeError, FileNotFoundError, OSError)  # the last of a link to itself
KINDS = {
    "exports": Kind(write_export, call_export),
    "sealed exports": Kind(write_export, load_export, seal_export),
    "the cache of programs": Kind(write_cache, load_cache),
    "programs": Kind(write_programs, load_programs),
    "plans": Kind(write_plan, load_plan, is_checked=False, follows_links=True, errors=_ERRORS),
    "rules": Kind(write_rules, load_rules, is_checked=False, follows_links=True, errors=_ERRORS),
}


@pytest.mark.parametrize("name", KINDS)
def test_twenty(name: str) -> None:
    """Each changed copy gives the right values, or a sentence; within its folder, memory and
    time."""
    results = loaded(__file__, name, 20)
    faults = [result for result in results if result.outcome == "fault"]
    assert len(results) == 20 and not faults, "\n\n".join(map(str, faults))
