"""Subclasses of `torch.Tensor` and `nn.Parameter` keep their class on the device, and do there what
they do on CPU."""

import copy
import io
import pickle
from collections.abc import Callable
from typing import ClassVar

import pytest
import torch
from torch import nn
from torch.nn.utils._per_sample_grad import call_for_per_sample_grads

import spmd


class Plain(torch.Tensor):
    """A class with a method and nothing else."""

    def twice(self):
        return self * 2


class Image(torch.Tensor):
    """As torchvision's: ops return plain tensors, but for copies and moves; attributes of its
    own."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if not all(issubclass(cls, kind) for kind in types):
            return NotImplemented
        with torch._C.DisableTorchFunctionSubclass():
            output = func(*args, **kwargs or {})
        if func in (
            torch.Tensor.clone,
            torch.Tensor.to,
            torch.Tensor.detach,
            torch.Tensor.requires_grad_,
        ):
            output = output.as_subclass(cls)
            output.size_in_file = args[0].size_in_file
        elif isinstance(output, cls):
            return output.as_subclass(torch.Tensor)
        return output


class Noted(torch.Tensor):
    """As fastai's: each result takes a copy of all attributes of its operand; made of data by
    `__new__`."""

    note = None

    def __new__(cls, data):
        return torch.as_tensor(data).as_subclass(cls)

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        result = super().__torch_function__(func, types, args, kwargs or {})
        if isinstance(result, Noted) and isinstance(args[0], Noted):
            result.__dict__ = copy.deepcopy(args[0].__dict__)
        return result


class Silent(torch.Tensor):
    """A class whose ops return plain tensors."""

    __torch_function__ = torch._C._disabled_torch_function_impl


class Counting(torch.Tensor):
    """A class that sees the calls below autograd."""

    calls: ClassVar[list[str]] = []

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        cls.calls.append(func._schema.name)
        return super().__torch_dispatch__(func, types, args, kwargs or {})


class Weight(nn.Parameter):
    """A parameter with an argument and an attribute."""

    def __new__(cls, data=None, requires_grad=True, *, bits=8):
        weight = super().__new__(cls, data, requires_grad)
        weight.bits = bits
        return weight


class Quantized(nn.Parameter):
    """As bitsandbytes': made by `_make_subclass`."""

    def __new__(cls, data, scale=1.0):
        weight = torch.Tensor._make_subclass(cls, data, False)
        weight.scale = scale
        return weight


def noted(device: str) -> torch.Tensor:
    x = Noted([1.0, 2.0])
    x.note = "n"
    return x.to(device)


def image(device: str) -> torch.Tensor:
    x = torch.arange(4.0).reshape(2, 2).as_subclass(Image)
    x.size_in_file = (9, 9)
    return x.to(device)


def plain(device: str) -> torch.Tensor:
    return torch.arange(4.0, device=device).as_subclass(Plain)


def saved(x: torch.Tensor) -> torch.Tensor:
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def linear(device: str) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Linear(2, 2)
    model.weight = Weight(torch.arange(4.0).reshape(2, 2), bits=3)
    return model.to(device)


def gradient_of(x: torch.Tensor) -> object:
    x.requires_grad_()
    (x.as_subclass(Plain).twice() * x).sum().backward()
    return x.grad


def frozen(x: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return x + 1


def weight(device: str) -> nn.Parameter:
    return nn.Parameter(torch.ones(3, device=device))


TENSORS: dict[str, Callable[[str], object]] = {
    "as_subclass": plain,
    "to": lambda d: torch.arange(4.0).as_subclass(Plain).to(d),
    "_make_subclass": lambda d: torch.Tensor._make_subclass(Plain, torch.ones(2, device=d), True),
    "its constructor": lambda d: Plain(torch.ones(2, device=d)),
    "an op": lambda d: plain(d) + torch.ones(4, device=d),
    "an op of a plain tensor first": lambda d: torch.ones(4, device=d) + plain(d),
    "a method": lambda d: plain(d).twice(),
    "a list": lambda d: torch.cat([plain(d), torch.ones(2, device=d)]),
    "several results": lambda d: plain(d).sort(descending=True),
    "a view": lambda d: plain(d).view(2, 2)[0],
    "a write": lambda d: plain(d).add_(1),
    "a write by index": lambda d: plain(d).index_fill_(0, torch.tensor([1], device=d), 7),
    "a write into a view": lambda d: plain(d).view(2, 2)[1].zero_(),
    "another shape in place": lambda d: plain(d).unsqueeze_(0).squeeze_(0).resize_(2),
    "out": lambda d: torch.add(plain(d), 1, out=torch.empty(4, device=d)),
    "out of the class": lambda d: torch.add(torch.ones(4, device=d), 1, out=plain(d)),
    "data": lambda d: plain(d).data,
    "of no grad": lambda d: torch.no_grad()(lambda: plain(d).twice())(),
    "of inference mode": lambda d: frozen(plain(d)),
    "gradient": lambda d: gradient_of(torch.ones(3, device=d)),
    "gradient of its own": lambda d: gradient_of(plain(d)),
    "copy": lambda d: copy.copy(plain(d)),
    "pickle": lambda d: pickle.loads(pickle.dumps(plain(d))),
    "save": lambda d: saved(plain(d)),
    "the CPU": lambda d: plain(d).cpu(),
    "its type, called": lambda d: type(plain(d))(torch.ones(2, device=d)),
    "its type, of data": lambda d: type(noted(d))([1.0]),
    "its type as a class": lambda d: torch.ones(2).as_subclass(type(plain(d))),
    "the type of a parameter": lambda d: type(weight(d))(torch.ones(3, device=d), False),
    "the type of a parameter, of the CPU's data": lambda d: type(weight(d))(
        torch.ones(3), requires_grad=False
    ),
    "plain again": lambda d: torch.ones(2, device=d).as_subclass(Silent).as_subclass(torch.Tensor),
    "image": image,
    "image, an op": lambda d: image(d) + 1,
    "image, a write": lambda d: image(d).add_(1),
    "image, a clone": lambda d: image(d).clone(),
    "noted": noted,
    "noted, an op": lambda d: noted(d) + 1,
    "noted, a reduction": lambda d: noted(d).sum(),
    "noted, a pickle": lambda d: pickle.loads(pickle.dumps(noted(d))),
    "silent": lambda d: torch.ones(2, device=d).as_subclass(Silent),
    "silent, an op": lambda d: torch.ones(2, device=d).as_subclass(Silent) + 1,
    "counting": lambda d: torch.ones(2, device=d).as_subclass(Counting) * 3,
    "weight": lambda d: Weight(torch.ones(2, device=d), bits=2),
    "weight, an op": lambda d: Weight(torch.ones(2, device=d)) * 2,
    "parameter of the class": lambda d: nn.Parameter(plain(d)),
    "quantized": lambda d: Quantized(torch.ones(2, device=d), 0.5),
    "moved": lambda d: linear(d).weight,
    "moved and back": lambda d: linear(d).cpu().weight,
    "of another dtype": lambda d: linear(d).double().weight,
    "a state dict": lambda d: linear(d).state_dict()["weight"],
    "a buffer": lambda d: buffered(d).shift,
}


def buffered(device: str) -> nn.Module:
    model = nn.Module()
    model.register_buffer("shift", torch.ones(2).as_subclass(Plain))
    return model.to(device)


# The forms whose result is on the CPU.
ON_CPU = (
    "the CPU",
    "moved and back",
    "its type, of data",
    "its type as a class",
    "the type of a parameter, of the CPU's data",
)
CLASSES = (Plain, Image, Noted, Silent, Counting, Weight, Quantized, nn.Parameter)


def facts(value: object) -> object:
    """The class, attributes and values of a tensor, or of each of several."""
    if isinstance(value, (tuple, list)):
        return [facts(item) for item in value]
    attributes = {
        name: getattr(value, name, None) for name in ("note", "size_in_file", "bits", "scale")
    }
    kinds = [kind.__name__ for kind in CLASSES if isinstance(value, kind)]
    return kinds, value.tolist(), value.dtype, value.requires_grad, value.is_leaf, attributes


class TestSubclasses:
    """Each form gives the class, values and attributes that it gives on the CPU."""

    @pytest.mark.parametrize("name", TENSORS)
    def test_as_on_the_cpu(self, name):
        result, expected = TENSORS[name]("xla"), TENSORS[name]("cpu")
        assert facts(result) == facts(expected)
        first = result[0] if isinstance(result, tuple) else result
        assert (first.device.type == "cpu") == (name in ON_CPU)

    def test_repr(self):
        assert repr(plain("xla")) == "Plain([0., 1., 2., 3.], device='xla:0')"
        assert repr(Weight(torch.ones(1, device="xla"))) == (
            "Parameter containing:\ntensor([1.], device='xla:0', requires_grad=True)"
        )

    def test_its_name_is_the_users(self):
        kind = type(plain("xla"))
        assert (kind.__name__, kind.__qualname__, kind.__module__) == (
            "Plain",
            "Plain",
            Plain.__module__,
        )
        assert kind is type(plain("xla") + 1) and issubclass(kind, Plain)

    def test_init_subclass_sees_the_users_classes_alone(self):
        seen = []

        class Registered(torch.Tensor):
            def __init_subclass__(cls):
                seen.append(cls)

        assert (
            isinstance(torch.ones(2, device="xla").as_subclass(Registered), Registered) and not seen
        )

    def test_calls_below_autograd(self):
        Counting.calls.clear()
        x = torch.ones(2, device="xla").as_subclass(Counting)
        assert (x * 3).tolist() == [3, 3] and "aten::mul" in Counting.calls

    def test_deep_copies(self):
        """torch's own raise for some of these on the CPU, or lose the attributes of a parameter."""
        for x in (
            plain("xla"),
            image("xla"),
            noted("xla"),
            Weight(torch.ones(2, device="xla"), bits=3),
        ):
            assert facts(copy.deepcopy(x)) == facts(x)
        model = linear("xla")
        assert facts(copy.deepcopy(model).weight) == facts(model.weight)

    def test_memory_is_shared(self):
        x = torch.zeros(2, device="xla")
        x.as_subclass(Plain).fill_(3)
        assert x.tolist() == [3, 3]

    def test_no_second_object_and_no_users_type(self):
        """Why `type(x)` is a class of the device: torch refuses both other ways for a wrapper's
        tensor."""
        x = torch.ones(2, device="xla")
        with pytest.raises(RuntimeError, match="already associated to a python object"):
            torch._C.TensorBase.as_subclass(x, Plain)
        y = torch.ones(2, device="xla")
        y.__class__ = Plain
        with pytest.raises(
            RuntimeError, match="NO overloaded args that actually triggered dispatch"
        ):
            y + 1


class TestTraining:
    """Modules with such parameters train, sharded and not, and keep them."""

    def trained(self, device, mesh=None):
        model = linear(device)
        if mesh is not None:
            spmd.mark_sharding(model.weight, mesh, (None, mesh.axis_names[0]))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.arange(4.0, device=device).reshape(2, 2)).square().mean().backward()
            optimizer.step()
        state = optimizer.state[model.weight]
        assert isinstance(model.weight, Weight) and model.weight.bits == 3
        return [
            model.weight.detach().cpu(),
            *(state[name].cpu() for name in ("exp_avg", "exp_avg_sq")),
        ]

    @pytest.mark.parametrize("is_sharded", [False, True])
    def test_an_optimizers_steps(self, is_sharded):
        mesh = spmd.Mesh(range(2), (2,), ("fsdp",)) if is_sharded else None
        torch.testing.assert_close(self.trained("xla", mesh), self.trained("cpu"))

    def test_a_deep_copy_keeps_the_sharding(self, mesh8):
        model = nn.Module()
        model.weight = Weight(torch.ones(8, 2), bits=5)
        spmd.mark_sharding(model.to("xla").weight, mesh8, ("fsdp", None))
        copied = copy.deepcopy(model).weight
        assert spmd.get_sharding(copied) == spmd.get_sharding(model.weight) and copied.bits == 5

    def test_per_sample_gradients(self):
        """torch's `ExpandedWeight`, made by `_make_subclass`."""
        grads = {}
        for device in ("cpu", "xla"):
            torch.manual_seed(0)
            model = nn.Sequential(
                nn.Conv2d(2, 3, 3), nn.GroupNorm(1, 3), nn.Flatten(), nn.Linear(12, 2)
            ).to(device)
            call_for_per_sample_grads(model, batch_size=2)(
                torch.ones(2, 2, 4, 4, device=device)
            ).sum().backward()
            grads[device] = [parameter.grad_sample.cpu() for parameter in model.parameters()]
        torch.testing.assert_close(grads["xla"], grads["cpu"])

    def test_a_sharded_tensor(self, mesh8):
        x = spmd.mark_sharding(torch.arange(8.0).as_subclass(Plain).to("xla"), mesh8, ("fsdp",))
        assert isinstance(x, Plain) and isinstance(x.twice(), Plain)
        assert x.twice().tolist() == [2.0 * i for i in range(8)] and spmd.get_sharding(x).devices
