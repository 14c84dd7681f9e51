"""The programs whose StableHLO is kept: each records one step, and what its barrier compiles is the
text.

Each returns the text of its second step, when optimizers have their state and initial values are
made: StableHLO before partitioning, with shardings and donation, as XLA is given it. Where the
texts lie stands here too; not here: writing and comparing them.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import torch
import transformers
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

import fsdp
import spmd
from recipes.gpt import GPT, Block, GPTConfig, cross_entropy
from spmd import Mesh
from spmd.core.programs import cache, compiler

ALL = range(8)
# The first line of a text, which is not compared: a difference below it may come from another
# version.
VERSIONS = (
    f"torch {torch.__version__.split('+')[0]}, jax {jax.__version__}, transformers "
    f"{transformers.__version__}"
)


def compiled_text(step: Callable[[], Any]) -> str:
    """Runs a step twice and returns what the second one's barrier gives to XLA, which must be one
    program.

    The reports that `config.check_shardings` adds are left out: they hold addresses of this
    process.
    """
    texts = []
    lower = compiler.lower_graph

    def kept(graph: Any, chosen: Any = None) -> Any:
        texts.append(str(lower(graph).as_text()))
        return lower(graph, chosen)

    held = step()
    spmd.sync()
    cache.clear_cache()
    spmd.config.program_cache = False  # a program from disk is not lowered
    with mock.patch.object(compiler, "lower_graph", kept):
        held = step()
        spmd.sync()
    del held  # what a step returns lives until its barrier, as the loss of a training loop does
    (text,) = texts
    return one_per_line(text)


def one_per_line(text: str) -> str:
    """The text with each argument and result of its main function, which comes first, on a line of
    its own."""
    signature, body = text.split(") {\n", 1)
    for short, broken in (
        (", %arg", ",\n    %arg"),
        ("}, tensor<", "},\n    tensor<"),
        (" -> (", " -> (\n    "),
    ):
        signature = signature.replace(short, broken)
    return f"{signature}) {{\n{body}"


def gpt(mesh: Mesh, *, dropout: float) -> nn.Module:
    """The recipes' GPT under FSDP, as `recipes/train_gpt.py` wraps it."""
    model = GPT(
        GPTConfig(layers=1, width=16, heads=2, sequence=8, vocabulary=32, dropout=dropout)
    ).to("xla")
    return fsdp.FullyShardedDataParallel(
        model,
        mesh=mesh,
        auto_wrap_policy=partial(fsdp.transformer_auto_wrap_policy, transformer_layer_cls={Block}),
    )


def batch(mesh: Mesh) -> tuple[Tensor, Tensor]:
    """Tokens and targets, split over the mesh."""
    tokens = torch.randint(32, (8, 9))
    inputs, targets = (
        spmd.mark_sharding(t.to("xla"), mesh, ("fsdp", None))
        for t in (tokens[:, :-1], tokens[:, 1:])
    )
    return inputs, targets


def fsdp_training_step() -> str:
    """GPT under FSDP: forward, backward, clipping, AdamW; parameters and moments are donated."""
    mesh = Mesh(ALL, (8,), ("fsdp",))
    model = gpt(mesh, dropout=0.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)

    def step() -> Tensor:
        tokens, targets = batch(mesh)
        loss = cross_entropy(model(tokens), targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return compiled_text(step)


def evaluation_step() -> str:
    """A GPT with dropout, in eval and without gradients: nothing is dropped, nothing is donated."""
    mesh = Mesh(ALL, (8,), ("fsdp",))
    model = gpt(mesh, dropout=0.1).eval()

    @torch.no_grad()
    def step() -> Tensor:
        tokens, targets = batch(mesh)
        return cross_entropy(model(tokens), targets)

    return compiled_text(step)


def tensor_parallel_llama() -> str:
    """A Llama block, forward and backward: weights split over `model` by columns, then rows; the
    batch over `data`."""
    mesh = Mesh(ALL, (2, 4), ("data", "model"))
    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=4,
        vocab_size=32,
        max_position_embeddings=8,
        attn_implementation="sdpa",
    )
    block, rotary = LlamaDecoderLayer(config, 0).to("xla"), LlamaRotaryEmbedding(config).to("xla")
    for name, weight in block.named_parameters():
        if weight.dim() == 2:
            by_rows = "o_proj" in name or "down_proj" in name
            spmd.mark_sharding(weight, mesh, (None, "model") if by_rows else ("model", None))

    def step() -> Tensor:
        x = spmd.mark_sharding(
            torch.randn(4, 8, 32).to("xla"), mesh, ("data", None, None)
        ).requires_grad_()
        places = torch.arange(8, device="xla")[None]
        made = block(x, position_ids=places, position_embeddings=rotary(x, places))
        block.zero_grad()
        made.square().mean().backward()
        return x.grad

    return compiled_text(step)


def uneven_dims() -> str:
    """Linear layers, dropout, SGD with momentum; no axes divide the dim split over them: padded,
    cut inside."""
    mesh = Mesh(ALL, (2, 4), ("data", "model"))
    up, down = nn.Linear(9, 13).to("xla"), nn.Linear(13, 3).to("xla")
    spmd.mark_sharding(up.weight, mesh, ("model", "data"))
    spmd.mark_sharding(up.bias, mesh, (("data", "model"),))
    spmd.mark_sharding(down.weight, mesh, (None, "model"))
    optimizer = torch.optim.SGD([*up.parameters(), *down.parameters()], lr=0.1, momentum=0.9)

    def step() -> Tensor:
        x = spmd.mark_sharding(torch.randn(7, 9).to("xla"), mesh, (("data", "model"), None))
        hidden = spmd.mark_sharding(up(x).relu(), mesh, ("data", "model"))
        loss = down(nn.functional.dropout(hidden, 0.25)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return compiled_text(step)


def views_and_writes() -> str:
    """Writes through slices, transposes, diagonals, strides and index tensors into a split buffer,
    which is donated."""
    mesh = Mesh(ALL, (8,), ("rows",))
    x = spmd.mark_sharding(torch.randn(8, 16).to("xla"), mesh, ("rows", None))
    rows = torch.tensor([5, 0, 5]).to("xla")

    def step() -> list[Tensor]:
        x[2:6, ::3] = x[1:5, :6].cos()
        # `x[:, -1] = 0.5` is fill_ of a tensor up to torch 2.14, of the number from 2.15 on
        x[:, -1].fill_(0.5)
        x.t()[3].mul_(2)
        x.diagonal(1).add_(1)
        x.as_strided((4, 3), (17, 2), 1).sub_(x.as_strided((3, 4), (1, 16), 2).t())
        x[rows] = x[rows] * 3
        x.index_put_((rows, rows + 1), torch.ones(3, device="xla"), accumulate=True)
        x[x > 4] = 4
        x.view(4, 2, 16).select(1, 0).unsqueeze(0).exp_()
        x.unfold(1, 4, 4)[..., 0].zero_()
        return [x.t().reshape(-1)[7:29], x.flatten()[::5], x.transpose(0, 1).contiguous()]

    return compiled_text(step)


def two_meshes() -> str:
    """State on two meshes, the second with other axes and another order of the devices, that meets
    in one program."""
    first = Mesh(ALL, (8,), ("rows",))
    second = Mesh([0, 3, 1, 2, 7, 5, 6, 4], (4, 2), ("p", "q"))
    a = spmd.mark_sharding(torch.randn(8, 8).to("xla"), first, ("rows", None))
    b = spmd.mark_sharding(torch.randn(8, 8).to("xla"), second, ("p", "q"))

    def step() -> Tensor:
        a.mul_(0.5).add_(b.t())
        b.add_(spmd.mark_sharding(a.flip(0), second, ("q", None)) * 0.1)
        return spmd.mark_sharding(a @ b, second, (None, ("q", "p")))

    return compiled_text(step)


PROGRAMS: dict[str, Callable[[], str]] = {
    program.__name__: program
    for program in (
        fsdp_training_step,
        evaluation_step,
        tensor_parallel_llama,
        uneven_dims,
        views_and_writes,
        two_meshes,
    )
}


def text_of(name: str) -> str:
    """The text of one program under the partitioner of this process, whatever ran in it before."""
    spmd.sync()  # what others left pending is none of the program's
    torch.manual_seed(0)
    return f"// {VERSIONS}\n{PROGRAMS[name]()}"


def kept_file(name: str) -> Path:
    """The file of a program's text for the partitioner of this process."""
    return Path(__file__).with_name(f"{name}.{spmd.config.partitioner}.mlir")
