"""Random programs on rows that data counts: values, gradients and shapes of torch on the CPU,
whatever the count, in each step of one program."""

import random
from collections.abc import Callable

import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import fsdp
import spmd

ROWS, WIDTH, STEPS = 24, 4, 4
# Not 0: a row without its mean is 0 or the last bit of a sum.
NEAR = 1e-6
Env = dict[str, Tensor]

# Ops without a rule: a program for each count.
ALONE: set[Callable[..., Tensor]] = set()


def alone(op: Callable[..., Tensor]) -> Callable[..., Tensor]:
    ALONE.add(op)
    return op


# A mask of the rows: of host data, of exact or rounded ops, of a product.
MASKS: list[Callable[[Env], Tensor]] = [
    lambda env: env["mask"],
    lambda env: ~env["mask"],
    lambda env: env["mask"] & (env["x"].detach()[:, 1] > -0.5),
    lambda env: env["labels"] % 3 == 1,
    lambda env: env["x"].detach().exp().sum(1) > env["x"].detach().exp().mean() * WIDTH,
    lambda env: (env["x"].detach() @ env["weight"].detach())[:, 0] > 0,
    lambda env: torch.zeros_like(env["labels"]).masked_fill(env["mask"], 2) > 1,
    lambda env: torch.zeros_like(env["mask"]),
    lambda env: torch.ones_like(env["mask"]),
]
# The rows of a mask.
ROWS_OF: list[Callable[[Tensor, Tensor], Tensor]] = [
    lambda x, mask: x[mask],
    lambda x, mask: x[torch.where(mask)[0]],
    lambda x, mask: x.index_select(0, mask.nonzero().flatten()),
    alone(lambda x, mask: torch.masked_select(x, mask[:, None]).view(-1, WIDTH)),
    alone(lambda x, mask: x.gather(0, torch.where(mask)[0][:, None].repeat(1, WIDTH))),
    lambda x, mask: x.t()[:, mask].t(),
    lambda x, mask: F.embedding(torch.where(mask)[0], x),
    lambda x, mask: x[torch.where(mask[:, None].expand(-1, WIDTH))].view(-1, WIDTH),
    lambda x, mask: torch.cat([x[mask & half(x)], x[mask & ~half(x)]]),
    lambda x, mask: x[torch.where(mask)[0][torch.where(half(x[mask]) | ~half(x[mask]))[0]]],
]


def half(x: Tensor) -> Tensor:
    """A mask of some rows."""
    return x.detach()[:, 0] > NEAR


def whole(x: Tensor) -> Tensor:
    """Numbers whose order no rounding decides."""
    return (x.detach() * 1e6).round()


def of_some(op: Callable[[Tensor], Tensor], least: int = 1) -> Callable[[Tensor], Tensor]:
    """An op that has no value for fewer rows."""
    return lambda x: op(x) if len(x) >= least else x * 1


def written(x: Tensor) -> Tensor:
    result = x.clone()
    result[result < NEAR] = 0.25
    result[:, 1] = result[:, 0] * 2
    result += 1
    return result


def put_half(x: Tensor) -> Tensor:
    result, mask = x * 1, half(x)
    result[mask] = x[mask].tanh()
    result[~mask, 1] = x[~mask][:, 0]
    return result


def looped(x: Tensor) -> Tensor:
    for least in (-0.5, 0.1, 0.6):
        x = x * 0.5 + x[x.detach()[:, 1] > least].sum(0) * 0.1
    return x


# From rows to rows, of another number in some.
KEEPING: list[Callable[[Tensor], Tensor]] = [
    torch.tanh,
    alone(written),
    lambda x: x.softmax(0),
    lambda x: x.log_softmax(1),
    alone(lambda x: x.cumsum(0) * 0.1),
    lambda x: torch.where(x > NEAR, x, x.exp()),
    lambda x: x.view(-1, 2, 2).transpose(1, 2).reshape(-1, 4),
    lambda x: x @ torch.linspace(-1, 1, 16, dtype=x.dtype).view(4, 4).to(x.device),
    lambda x: (x @ x.t()).tril() @ x * 0.1,
    lambda x: F.layer_norm(x, (WIDTH,)),
    alone(lambda x: x.sort(0)[0]),
    alone(lambda x: x[torch.arange(len(x), device=x.device)]),
    lambda x: x + x.new_zeros(len(x), WIDTH) + torch.ones_like(x),
    alone(lambda x: torch.zeros_like(x).index_add(0, torch.arange(len(x), device=x.device), x)),
    lambda x: x.unsqueeze(0).expand(3, -1, -1).sum(0),
    lambda x: torch.stack(x.unbind(1), 1),
    lambda x: x.flatten().exp().view(-1, WIDTH),
    alone(lambda x: torch.cat([x, x * 2])[: len(x)]),
    alone(lambda x: torch.cat([x[::2], x[1::2]])),
    alone(lambda x: torch.cat([x, x[:2]])),
    lambda x: x[half(x)],
    lambda x: torch.cat([x[~half(x)], x[half(x)] * 2]),
    alone(put_half),
    looped,
    lambda x: x / (1 + x.square().sum(0, keepdim=True)),
    lambda x: x - x.mean(1, keepdim=True),
    alone(lambda x: x[whole(x)[:, 0].argsort(stable=True)]),
    alone(lambda x: torch.cat(x.split([len(x) // 2, len(x) - len(x) // 2])[::-1])),
    alone(lambda x: x.flip(0) + x.roll(1, 0)),
    alone(lambda x: F.pad(x, (0, 0, 1, 2))),
    alone(lambda x: (x[:, None] - x.detach()[None]).abs().sum(1) * 0.1),
    lambda x: x.index_add(0, torch.arange(len(x), device=x.device) // 2, x),
    alone(lambda x: x.repeat(2, 1)),
    alone(lambda x: torch.where(half(x)[:, None], x, x.flip(1))),
    lambda x: x.masked_fill(half(x)[:, None], 0.75),
    lambda x: x.gather(1, (x.detach() > NEAR).long()),
    lambda x: F.one_hot(half(x).long(), WIDTH) * x,
    lambda x: x[1:],
    lambda x: x[:-1],
    of_some(lambda x: x - x.mean(0, keepdim=True)),
    of_some(lambda x: x / (1 + x.detach().abs().amax(0))),
    alone(of_some(lambda x: x * x[-1] - x[0])),
    of_some(lambda x: x * x.var(0), 2),
    alone(of_some(lambda x: x.topk(min(3, len(x)), 0)[0])),
    of_some(lambda x: x[whole(x).argmax(0)]),
    of_some(lambda x: x + whole(x).argmin(0, keepdim=True) * 0.1),
    alone(of_some(lambda x: x.cummax(0)[0] * 0.5)),
]
ENDING: list[Callable[[Tensor], Tensor]] = [
    lambda x: x,
    lambda x: x.sum(0),
    lambda x: x.sum() / max(1, len(x)),
    lambda x: x.norm(),
    lambda x: (x > NEAR).sum(),
    lambda x: (x > NEAR).any(0, keepdim=True),
    lambda x: (x > NEAR).nonzero(),
    lambda x: torch.where(x > NEAR)[1].sum(),
    lambda x: x[x > NEAR].sum() + x[x <= NEAR].square().sum() / max(1, int((x <= NEAR).sum())),
    lambda x: half(x).long().bincount(minlength=3),
    lambda x: x.sum(0, keepdim=True) / x.new_tensor(max(1, len(x))),
    alone(lambda x: x.abs().sum(1).cumsum(0)[-1:]),
    lambda x: x.t() @ x,
    alone(lambda x: x.tanh().prod(0)),
    alone(lambda x: x[:3]),
    lambda x: torch.zeros(5, WIDTH, dtype=x.dtype, device=x.device).index_put(
        ((x.detach()[:, 0] > NEAR).long() + 1,), x, accumulate=True
    ),
    lambda x: F.cross_entropy(x, torch.arange(len(x), device=x.device) % WIDTH, reduction="sum"),
    lambda x: F.smooth_l1_loss(x, torch.ones_like(x) * 0.3, reduction="sum"),
    lambda x: F.binary_cross_entropy_with_logits(x, torch.zeros_like(x), reduction="sum"),
    of_some(lambda x: x.mean()),
    of_some(lambda x: x.detach().amax(0)),
    of_some(lambda x: whole(x).max(0, keepdim=True).indices),
    alone(of_some(lambda x: x.std(0, keepdim=True), 2)),
    alone(of_some(lambda x: x.logsumexp(0))),
    of_some(lambda x: F.mse_loss(x, x.detach() * 0.5)),
]


def put(table: Tensor, mask: Tensor, rows: Tensor) -> Tensor:
    table[mask] = rows
    return table


def put_numbers(table: Tensor, mask: Tensor, rows: Tensor) -> Tensor:
    index = torch.where(mask)[0]
    table[index, index % WIDTH] = 7.0
    table[index - ROWS, 0] = rows[:, 1]
    return table


def put_more(table: Tensor, mask: Tensor, rows: Tensor) -> Tensor:
    table[mask] += rows
    table[mask, 1] = rows[:, 0]
    table[~mask] *= 0.5
    return table


# Rows written to the places of a mask.
WRITES: list[Callable[[Tensor, Tensor, Tensor], Tensor]] = [
    put,
    put_numbers,
    lambda table, mask, rows: table.index_add(0, torch.where(mask)[0], rows),
    alone(lambda table, mask, rows: table.masked_scatter(mask[:, None].expand(-1, WIDTH), rows)),
    put_more,
    lambda table, mask, rows: table.index_put((torch.where(mask)[0] % 3,), rows.sum(0), True),
    lambda table, mask, rows: table.index_put((torch.where(mask)[0] % 3,), rows, True),
    alone(lambda table, mask, rows: table.index_copy(0, torch.where(mask)[0], rows)),
    lambda table, mask, rows: table.scatter_add(
        0, torch.where(mask)[0][:, None].expand(-1, WIDTH), rows
    ),
    alone(
        lambda table, mask, rows: table.scatter(
            0, torch.where(mask)[0][:, None].expand(-1, WIDTH), rows
        )
    ),
]
# Rows of two counts together.
PAIRS: list[Callable[[Tensor, Tensor], Tensor]] = [
    alone(lambda a, b: torch.cat([a, b]).sum(0)),
    lambda a, b: torch.cat([a, b]).softmax(0),
    alone(lambda a, b: (a @ b.t()).sum(1)),
    alone(lambda a, b: (a[:, None] - b[None]).abs().sum((1, 2))),
    lambda a, b: torch.maximum(a[:, None], b[None]).clamp(min=-1).sum((0, 1)),
    lambda a, b: (a.sum(0) + b.square().sum()) / max(1, len(a)),
    lambda a, b: a + b if len(a) == len(b) else a,
    lambda a, b: a * b.sum(0, keepdim=True) + len(b),
    lambda a, b: a[whole(a @ b.t()).argmax(0)] if len(a) else b,
    lambda a, b: (whole(a @ b.t()).max(1).values if len(b) else a.detach()[:, 0]) * 1e-6,
]


class Program:
    """A program that a seed draws; a step of it takes data of any count."""

    def __init__(self, seed: int):
        draw = random.Random(seed)
        left_out = ALONE if draw.random() < 0.7 else ()
        rows_of, keeping, ending, writes, pairs = (
            [op for op in ops if op not in left_out]
            for ops in (ROWS_OF, KEEPING, ENDING, WRITES, PAIRS)
        )
        self.masks, self.rows_of = draw.choices(MASKS, k=2), draw.choices(rows_of, k=2)
        self.ops = draw.sample(keeping, draw.randrange(5))
        self.endings, self.write = draw.sample(ending, 2), draw.choice(writes)
        self.pairs = draw.sample(pairs, 2)
        self.middle = draw.choice(["", "", "sync", "read", "print"])
        self.is_sharded, self.is_computed = draw.random() < 0.3, draw.random() < 0.25
        self.is_fully_sharded = draw.random() < 0.2
        self.old: dict[str, Tensor] = {}
        self.layers: dict[str, nn.Module] = {}

    def layer(self, device: str, mesh: spmd.Mesh) -> nn.Module:
        """A layer on a device that every step trains."""
        if device not in self.layers:
            layer = nn.Linear(WIDTH, WIDTH, dtype=torch.float64)
            with torch.no_grad():
                for parameter in layer.parameters():
                    parameter.copy_(torch.linspace(-1, 1, parameter.numel()).view_as(parameter))
            layer.to(device)
            if self.is_fully_sharded and device == "xla":
                fsdp.fully_shard(layer, mesh=mesh)
            self.layers[device] = layer
        return self.layers[device]

    def step(self, data: Env, device: str, mesh: spmd.Mesh) -> list[Tensor]:
        """The results of one step on a device, and the gradients."""
        env = {name: value.to(device, copy=True) for name, value in data.items()}
        if self.is_sharded and device == "xla":
            spmd.mark_sharding(env["x"], mesh, (mesh.axis_names[0], None))
        if self.is_computed:
            env["x"] = env["x"] * 1.0
            if device == "xla":
                spmd.sync()
        x, weight, layer = env["x"].requires_grad_(), env["weight"], self.layer(device, mesh)
        masks = [mask(env) for mask in self.masks]
        rows = [op(x, mask) for op, mask in zip(self.rows_of, masks, strict=True)]
        results = [torch.tensor(len(each)) for each in rows]
        results += [pair(*rows) for pair in self.pairs]
        weight.requires_grad_()
        results.append(self.write(x * 1, masks[1], layer(rows[1] @ weight)))
        changed = rows[0]
        for op in self.ops:
            changed = op(changed)
        if self.middle == "sync" and device == "xla":
            spmd.sync()
        elif self.middle == "read":
            results.append(changed.detach().cpu())
        elif self.middle == "print":
            assert str(changed)
        results += [ending(changed) for ending in self.endings]
        if device in self.old:
            results.append(self.old[device] * 2)
        self.old[device] = changed.detach()
        total = sum(result.square().sum() for result in results if result.requires_grad)
        assert isinstance(total, Tensor)
        (total * 0.01).backward()
        leaves = [x, weight, *layer.parameters()]
        gradients = [leaf.grad for leaf in leaves if leaf.grad is not None]
        layer.zero_grad()
        return [*results, *gradients]


@settings(max_examples=15, deadline=None, database=None)
@given(seed=st.integers(0, 2**32))
def test_any_count(seed: int, mesh8: spmd.Mesh) -> None:
    program, draw = Program(seed), random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    for count in [draw.choice([0, 1, ROWS]), *(draw.randrange(ROWS + 1) for _ in range(STEPS - 1))]:
        mask = torch.zeros(ROWS, dtype=torch.bool)
        mask[draw.sample(range(ROWS), count)] = True
        data = {
            "x": torch.randn(ROWS, WIDTH, generator=generator, dtype=torch.float64),
            "weight": torch.randn(WIDTH, WIDTH, generator=generator, dtype=torch.float64),
            "labels": torch.randint(9, (ROWS,), generator=generator),
            "mask": mask,
        }
        wanted, made = (program.step(data, device, mesh8) for device in ("cpu", "xla"))
        assert [each.shape for each in made] == [each.shape for each in wanted]
        read = [each.detach().cpu() for each in made]
        torch.testing.assert_close(
            read, [each.detach() for each in wanted], rtol=1e-7, atol=1e-7, equal_nan=True
        )


def score(x: Tensor) -> Tensor:
    return (x * 0.37).sin().exp().sum(1).rsqrt() * 1.1 + x[:, 0].tanh()


def test_ops_that_round_decide_once() -> None:
    """Thresholds at values that the host and the device round otherwise: the same rows are counted
    and found by the mask, recorded before the count or after it."""
    data = torch.randn(3000, 7)
    x, threshold = data.to("xla"), score(data).to("xla")
    mask, weight = score(x) > threshold, torch.ones(3000, device="xla")
    weight[torch.where(score(x) > threshold)[0]] = 2
    later = score(x) > threshold
    assert torch.equal(weight.cpu() == 2, mask.cpu()) and torch.equal(mask.cpu(), later.cpu())


def test_data_that_a_program_has_rounded() -> None:
    """The device has computed the scores before: it decides the count, too."""
    data = torch.randn(3000, 7)
    x, threshold = data.to("xla"), score(data).to("xla")
    mask = score(x) > threshold
    spmd.sync()
    assert torch.equal(torch.where(score(x) > threshold)[0].cpu(), torch.where(mask.cpu())[0])
