"""Kinds of Python state that a step may read, for the tests of what a replayed call does when they
change.

Each function returns (read, change): `read` gives 2.0 until `change` was called, and 3.0 from then
on. Those without a change give another number at each call.
"""

import array
import collections
import contextvars
import copy
import ctypes
import dataclasses
import datetime
import enum
import functools
import io
import itertools
import mmap
import os
import pathlib
import queue
import random
import sys
import tempfile
import threading
import time
import types
import uuid
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

Read = Callable[[], Any]
Make = Callable[[], tuple[Read, Callable[[], Any] | None]]
KNOWN: dict[str, Make] = {}  # guards see the change
HIDDEN: dict[str, Make] = {}  # a check finds it
MOVING: dict[str, Make] = {}  # another number at each call
# Of the known, those with which a call runs uncompiled.
READ_AT_EACH_CALL = (
    "text_of_a_file",
    "text_of_a_path",
    "existence_of_a_file",
    "existence_of_a_file_by_os",
    "file_of_numpy",
    "text_in_memory",
)
settings: Any = types.ModuleType("settings_of_a_test")
sys.modules["settings_of_a_test"] = settings


def known(make: Make) -> Make:
    return KNOWN.setdefault(make.__name__, make)


def hidden(make: Make) -> Make:
    return HIDDEN.setdefault(make.__name__, make)


def moving(make: Make) -> Make:
    return MOVING.setdefault(make.__name__, make)


class Box:
    """An object with one attribute."""

    def __init__(self, value: Any = 2.0) -> None:
        self.value = value


def over(box: Any, name: str = "value") -> Callable[[], None]:
    return lambda: setattr(box, name, 3.0)


# --- objects --------------------------------------------------------------------------------------


@known
def slots() -> Any:
    class Slots:
        __slots__ = ("value",)

    box: Any = Slots()
    box.value = 2.0
    return lambda: box.value, over(box)


@known
def one_slot() -> Any:
    class Slot:
        __slots__ = "value"  # a string is the name of one slot

    box: Any = Slot()
    box.value = 2.0
    return lambda: box.value, over(box)


@known
def private_slots() -> Any:
    class Private:
        __slots__ = ("__value",)

        def __init__(self, value: float) -> None:
            self.__value = value

        def read(self) -> float:
            return self.__value

    box = Private(2.0)
    return lambda: box.read(), lambda: Private.__init__(box, 3.0)


@known
def attribute() -> Any:
    box = Box()
    return lambda: box.value, over(box)


@known
def attribute_over_that_of_the_class() -> Any:
    class Model:
        value = 2.0

    box = Model()
    return lambda: box.value, over(box)


@known
def attribute_of_the_class() -> Any:
    class Model:
        value = 2.0

    return lambda: Model.value, over(Model)


@known
def attribute_over_that_of_the_base() -> Any:
    class Base:
        value = 2.0

    class Model(Base):
        pass

    box = Model()
    return lambda: box.value, over(Model)


@known
def attribute_of_the_class_of_the_class() -> Any:
    class Meta(type):
        value = 2.0

    class Model(metaclass=Meta):
        pass

    return lambda: Model.value, over(Meta)


@known
def property_of_the_class() -> Any:
    class Model:
        @property
        def value(self) -> float:
            return 2.0

    box = Model()
    return lambda: box.value, lambda: setattr(Model, "value", property(lambda self: 3.0))


@known
def variable_that_a_property_has_captured() -> Any:
    number = 2.0

    class Model:
        @property
        def value(self) -> float:
            return number

    def change() -> None:
        nonlocal number
        number = 3.0

    box = Model()
    return lambda: box.value, change


@known
def empty_deque() -> Any:
    numbers: collections.deque[float] = collections.deque()
    return lambda: 2.0 + len(numbers), lambda: numbers.append(1.0)


@known
def attribute_of_a_descriptor() -> Any:
    class Described:
        value = 2.0

        def __get__(self, instance: Any, owner: Any) -> float:
            return self.value

    class Model:
        number = Described()

    box = Model()
    return lambda: box.number, over(Described)


@known
def cached_attribute() -> Any:
    class Model(Box):
        @functools.cached_property
        def cached(self) -> float:
            return self.value

    box = Model()

    def change() -> None:
        box.value = 3.0
        del box.cached

    return lambda: box.cached + 0, change


@known
def namespace() -> Any:
    box = types.SimpleNamespace(value=2.0)
    return lambda: box.value, over(box)


@known
def member_of_an_enum() -> Any:
    class Choice(enum.Enum):
        ONE = 1

    Choice.ONE.number = 2.0  # type: ignore[attr-defined]
    return lambda: Choice.ONE.number, over(Choice.ONE, "number")  # type: ignore[attr-defined]


@known
def attribute_of_a_dict() -> Any:
    class Dict(dict):
        value = 1.0

    box = Dict()
    box.value = 2.0
    return lambda: box.value, over(box)


@known
def attribute_of_a_list() -> Any:
    class List(list):
        value = 1.0

    box = List()
    box.value = 2.0
    return lambda: box.value, over(box)


@known
def attribute_of_a_tuple() -> Any:
    class Tuple(tuple):
        value = 1.0

    box = Tuple()
    box.value = 2.0
    return lambda: box.value, over(box)


@known
def attribute_of_a_tensor() -> Any:
    weight: Any = torch.ones(1, device="xla")
    weight.number = 2.0
    return lambda: weight.number, over(weight, "number")


@known
def attribute_of_a_thread() -> Any:
    box = threading.local()
    box.value = 2.0
    return lambda: box.value, over(box)


@known
def all_attributes() -> Any:
    box = Box()
    return lambda: box.value, lambda: setattr(box, "__dict__", {"value": 3.0})


@known
def all_attributes_of_a_module_of_torch() -> Any:
    model: Any = torch.nn.Identity()
    model.value = 2.0
    return lambda: model.value, lambda: setattr(model, "__dict__", vars(model) | {"value": 3.0})


class Sibling(Box):
    def __getattribute__(self, name: str) -> Any:
        return 3.0 if name == "value" else super().__getattribute__(name)


@known
def class_of_an_object() -> Any:
    box = Box()
    return lambda: box.value, lambda: setattr(box, "__class__", Sibling)


@known
def class_of_an_object_with_slots() -> Any:
    class First:
        __slots__ = ("unread",)
        value = 2.0

    class Second:
        __slots__ = ("unread",)
        value = 3.0

    box: Any = First()
    box.unread = None
    return lambda: box.value, lambda: setattr(box, "__class__", Second)


@known
def bases_of_a_class() -> Any:
    class First(Box):
        number = 2.0

    class Second(Box):
        number = 3.0

    class Model(First):
        pass

    box = Model()
    return lambda: box.number, lambda: setattr(Model, "__bases__", (Second,))


@known
def bases_of_a_base() -> Any:
    class First(Box):
        number = 2.0

    class Second(Box):
        number = 3.0

    class Base(First):
        pass

    class Model(Base):
        pass

    box = Model()
    return lambda: box.number, lambda: setattr(Base, "__bases__", (Second,))


@known
def data_of_swapped_tensors() -> Any:
    weight, other = (torch.full((1,), value, device="xla") for value in (2.0, 3.0))
    return lambda: weight * 1, lambda: torch.utils.swap_tensors(weight, other)


@known
def first_attribute_of_a_tensor() -> Any:
    weight = torch.ones(1, device="xla")
    return lambda: getattr(weight, "number", 2.0), over(weight, "number")


@hidden
def object_that_a_weak_reference_names() -> Any:
    box = Box()
    reference = weakref.ref(box)
    return lambda: reference().value, over(box)  # type: ignore[union-attr]


# --- containers -----------------------------------------------------------------------------------


@known
def item_of_a_list_in_a_tuple() -> Any:
    pair = ([2.0],)
    return lambda: pair[0][0], lambda: pair[0].__setitem__(0, 3.0)


@known
def item_of_a_set() -> Any:
    numbers = {2.0}
    return lambda: max(numbers), lambda: numbers.add(3.0)


@known
def item_of_a_deque() -> Any:
    numbers = collections.deque([2.0])
    return lambda: numbers[-1], lambda: numbers.append(3.0)


@known
def item_of_a_user_dict() -> Any:
    numbers = collections.UserDict(value=2.0)
    return lambda: numbers["value"], lambda: numbers.update(value=3.0)


@known
def item_of_a_chain() -> Any:
    numbers = collections.ChainMap({"value": 2.0})
    return lambda: numbers["value"], lambda: numbers.update(value=3.0)


@known
def method_of_a_dict() -> Any:
    numbers = {"value": 2.0}
    get = numbers.get
    return lambda: get("value"), lambda: numbers.update(value=3.0)


@known
def keywords_of_a_partial() -> Any:
    part = functools.partial(lambda value: value, value=2.0)
    return lambda: part(), lambda: part.keywords.update(value=3.0)


@known
def order_of_a_deque() -> Any:
    numbers = collections.deque([2.0, 3.0])
    return lambda: numbers[0], numbers.rotate


@known
def number_of_equal_items_of_a_deque() -> Any:
    numbers = collections.deque([1.0, 1.0])
    return lambda: sum(numbers), lambda: numbers.append(1.0)


@known
def order_of_a_dict() -> Any:
    numbers = {"a": 2.0, "b": 3.0}
    return lambda: next(iter(numbers.values())), lambda: numbers.update(a=numbers.pop("a"))


@known
def function_of_a_partial() -> Any:
    part = functools.partial(lambda value: value, 2.0)
    state = (lambda value: value + 1, (2.0,), {}, {})
    return lambda: part(), lambda: part.__setstate__(state)  # type: ignore[attr-defined]


# --- functions and modules ------------------------------------------------------------------------


@known
def captured_variable() -> Any:
    number = 2.0

    def change() -> None:
        nonlocal number
        number = 3.0

    return lambda: number, change


@known
def defaults() -> Any:
    def read(number: float = 2.0) -> float:
        return number

    return read, lambda: setattr(read, "__defaults__", (3.0,))


@known
def keyword_defaults() -> Any:
    def read(*, number: float = 2.0) -> float:
        return number

    return read, lambda: read.__kwdefaults__.update(number=3.0)  # type: ignore[union-attr]


@known
def all_keyword_defaults() -> Any:
    def read(*, number: float = 2.0) -> float:
        return number

    return read, lambda: setattr(read, "__kwdefaults__", {"number": 3.0})


@known
def code() -> Any:
    def read() -> float:
        return 2.0

    return read, lambda: setattr(read, "__code__", (lambda: 3.0).__code__)


@known
def attribute_of_a_function() -> Any:
    def read() -> Any:
        return read.number  # type: ignore[attr-defined]

    read.number = 2.0  # type: ignore[attr-defined]
    return read, over(read, "number")


@known
def new_attribute_of_a_function() -> Any:
    def read() -> Any:
        return getattr(read, "number", 2.0)

    return read, over(read, "number")


def _global(text: str, **scope: Any) -> tuple[Read, Callable[..., None]]:
    scope |= {"__name__": "a_module_of_a_test"}
    exec(text, scope)
    return scope["read"], scope.update


@known
def global_variable() -> Any:
    read, update = _global("def read(): return number", number=2.0)
    return read, lambda: update(number=3.0)


@known
def new_global_variable() -> Any:
    read, update = _global("def read():\n try: return number\n except NameError: return 2.0")
    return read, lambda: update(number=3.0)


@known
def global_over_a_builtin() -> Any:
    read, update = _global("def read(): return abs(-2.0)")
    return read, lambda: update(abs=lambda value: 3.0)


@known
def attribute_of_a_module() -> Any:
    settings.scale = 2.0
    module = settings
    return lambda: module.scale, over(settings, "scale")


@known
def attribute_of_a_module_in_an_attribute() -> Any:
    settings.scale = 2.0
    box = Box(settings)
    return lambda: box.value.scale, over(settings, "scale")


@known
def attribute_of_a_module_imported_inside() -> Any:
    settings.scale = 2.0

    def read() -> Any:
        import settings_of_a_test

        return settings_of_a_test.scale

    return read, over(settings, "scale")


@known
def attribute_of_a_module_by_its_name() -> Any:
    settings.scale = 2.0
    return lambda: sys.modules["settings_of_a_test"].scale, over(settings, "scale")


@known
def variable_of_the_environment() -> Any:
    os.environ["STATE_OF_A_TEST"] = "2.0"
    return lambda: float(os.environ["STATE_OF_A_TEST"]), lambda: os.environ.update(
        STATE_OF_A_TEST="3.0"
    )


@known
def new_variable_of_the_environment() -> Any:
    os.environ.pop("STATE_OF_A_TEST", None)
    return lambda: float(os.getenv("STATE_OF_A_TEST", "2.0")), lambda: os.environ.update(
        STATE_OF_A_TEST="3.0"
    )


@known
def presence_in_the_environment() -> Any:
    os.environ.pop("STATE_OF_A_TEST", None)
    return lambda: 2.0 + ("STATE_OF_A_TEST" in os.environ), lambda: os.environ.update(
        STATE_OF_A_TEST="1"
    )


@known
def generator_whose_copy_draws() -> Any:
    generator, scale = random.Random(0), [2.0]

    def change() -> None:
        generator.random()
        scale[0] = 3.0

    return lambda: copy.copy(generator).choice(scale), change


# --- files ----------------------------------------------------------------------------------------


def _file(text: str = "2.0") -> pathlib.Path:
    path = pathlib.Path(tempfile.mkdtemp()) / "state"
    path.write_text(text)
    return path


@known
def text_of_a_file() -> Any:
    path = _file()

    def read() -> float:
        with open(path) as file:
            return float(file.read())

    return read, lambda: path.write_text("3.0")


@known
def text_of_a_path() -> Any:
    path = _file()
    return lambda: float(path.read_text()), lambda: path.write_text("3.0")


@known
def existence_of_a_file() -> Any:
    path = _file()
    return lambda: 3.0 - path.exists(), path.unlink


@known
def existence_of_a_file_by_os() -> Any:
    path = _file()
    return lambda: 3.0 - os.path.exists(path), path.unlink


@known
def file_of_numpy() -> Any:
    path = _file().with_suffix(".npy")
    np.save(path, np.float64(2.0))
    return lambda: float(np.load(path)), lambda: np.save(path, np.float64(3.0))


# --- hidden ---------------------------------------------------------------------------------------


@hidden
def value_of_ctypes() -> Any:
    number = ctypes.c_double(2.0)
    return lambda: number.value, over(number)


@known
def item_of_an_array() -> Any:
    numbers = array.array("d", [2.0])
    return lambda: numbers[0], lambda: numbers.__setitem__(0, 3.0)


@known
def item_of_a_bytearray() -> Any:
    numbers = bytearray([2])
    return lambda: float(numbers[0]), lambda: numbers.__setitem__(0, 3)


@hidden
def item_of_a_memoryview() -> Any:
    numbers = memoryview(bytearray([2]))
    return lambda: float(numbers[0]), lambda: numbers.__setitem__(0, 3)


@hidden
def memory_of_the_system() -> Any:
    memory = mmap.mmap(-1, 8)
    memory[0] = 2
    return lambda: float(memory[0]), lambda: memory.__setitem__(0, 3)


@hidden
def memory_of_an_array_by_its_pointer() -> Any:
    numbers = np.array([2.0])
    pointer = ctypes.cast(numbers.ctypes.data, ctypes.POINTER(ctypes.c_double))
    return lambda: pointer[0], lambda: numbers.__setitem__(0, 3.0)


@known
def variable_of_a_context() -> Any:
    number = contextvars.ContextVar("number", default=2.0)
    return lambda: number.get(), lambda: number.set(3.0)


@hidden
def item_of_a_weak_dict() -> Any:
    key, numbers = Box(), weakref.WeakKeyDictionary[Any, float]()
    numbers[key] = 2.0
    return lambda: numbers[key], lambda: numbers.update({key: 3.0})


@known
def length_of_a_queue() -> Any:
    items: queue.Queue[int] = queue.Queue()
    return lambda: 2.0 + items.qsize(), lambda: items.put(1)


@known
def text_in_memory() -> Any:
    text = io.BytesIO(b"2.0")
    return lambda: float(bytes(text.getbuffer())), lambda: text.getbuffer().__setitem__(0, ord("3"))


@hidden
def cache_of_results() -> Any:
    numbers = [2.0]
    read = functools.lru_cache(lambda: numbers[0])

    def change() -> None:
        numbers[0] = 3.0
        read.cache_clear()

    return read, change


@hidden
def item_of_a_view_of_a_dict() -> Any:
    numbers = {"value": 2.0}
    view = types.MappingProxyType(numbers)
    return lambda: view["value"], lambda: numbers.update(value=3.0)


@hidden
def name_that_is_computed() -> Any:
    box = Box()
    over(box, spelled := "".join(["odd", "ity"]))()
    box.__dict__[spelled] = 2.0
    return lambda: getattr(box, "".join(["odd", "ity"])), over(box, spelled)


@hidden
def limit_of_the_interpreter() -> Any:
    limit = sys.getrecursionlimit()
    return lambda: 2.0 + (sys.getrecursionlimit() != limit), lambda: sys.setrecursionlimit(
        limit + 1
    )


# --- another number at each call ------------------------------------------------------------------


@moving
def counter_in_slots() -> Any:
    @dataclasses.dataclass(slots=True)
    class Counter:
        number: float = 0.0

    counter = Counter()

    def read() -> float:
        counter.number += 1
        return counter.number

    return read, None


@moving
def counter_of_a_class() -> Any:
    class Model:
        number = 0.0

        def read(self) -> float:
            type(self).number += 1
            return self.number

    return Model().read, None


@moving
def counter_of_a_module() -> Any:
    settings.number = 0.0
    module = settings

    def read() -> Any:
        module.number += 1
        return module.number

    return read, None


@moving
def list_of_a_module() -> Any:
    settings.history = []
    module = settings

    def read() -> float:
        module.history.append(1)
        return float(len(module.history))

    return read, None


@moving
def counter_of_a_module_by_its_name() -> Any:
    settings.number = 0.0

    def read() -> Any:
        module: Any = sys.modules["settings_of_a_test"]
        module.number += 1
        return module.number

    return read, None


@moving
def counter_of_a_function() -> Any:
    def read() -> Any:
        read.number = getattr(read, "number", 0.0) + 1  # type: ignore[attr-defined]
        return read.number  # type: ignore[attr-defined]

    return read, None


@moving
def counter_in_the_environment() -> Any:
    os.environ["STATE_OF_A_TEST"] = "0"

    def read() -> float:
        os.environ["STATE_OF_A_TEST"] = str(int(os.environ["STATE_OF_A_TEST"]) + 1)
        return float(os.environ["STATE_OF_A_TEST"])

    return read, None


@moving
def counter_in_a_deque() -> Any:
    numbers = collections.deque([0.0], maxlen=1)

    def read() -> float:
        numbers.append(numbers[-1] + 1)
        return numbers[-1]

    return read, None


@moving
def lines_of_an_open_file() -> Any:
    lines = io.StringIO("\n".join(map(str, range(2, 99))))
    return lambda: float(lines.readline()), None


@moving
def bytes_of_an_open_file() -> Any:
    path = _file("23456789")
    descriptor = os.open(path, os.O_RDONLY)
    file = open(descriptor, "rb", closefd=False)  # noqa: SIM115
    return lambda: float(file.read(1)), None


@moving
def items_of_an_iterator() -> Any:
    numbers = itertools.count(1)
    return lambda: float(next(numbers)), None


@moving
def seconds() -> Any:
    return lambda: time.perf_counter() % 100, None


@moving
def day() -> Any:
    return lambda: float(datetime.datetime.now().microsecond), None


@moving
def entropy() -> Any:
    return lambda: float(int.from_bytes(os.urandom(3), "big")), None


@moving
def identifiers() -> Any:
    return lambda: float(uuid.uuid4().int % 2**20), None


@moving
def random_of_the_system() -> Any:
    generator = random.SystemRandom()
    return lambda: generator.random(), None


@moving
def generator_of_numpy_from_entropy() -> Any:
    return lambda: np.random.default_rng().random(), None


@moving
def generator_of_python_from_entropy() -> Any:
    return lambda: random.Random().random(), None


@moving
def stream_of_python() -> Any:
    return lambda: random.random(), None


@moving
def generator_of_numpy() -> Any:
    generator = np.random.default_rng(0)
    return lambda: torch.from_numpy(generator.random(3, np.float32)).to("xla"), None


@moving
def state_of_numpy() -> Any:
    box = Box({"generators": [np.random.RandomState(0)]})
    return lambda: box.value["generators"][0].random_sample(), None


@moving
def generator_of_python() -> Any:
    box = Box(random.Random(0))
    return lambda: box.value.random(), None


@moving
def method_of_a_generator() -> Any:
    draw = random.Random(0).random
    return lambda: draw(), None


@moving
def method_of_a_generator_of_numpy() -> Any:
    draw = np.random.default_rng(0).random
    return lambda: draw(), None


@moving
def generator_of_torch() -> Any:
    generator = torch.Generator()
    return lambda: torch.rand(3, generator=generator).to("xla"), None


@moving
def permutation_of_torch() -> Any:
    box = Box(torch.Generator())
    return lambda: torch.randperm(99, generator=box.value)[:3].to("xla"), None
