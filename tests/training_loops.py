"""Random training loops with state, by a seed: a model, an optimizer, and what happens in each of
some steps. `run` runs one, and returns all that it has computed."""

import contextlib
import contextvars
import copy
import functools
import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.autograd import forward_ad

import fsdp
import spmd
from spmd.steps.segments import segment_calls

WIDTH, CLASSES, STEPS = 8, 4, 12

# State that no name of Python's refers to.
GAIN = contextvars.ContextVar("GAIN", default=1.0)
COUNTS = bytearray([1])


class Block(nn.Module):
    """Layers whose forward reads Python state of several kinds."""

    def __init__(self, draw: random.Random, dropout: float):
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.norm: nn.Module = draw.choice([
            nn.LayerNorm(WIDTH), nn.BatchNorm1d(WIDTH), nn.Identity(),
        ])  # fmt: skip
        self.dropout, self.scale, self.options = nn.Dropout(dropout), 1.0, {"residual": True}
        self.activations: list[Callable[[torch.Tensor], torch.Tensor]] = [torch.tanh]
        if draw.random() < 0.3:
            self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(self.norm(x)) * self.scale
        for activation in self.activations:
            y = activation(y)
        y = self.second(self.dropout(y))
        return x + y if self.options["residual"] else y


class Net(nn.Module):
    """Blocks and a head, and perhaps a layer that nothing uses. is_turned: its result is a view."""

    def __init__(self, draw: random.Random, form: random.Random):
        super().__init__()
        dropout = draw.choice([0.0, 0.0, 0.25])
        self.blocks = nn.ModuleList(Block(draw, dropout) for _ in range(draw.randint(1, 3)))
        self.head = nn.Linear(WIDTH, CLASSES)
        self.form = draw.choice(["tensor", "tuple", "dict"])
        self.num_layers, self.fails = len(self.blocks), False
        self.is_turned = form.random() < 0.3
        if form.random() < 0.3:
            self.unused = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, notes: Any = None) -> Any:
        x = x * (GAIN.get() * COUNTS[0])
        for block in self.blocks[: self.num_layers]:
            x = block(x)
            if self.fails:
                raise KeyError("in the middle of a step")
        if self.is_turned:
            y = torch.addmm(self.head.bias[:, None], self.head.weight, x.t()).t()
        else:
            y = self.head(x)
        if isinstance(notes, list):
            notes.append(x.square().mean())
        elif isinstance(notes, dict):
            notes["mean"] = x.square().mean()
        return {"tensor": y, "tuple": (y, x), "dict": {"logits": y, "hidden": x}}[self.form]


class Loop:
    """The state of a loop under way."""

    def __init__(self, seed: int, num_devices: int, model: int | None = None):
        model_seed = seed if model is None else model
        self._seed(model_seed)
        draw, mesh = self.draw, None
        self.net: Any = Net(draw, random.Random(model_seed)).to("xla")
        self.inner = self.net
        if num_devices > 1:
            mesh = spmd.Mesh(range(num_devices), (num_devices,), ("fsdp",))
            if draw.random() < 0.7:
                policy = functools.partial(
                    fsdp.transformer_auto_wrap_policy, transformer_layer_cls={Block}
                )
                self.net = fsdp.FullyShardedDataParallel(
                    self.inner, mesh=mesh, auto_wrap_policy=policy
                )
        self.mesh, self.size = mesh, 8
        parameters = [*self.net.parameters()]
        self.optimizer: Any = draw.choice([
            lambda: torch.optim.SGD(parameters, 0.05),
            lambda: torch.optim.SGD(parameters, 0.05, momentum=0.9),
            lambda: torch.optim.AdamW(parameters, 0.01),
            lambda: torch.optim.Adam(parameters, 0.01, foreach=False),
            lambda: torch.optim.AdamW(
                [{"params": parameters[:2], "lr": 0.02}, {"params": parameters[2:]}], 0.01
            ),
            lambda: torch.optim.RMSprop(parameters, 0.01),
        ])()  # fmt: skip
        self.scheduler: Any = draw.choice([
            lambda: None,
            lambda: torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 20),
            lambda: torch.optim.lr_scheduler.StepLR(self.optimizer, 3),
            lambda: torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda n: 1 / (n + 1)),
        ])()  # fmt: skip
        self.autocast = draw.random() < 0.15
        self.accumulates = draw.choice([1, 1, 1, 2])
        self.to_none = draw.random() < 0.8
        self.clips = draw.random() < 0.3
        self.handles: list[Any] = []
        self.seen: list[Any] = []  # all that the loop has read
        self.held: list[Any] = []  # tensors of earlier steps, to be read at the end
        self.last = self.average = torch.zeros(())
        if model is not None:
            self._seed(seed)
        # the share of steps without a sync: two of these in one program are a program of their own
        self.unsynced = self.draw.choice([0.0, 0.0, 0.0, 0.3])

    def _seed(self, seed: int) -> None:
        self.draw = random.Random(seed)
        torch.manual_seed(seed)
        spmd.manual_seed(seed)
        self.batches = torch.Generator().manual_seed(seed)

    def batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.randn(self.size, WIDTH, generator=self.batches)
        y = torch.randint(0, CLASSES, (self.size,), generator=self.batches)
        return tuple(self._placed(one.to("xla")) for one in (x, y))  # type: ignore[return-value]

    def _placed(self, tensor: torch.Tensor) -> torch.Tensor:
        if self.mesh is None:
            return tensor
        return spmd.mark_sharding(tensor, self.mesh, ("fsdp",) + (None,) * (tensor.dim() - 1))

    def logits(self, x: torch.Tensor, notes: Any = None) -> torch.Tensor:
        result = self.net(x) if notes is None else self.net(x, notes)
        if isinstance(result, dict):
            return result["logits"]
        return result[0] if isinstance(result, tuple) else result

    def loss(self) -> torch.Tensor:
        x, y = self.batch()
        with torch.autocast("xla", torch.bfloat16) if self.autocast else contextlib.nullcontext():
            return nn.functional.cross_entropy(self.logits(x).float(), y)

    def step(self) -> None:
        for _ in range(self.accumulates):
            loss = self.loss() / self.accumulates
            loss.backward()
        if self.clips:
            self.see(nn.utils.clip_grad_norm_(self.net.parameters(), 0.5))
        self.end(loss)

    def end(self, loss: torch.Tensor) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=self.to_none)
        if self.scheduler is not None:
            self.scheduler.step()
        self.see(loss)

    def see(self, value: torch.Tensor) -> None:
        self.seen.append(value.detach())
        if self.draw.random() < 0.3:
            self.seen[-1] = self.seen[-1].item()
        elif self.draw.random() >= self.unsynced:
            spmd.sync()


# --- what happens in a step -----------------------------------------------------------------------


def _weight(loop: Loop) -> Any:
    return loop.draw.choice([*loop.inner.parameters()])


def _block(loop: Loop) -> Any:
    return loop.draw.choice([*loop.inner.blocks])


def plain(loop: Loop) -> None:
    loop.step()


def evaluated(loop: Loop) -> None:
    loop.net.eval()
    with torch.no_grad():
        loop.see(loop.loss())
    loop.net.train()
    loop.step()


def trained_in_eval_mode(loop: Loop) -> None:
    loop.net.eval()
    loop.step()
    loop.net.train()


def attribute_set(loop: Loop) -> None:
    _block(loop).scale = loop.draw.choice([0.5, 1.0, 2.0])
    loop.step()


def option_set(loop: Loop) -> None:
    _block(loop).options["residual"] = loop.draw.random() < 0.5
    loop.step()


def activation_appended(loop: Loop) -> None:
    activations = _block(loop).activations
    activations.append(loop.draw.choice([torch.relu, torch.sigmoid]))
    loop.step()
    if loop.draw.random() < 0.5:
        activations.pop()


def layers_dropped(loop: Loop) -> None:
    """LayerDrop by the loop's own word."""
    loop.inner.num_layers = loop.draw.randint(1, len(loop.inner.blocks))
    loop.step()


def dropout_set(loop: Loop) -> None:
    _block(loop).dropout.p = loop.draw.choice([0.0, 0.5])
    loop.step()


def other_size(loop: Loop) -> None:
    loop.size = loop.draw.choice([8, 16])
    loop.step()


def frozen(loop: Loop) -> None:
    weight = _weight(loop)
    weight.requires_grad_(not weight.requires_grad)
    if any(one.requires_grad for one in loop.net.parameters()):
        loop.step()
    else:
        weight.requires_grad_(True)


def rate_set(loop: Loop) -> None:
    loop.optimizer.param_groups[0]["lr"] *= 0.5
    loop.step()


def decay_set(loop: Loop) -> None:
    loop.optimizer.param_groups[-1]["weight_decay"] = loop.draw.choice([0.0, 0.1])
    loop.step()


def weight_written(loop: Loop) -> None:
    with torch.no_grad():
        _weight(loop).mul_(0.9)
    loop.step()


def weight_replaced(loop: Loop) -> None:
    weight = _weight(loop)
    weight.data = weight.detach() * 1.5
    loop.step()


def state_loaded(loop: Loop) -> None:
    loop.inner.load_state_dict({k: v * 1.25 if v.is_floating_point() else v
                                for k, v in loop.inner.state_dict().items()})  # fmt: skip
    loop.step()


def optimizer_loaded(loop: Loop) -> None:
    loop.optimizer.load_state_dict(copy.deepcopy(loop.optimizer.state_dict()))
    loop.step()


def output_hook(loop: Loop) -> None:
    loop.handles.append(_block(loop).register_forward_hook(lambda module, args, y: y * 0.5))
    loop.step()


def input_hook(loop: Loop) -> None:
    loop.handles.append(_block(loop).register_forward_pre_hook(lambda module, args: (args[0] + 1,)))
    loop.step()


def noted_by_a_hook(loop: Loop) -> None:
    noted: list[torch.Tensor] = []
    handle = _block(loop).register_forward_hook(lambda module, args, y: noted.append(y.detach()))
    loop.step()
    handle.remove()
    loop.see(sum((one.sum() for one in noted), torch.zeros((), device="xla")))


def gradient_hook(loop: Loop) -> None:
    weight = _weight(loop)
    if weight.requires_grad:
        loop.handles.append(weight.register_hook(lambda gradient: gradient * 0.5))
    loop.step()


def module_backward_hook(loop: Loop) -> None:
    # a first block's input has no gradient
    loop.handles.append(
        _block(loop).register_full_backward_hook(
            lambda module, gin, gout: tuple(None if one is None else one * 0.5 for one in gin)
        )
    )
    loop.step()


def hook_removed(loop: Loop) -> None:
    if loop.handles:
        loop.handles.pop(loop.draw.randrange(len(loop.handles))).remove()
    loop.step()


def failed(loop: Loop) -> None:
    loop.inner.fails = True
    with contextlib.suppress(KeyError):
        loop.step()
    loop.inner.fails = False
    loop.optimizer.zero_grad(set_to_none=loop.to_none)


def interrupted(loop: Loop) -> None:
    """Ctrl-C in a forward that has written and drawn nothing."""

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    handle = loop.inner.blocks[0].register_forward_pre_hook(interrupt)
    with contextlib.suppress(KeyboardInterrupt):
        loop.step()
    handle.remove()
    loop.optimizer.zero_grad(set_to_none=loop.to_none)


def dropped(loop: Loop) -> None:
    """A loss without a backward."""
    loop.see(loop.loss())


def gradients_kept(loop: Loop) -> None:
    loop.loss().backward()
    loop.step()


def backward_twice(loop: Loop) -> None:
    loss = loop.loss()
    loss.backward(retain_graph=True)
    loss.backward()
    loop.end(loss)


def gradient_penalty(loop: Loop) -> None:
    x, y = loop.batch()
    x.requires_grad_(True)
    loss = nn.functional.cross_entropy(loop.logits(x), y)
    (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
    (loss + gradient.square().sum()).backward()
    loop.end(loss)


def gradient_of_input(loop: Loop) -> None:
    x, y = loop.batch()
    x.requires_grad_(True)
    loss = nn.functional.cross_entropy(loop.logits(x), y)
    loop.see(torch.autograd.grad(loss, x)[0].sum())
    loop.step()


def gradients_by_name(loop: Loop) -> None:
    weights = [one for one in loop.net.parameters() if one.requires_grad]
    loss = loop.loss()
    gradients = torch.autograd.grad(loss, weights, allow_unused=True)
    for weight, gradient in zip(weights, gradients, strict=True):
        weight.grad = gradient
    loop.end(loss)


def two_calls(loop: Loop) -> None:
    loss = loop.loss() + loop.loss()
    loss.backward()
    loop.end(loss)


def saved_hooks(loop: Loop) -> None:
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x * 1.0, lambda x: x):
        loop.step()


def checkpointed(loop: Loop) -> None:
    x, y = loop.batch()
    result = torch.utils.checkpoint.checkpoint(loop.logits, x, use_reentrant=False)
    loss = nn.functional.cross_entropy(result, y)
    loss.backward()
    loop.end(loss)


def averaged(loop: Loop) -> None:
    """An average of the weights beside the training."""
    copied = copy.deepcopy(loop.inner)
    with torch.no_grad():
        for mine, other in zip(copied.parameters(), loop.inner.parameters(), strict=True):
            mine.lerp_(other * 2, 0.1)
        x, _ = loop.batch()
        result = copied.eval()(x)
    loop.see((result if isinstance(result, torch.Tensor) else next(iter(result.values()))
              if isinstance(result, dict) else result[0]).sum())  # fmt: skip
    loop.step()


def read_on_the_host(loop: Loop) -> None:
    """A number that the device computes decides."""
    loss = loop.loss()
    (loss * 0.5 if loss.item() > 1.3 else loss).backward()
    loop.end(loss)


def seeded(loop: Loop) -> None:
    spmd.manual_seed(loop.draw.randrange(100))
    loop.step()


def form_set(loop: Loop) -> None:
    loop.inner.form = loop.draw.choice(["tensor", "tuple", "dict"])
    loop.step()


def without_gradients(loop: Loop) -> None:
    loop.optimizer.step()
    loop.step()


def _trained(loop: Loop) -> torch.Tensor:
    """A weight with a gradient, between a backward and the optimizer's step."""
    loss = loop.loss()
    loss.backward()
    with_gradient = [weight for weight in loop.net.parameters() if weight.grad is not None]
    loop.last = loss
    return loop.draw.choice(with_gradient)


def gradient_read(loop: Loop) -> None:
    loop.see(_trained(loop).grad.sum())  # type: ignore[union-attr]
    loop.end(loop.last)


def gradient_held(loop: Loop) -> None:
    """What it is stays what it is, whatever later steps do."""
    gradient = _trained(loop).grad
    assert gradient is not None
    loop.held.append(loop.draw.choice([gradient, gradient[:1], gradient.detach(), (gradient,)]))
    loop.end(loop.last)


def gradient_scaled(loop: Loop) -> None:
    _trained(loop).grad.mul_(0.5)  # type: ignore[union-attr]
    loop.end(loop.last)


def gradient_replaced(loop: Loop) -> None:
    weight = _trained(loop)
    weight.grad = loop.draw.choice([None, weight.grad * 2])  # type: ignore[operator]
    loop.end(loop.last)


def gradient_swapped(loop: Loop) -> None:
    gradient = _trained(loop).grad
    gradient.data = gradient * 3.0  # type: ignore[operator,union-attr]
    loop.end(loop.last)


def gradient_marked(loop: Loop) -> None:
    weight: Any = _trained(loop)
    weight.grad.note = "mine"
    if loop.draw.random() < 0.5:
        weight.grad.requires_grad_(True)
    loop.end(loop.last)
    loop.seen.append(sum(hasattr(x.grad, "note") for x in loop.net.parameters()))


def synced_before_the_step(loop: Loop) -> None:
    _trained(loop)
    spmd.sync()
    loop.end(loop.last)


def weight_read_behind_the_step(loop: Loop) -> None:
    weight = _trained(loop)
    part = weight[:1]
    loop.see(part.sum())
    loop.optimizer.step()
    loop.see(part.sum() + weight.sum())
    loop.optimizer.zero_grad()


def state_read_behind_the_step(loop: Loop) -> None:
    weight = _trained(loop)
    loop.optimizer.step()
    for value in loop.optimizer.state[weight].values():
        if isinstance(value, torch.Tensor):
            loop.see(value.float().sum())
    loop.optimizer.zero_grad()


def weight_averaged_behind_the_step(loop: Loop) -> None:
    weight = _trained(loop)
    loop.end(loop.last)
    with torch.no_grad():
        loop.average = weight.detach() * 0.1 + (loop.average if loop.average.shape ==
                                                weight.shape else 0.0)  # fmt: skip
    loop.see(loop.average.sum())


def zeroed_before(loop: Loop) -> None:
    """Gradients live from one step to the next."""
    loop.optimizer.zero_grad(set_to_none=loop.to_none)
    loss = loop.loss()
    loss.backward()
    loop.optimizer.step()
    loop.see(loss)


def logits_read(loop: Loop) -> None:
    """What the forward has left for backward crosses a sync."""
    x, y = loop.batch()
    logits = loop.logits(x)
    loop.seen.append((logits.argmax(dim=1) == y).sum().item())
    loss = nn.functional.cross_entropy(logits, y)
    loss.backward()
    loop.end(loss)


def written_before_backward(loop: Loop) -> None:
    loss = loop.loss()
    with torch.no_grad():
        _weight(loop).mul_(1.5)
    try:
        loss.backward()
    except RuntimeError as error:
        # the gradients until then are up to the order of backward
        loop.seen.append("modified by an inplace operation" in str(error))
        loop.optimizer.zero_grad()
    else:
        loop.end(loss)


def hidden_kept(loop: Loop) -> None:
    """A result of the model lives longer than its step."""
    x, _ = loop.batch()
    loop.held.append(loop.logits(x))
    loop.step()


def state_loaded_from_the_host(loop: Loop) -> None:
    state = {name: value.detach().cpu() for name, value in loop.inner.state_dict().items()}
    loop.inner.load_state_dict({k: v * 1.25 if v.is_floating_point() else v
                                for k, v in state.items()})  # fmt: skip
    loop.step()


def optimizer_loaded_from_the_host(loop: Loop) -> None:
    state = loop.optimizer.state_dict()
    state["state"] = {
        place: {k: v.cpu() * 0.5 if isinstance(v, torch.Tensor) and v.dim() else copy.copy(v)
                for k, v in one.items()}
        for place, one in state["state"].items()
    }  # fmt: skip
    loop.optimizer.load_state_dict(state)
    loop.step()


def weight_copied_from_the_host(loop: Loop) -> None:
    weight = _weight(loop)
    with torch.no_grad():
        weight.copy_(torch.randn(weight.shape, generator=loop.batches) * 0.2)
    loop.step()


def weight_drawn(loop: Loop) -> None:
    nn.init.normal_(_weight(loop), std=0.2)
    loop.step()


def weight_filled(loop: Loop) -> None:
    nn.init.constant_(_weight(loop), 0.1)
    loop.step()


def optimizer_state_dropped(loop: Loop) -> None:
    loop.optimizer.state.clear()
    loop.step()


def summed(loop: Loop) -> None:
    """The gradient of the result is one number, expanded."""
    x, _ = loop.batch()
    loss = loop.logits(x).sum()
    loss.backward()
    loop.end(loss)


def moved_to_the_host_and_back(loop: Loop) -> None:
    if loop.mesh is None:
        loop.inner.to("cpu").to("xla")
    loop.step()


def forward_mode(loop: Loop) -> None:
    x, _ = loop.batch()
    is_on = loop.draw.random() < 0.7
    with torch.set_grad_enabled(is_on), warnings.catch_warnings(), forward_ad.dual_level():
        warnings.simplefilter("ignore")  # torch's use of torch.jit.script, at its first level
        y = loop.logits(forward_ad.make_dual(x, torch.ones_like(x)))
        loop.see(forward_ad.unpack_dual(y).tangent.sum())
    loop.step()


def functional_gradient(loop: Loop) -> None:
    """Without FSDP, which torch.func does not differentiate."""
    if loop.net is not loop.inner:
        return loop.step()
    x, y = loop.batch()
    weights = {name: one.detach() for name, one in loop.inner.named_parameters()}

    def of_weights(weights: dict[str, torch.Tensor]) -> torch.Tensor:
        result = torch.func.functional_call(loop.inner, weights, (x,))
        leaves = [*result.values()] if isinstance(result, dict) else result
        logits = leaves if isinstance(leaves, torch.Tensor) else leaves[0]
        return nn.functional.cross_entropy(logits, y)

    loop.inner.eval()  # running statistics are written in place
    gradients = torch.func.grad(of_weights)(weights)
    loop.inner.train()
    loop.see(torch.stack([one.square().sum() for one in gradients.values()]).sum())
    loop.step()


def batched_gradients(loop: Loop) -> None:
    if loop.net is not loop.inner:
        return loop.step()
    x, _ = loop.batch()
    x.requires_grad_(True)
    y = loop.logits(x).sum(0)
    rows = torch.eye(CLASSES, device="xla")
    (result,) = torch.autograd.grad(y, x, rows, is_grads_batched=True)
    loop.see(result.square().sum())
    loop.step()


def argument_written(loop: Loop) -> None:
    x, y = loop.batch()
    notes: Any = loop.draw.choice([[], {}])
    loss = nn.functional.cross_entropy(loop.logits(x, notes), y)
    (loss + sum(notes.values() if isinstance(notes, dict) else notes)).backward()
    loop.end(loss)


def argument_of_no_tensor(loop: Loop) -> None:
    """Another object at each call."""
    x, y = loop.batch()
    loss = nn.functional.cross_entropy(loop.logits(x, iter([loop])), y)
    loss.backward()
    loop.end(loss)


def parts_of_the_result(loop: Loop) -> None:
    """Each gets its gradient by a backward pass of its own."""
    loop.inner.form = "tuple"
    y, hidden = loop.net(loop.batch()[0])
    loss = y.square().mean()
    loss.backward(retain_graph=True)
    hidden.square().mean().backward()
    loop.end(loss)


def clipped_to_others(loop: Loop) -> None:
    loss = loop.loss()
    loss.backward()
    nn.utils.clip_grad_norm_(loop.net.parameters(), loop.draw.choice([0.05, 0.1]))
    loop.end(loss)


def context_set(loop: Loop) -> None:
    token = GAIN.set(loop.draw.choice([0.5, 2.0]))
    loop.step()
    GAIN.reset(token)


def bytes_set(loop: Loop) -> None:
    COUNTS[0] = 2
    loop.step()
    COUNTS[0] = 1


EVENTS = [
    value
    for name, value in list(globals().items())
    if callable(value) and getattr(value, "__module__", "") == __name__
    and not name.startswith("_") and not isinstance(value, type)
]  # fmt: skip


def events(seed: int) -> list[str]:
    """The names of what happens, by step: most are plain, and some happen several times."""
    draw = random.Random(~seed)
    few = draw.sample(EVENTS, 3)
    most, often, num_plain = draw.choice(
        [(plain, 0.4, 0), (plain, 0.3, 8), (zeroed_before, 0.3, 8)]
    )
    return [most.__name__] * num_plain + [
        (draw.choice(few) if draw.random() < often else most).__name__ for _ in range(STEPS)
    ]


@contextlib.contextmanager
def _played(is_on: bool) -> Iterator[None]:
    before, spmd.config.replay_steps = spmd.config.replay_steps, is_on
    try:
        yield
    finally:
        spmd.config.replay_steps = before


def run(
    seed: int,
    *,
    num_devices: int = 1,
    played: bool = False,
    model: int | None = None,
    happens: Sequence[str] | None = None,
) -> tuple[list[Any], Loop]:
    """Returns what a loop has read, with the weights, the buffers and the optimizer's state at its
    end; and the loop. model: the seed of its model and optimizer, if that is another one: loops of
    one model have most programs in common. happens: the names of events, if not those of the
    seed."""
    with _played(played):
        loop = Loop(seed, num_devices, model)
        for name in events(seed) if happens is None else happens:
            globals()[name](loop)
        state = [*loop.inner.state_dict().values()]
        for held in loop.held:
            state.append(held[0] if isinstance(held, tuple) else held)
        for entry in loop.optimizer.state.values():
            state += [value for value in entry.values() if isinstance(value, torch.Tensor)]
        return [
            value.detach().cpu() if isinstance(value, torch.Tensor) else torch.tensor(value)
            for value in (*loop.seen, *state)
        ], loop


def played_calls(loop: Loop) -> list[Any]:
    """The segments of a loop that was played."""
    found = map(segment_calls.segment_of, (loop.net, loop.optimizer))
    return [one for one in found if one is not None]
