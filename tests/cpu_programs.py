"""Programs without xla tensors, run as a script: `tests/test_import.py` compares what they print
with and without us.

A row is a function marked `@program`; it prints what it sees. What it warns of and writes to stderr
is printed, too. Rows run one after the other in one process, the ones that change it for good last.
"""

import atexit
import contextlib
import copy
import copyreg
import importlib
import io
import os
import pickle
import signal
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable

import torch
from torch import nn
from torch.nn.modules.module import register_module_buffer_registration_hook
from torch.nn.utils import parametrizations, parametrize
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

PROGRAMS: list[Callable[[], None]] = []


def program(function: Callable[[], None]) -> Callable[[], None]:
    """Adds a row to the table."""
    PROGRAMS.append(function)
    return function


def show(*values: object) -> None:
    """Prints tensors by type, dtype, device, gradient flags and values, and all else as it is."""
    for value in values:
        if isinstance(value, torch.Tensor):
            flags = (
                value.requires_grad,
                value.is_leaf,
                value.grad_fn is not None and value.grad_fn.name(),
            )
            held = value.detach().to_dense() if value.layout != torch.strided else value.detach()
            print(type(value), value.dtype, value.device, value.layout, flags, held.tolist())
        else:
            print(repr(value))


def moves(make: Callable[[], nn.Module], given: torch.Tensor) -> None:
    """A module's moves: which objects stay, which computed weights there are, and what comes
    out."""
    ways: dict[str, Callable[[nn.Module], object]] = {
        "double": lambda module: module.double(),
        "half": lambda module: module.half().float(),
        "bfloat16": lambda module: module.to(torch.bfloat16).float(),
        "to": lambda module: module.to("cpu", torch.float64),
        "memory format": lambda module: module.to(memory_format=torch.channels_last),
        "to_empty": lambda module: module.to_empty(device="cpu"),
        "share_memory": lambda module: module.share_memory(),
        "type": lambda module: module.type(torch.float64),
        "meta": lambda module: module.to("meta"),
        "a function": lambda module: module._apply(
            lambda tensor: print(tuple(tensor.shape)) or tensor.clone()
        ),
        "one that fails": lambda module: module._apply(lambda tensor: 1 / 0),
    }
    for name, way in ways.items():
        torch.manual_seed(0)
        module = make()
        loss = module(given).sum()
        parameters = list(module.parameters())
        with contextlib.suppress(Exception):
            loss.backward(retain_graph=True)
        try:
            way(module)
        except Exception as error:
            print(name, type(error), error)
            continue
        print(
            name, [one is other for one, other in zip(module.parameters(), parameters, strict=True)]
        )
        attributes = [
            (n, t)
            for part in module.modules()
            for n, t in vars(part).items()
            if isinstance(t, torch.Tensor)
        ]
        for label, tensor in (*module.named_parameters(), *module.named_buffers(), *attributes):
            grad = None if not tensor.is_leaf or tensor.grad is None else tensor.grad.dtype
            print(
                label,
                type(tensor),
                tensor.dtype,
                tensor.device,
                tensor.requires_grad,
                tensor.is_leaf,
                grad,
            )
        if name not in ("to_empty", "meta"):
            dtype = next(module.parameters()).dtype
            show(module(given.to(dtype)).sum())
            with contextlib.suppress(RuntimeError):
                loss.backward()
            show(*(parameter.grad for parameter in module.parameters()))


@program
def moves_of_plain_modules() -> None:
    moves(lambda: nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)), torch.ones(2, 2))


@program
def moves_of_convolutions() -> None:
    moves(lambda: nn.Conv2d(1, 2, 2), torch.ones(1, 1, 3, 3))


@program
def moves_under_weight_norm() -> None:
    moves(lambda: nn.utils.weight_norm(nn.Linear(2, 2)), torch.ones(2, 2))


@program
def moves_under_spectral_norm() -> None:
    moves(lambda: nn.utils.spectral_norm(nn.Linear(2, 2)), torch.ones(2, 2))


@program
def moves_under_parametrizations() -> None:
    moves(lambda: parametrizations.weight_norm(nn.Linear(2, 2)), torch.ones(2, 2))
    moves(lambda: parametrizations.spectral_norm(nn.Linear(2, 2)), torch.ones(2, 2))
    with parametrize.cached():
        moves(lambda: parametrizations.orthogonal(nn.Linear(2, 2)), torch.ones(2, 2))


@program
def moves_of_lazy_modules() -> None:
    for module in (
        nn.LazyLinear(2),
        nn.Sequential(nn.LazyLinear(2), nn.LazyBatchNorm1d()),
        nn.LazyConv1d(2, 1),
    ):
        print(
            module.double(),
            [type(parameter) for parameter in module.parameters()],
            module.state_dict().keys(),
        )
    model = nn.Sequential(nn.LazyLinear(2), nn.LazyBatchNorm1d()).to(torch.float64)
    show(model(torch.ones(2, 3, dtype=torch.float64)).sum())
    print(model, pickle.loads(pickle.dumps(nn.LazyLinear(2))), copy.deepcopy(nn.LazyLinear(2)))
    calls: list[object] = []
    nn.LazyLinear(2)._apply(lambda tensor: calls.append(type(tensor)) or tensor)
    print(calls, nn.parameter.UninitializedParameter(device="meta").device)
    with torch.device("meta"):
        print(
            nn.parameter.UninitializedParameter().device, nn.parameter.UninitializedBuffer().device
        )


@program
def exported_programs() -> None:
    class Made(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.arange(2.0, device=x.device)

    exported = torch.export.export(nn.Sequential(nn.Linear(2, 2), Made()), (torch.ones(3, 2),))
    show(exported.module().to(torch.float64).code, exported.module()(torch.ones(3, 2)).shape)
    moved = torch.export.unflatten(exported).to("cpu")
    print(moved, torch.export.export.__name__, exported.graph_signature)
    with warnings.catch_warnings(action="ignore"):  # torch's own, about its pytrees
        decomposed = exported.run_decompositions()
    print(decomposed.graph_module.code, decomposed.run_decompositions.__name__)
    with contextlib.suppress(Exception):
        torch.export.export(nn.Linear(2, 2), [torch.ones(3, 2)])


@program
def registered_buffers() -> None:
    handle = register_module_buffer_registration_hook(
        lambda module, name, buffer: print(type(module), name, buffer)
    )
    module = nn.BatchNorm1d(2)
    module.plain, module.left_out = (
        nn.Buffer(torch.ones(2)),
        nn.Buffer(torch.ones(1), persistent=False),
    )
    module.register_buffer("absent", None)
    module.register_buffer("view", torch.arange(4.0)[1:])
    handle.remove()
    module.plain = module.plain * 2
    show(*module.buffers())
    print(list(module.state_dict()), [vars(buffer) for buffer in module.buffers()])


@program
def moves_of_tied_modules() -> None:
    def make() -> nn.Module:
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        model[1].weight = model[0].weight
        return model

    moves(make, torch.ones(2, 2))


@program
def moves_of_recurrent_and_sparse() -> None:
    model = nn.LSTM(2, 2).double()
    show(model(torch.ones(1, 1, 2, dtype=torch.float64))[0].sum())
    holder = nn.Module()
    holder.register_buffer("adjacency", torch.eye(2).to_sparse())
    show(holder.double().adjacency)
    print(holder.to("meta").adjacency.device)


@program
def moves_by_torchs_switches() -> None:
    for switch in ("overwrite", "swap"):
        set_ = getattr(torch.__future__, f"set_{switch}_module_params_on_conversion")
        set_(True)
        moves(lambda: nn.Linear(2, 2), torch.ones(2, 2))
        set_(False)


@program
def checkpoints() -> None:
    layer = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5), nn.Linear(2, 2))
    for reentrant in (True, False):
        for given in ((torch.ones(2, 2, requires_grad=True),), ()):
            torch.manual_seed(0)
            held = torch.ones(2, 2, requires_grad=True)
            calls: list[str] = []

            def body(
                *args: torch.Tensor, held: torch.Tensor = held, calls: list[str] = calls
            ) -> torch.Tensor:
                calls.append(sys._getframe(1).f_code.co_name)
                return layer(args[0] if args else held)

            made = checkpoint(body, *given, use_reentrant=reentrant)
            show(made)
            if made.requires_grad:
                made.sum().backward()
            show(
                calls,
                *(tensor.grad for tensor in (*given, held)),
                *(p.grad for p in layer.parameters()),
            )
    show(checkpoint_sequential(layer, 2, torch.ones(2, 2, requires_grad=True), use_reentrant=False))
    with contextlib.suppress(ValueError):
        checkpoint(lambda x: x, torch.ones(1), use_reentrant=False, nonsense=1)
    try:
        checkpoint(lambda x: x / (1 // 0), torch.ones(1), use_reentrant=False)
    except ZeroDivisionError:
        print([frame.name for frame in traceback.extract_tb(sys.exc_info()[2])])


@program
def backward_and_its_errors() -> None:
    class Fails(Exception):
        pass

    def fail(gradient: torch.Tensor) -> None:
        raise Fails("in a hook")

    x = torch.ones(2, requires_grad=True)
    y = x * 2
    y.register_hook(fail)
    try:
        y.sum().backward()
    except Fails as error:
        print(
            error,
            error.__cause__,
            [frame.name for frame in traceback.extract_tb(error.__traceback__)],
        )
    print(torch.autograd.is_multithreading_enabled(), torch.autograd.grad((x * x).sum(), x))
    try:
        (x * 2).backward()
    except RuntimeError as error:
        print(error)


@program
def threads_of_autograd() -> None:
    seen = [torch.autograd.is_multithreading_enabled()]

    def run() -> None:
        seen.append(torch.autograd.is_multithreading_enabled())
        torch.ones(2, requires_grad=True).sum().backward()
        seen.append(torch.autograd.is_multithreading_enabled())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    print(seen, threading.active_count(), [thread.name for thread in threading.enumerate()])


@program
def interrupts() -> None:
    print(
        signal.getsignal(signal.SIGINT),
        [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGALRM)],
    )
    x = torch.ones(2, requires_grad=True)
    y = x * 2
    y.register_hook(lambda gradient: signal.raise_signal(signal.SIGINT))
    try:
        y.sum().backward()
    except BaseException as error:
        print(type(error), [frame.name for frame in traceback.extract_tb(error.__traceback__)])
    begin = time.monotonic()
    try:
        signal.raise_signal(signal.SIGINT)
        while time.monotonic() < begin + 1:
            pass
        print("late")
    except KeyboardInterrupt as error:
        print([frame.name for frame in traceback.extract_tb(error.__traceback__)])


@program
def optimizers() -> None:
    for kind in (torch.optim.AdamW, torch.optim.SGD, torch.optim.LBFGS, torch.optim.Adagrad):
        torch.manual_seed(0)
        model = nn.Linear(2, 2)
        optimizer = kind(model.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step(lambda model=model: model(torch.ones(1, 2)).sum())
        state = copy.deepcopy(optimizer.state_dict())
        other = kind(nn.Linear(2, 2).double().parameters(), lr=0.2)
        other.load_state_dict(state)
        print(state, other.state_dict())
    print(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1))


@program
def files() -> None:
    model = nn.Linear(2, 2)
    things = {
        "tensor": torch.arange(3),
        "view": torch.arange(6).view(2, 3)[1],
        "model": model,
        "sparse": torch.eye(2).to_sparse(),
        "bits": torch.ones(2, dtype=torch.bfloat16),
        "state": model.state_dict(),
        "storage": torch.ones(2).untyped_storage(),
    }
    for name, thing in things.items():
        buffer = io.BytesIO()
        torch.manual_seed(0)
        torch.save(thing, buffer)
        print(
            name,
            len(buffer.getvalue()),
            torch.load(io.BytesIO(buffer.getvalue()), weights_only=False),
        )
        print(len(pickle.dumps(thing)), copy.deepcopy(thing))
        print(torch.load(io.BytesIO(buffer.getvalue()), "cpu", weights_only=False))
    with tempfile.TemporaryDirectory() as folder:
        torch.save(model.state_dict(), f"{folder}/x")
        print(
            torch.load(f"{folder}/x", mmap=True, weights_only=True),
            torch.load(f"{folder}/x", "meta"),
        )
    print(sorted(map(str, copyreg.dispatch_table)))


@program
def randomness() -> None:
    torch.manual_seed(3)
    print(
        torch.rand(2),
        torch.initial_seed(),
        torch.Generator().manual_seed(1).initial_seed(),
        torch.randperm(4),
    )
    state = torch.get_rng_state()
    torch.rand(2)
    torch.set_rng_state(state)
    with torch.random.fork_rng():
        torch.rand(2)
    print(torch.rand(2), nn.functional.dropout(torch.ones(8)))


@program
def defaults() -> None:
    print(
        torch.get_default_device(),
        torch.get_default_dtype(),
        torch.get_num_threads(),
        torch.is_grad_enabled(),
    )
    with torch.device("cpu"):
        print(torch.ones(1).device, torch.get_default_device())
    print({name: torch.get_autocast_dtype(name) for name in ("cpu", "cuda", "mps", "xpu", "mtia")})
    with torch.autocast("cpu"):
        show(
            torch.ones(2, 2) @ torch.ones(2, 2),
            torch.is_autocast_enabled("cpu"),
            torch.get_autocast_dtype("cpu"),
        )
    torch.set_autocast_dtype("cpu", torch.float16)
    print(
        torch.get_autocast_dtype("cpu"),
        torch.get_autocast_dtype.__name__,
        torch.set_autocast_dtype.__name__,
    )
    torch.set_autocast_dtype("cpu", torch.bfloat16)
    with torch.autocast("cpu", torch.float32):  # it warns of the user's line
        pass
    for wrong in (("nonsense",), (3,), ()):
        try:
            torch.get_autocast_dtype(*wrong)
        except Exception as error:
            print(type(error))
    print(
        torch.is_deterministic_algorithms_warn_only_enabled(), torch.get_float32_matmul_precision()
    )
    print(
        torch.backends.cudnn.allow_tf32,
        torch.backends.fp32_precision,
        torch.get_deterministic_debug_mode(),
    )


@program
def tensors_of_other_kinds() -> None:
    x = torch.eye(2)
    for made in (
        x.to_sparse(),
        x.to_sparse_csr(),
        torch.quantize_per_tensor(x, 0.1, 0, torch.qint8),
        x.to("meta"),
    ):
        print(made, (made * 2).layout if made.layout != torch.sparse_csr else made.values())
    print(torch.nested.nested_tensor([x, x]).to_padded_tensor(0.0), torch.empty(2, device="meta"))
    torch.use_deterministic_algorithms(True)
    print(torch.empty(2), torch.empty_like(x))
    torch.use_deterministic_algorithms(False)


@program
def compilation() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu"):
            x = (x @ x).to(torch.get_autocast_dtype("cpu"))
        return checkpoint(torch.sin, x, use_reentrant=False)

    graphs: list[str] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., object]:
        graphs.append(str([node.target for node in graph.graph.nodes]))
        return graph.forward

    show(torch.compile(function, backend=backend)(torch.ones(2, 2)))
    print(graphs, torch.jit.script(nn.Linear(2, 2)).double().weight.dtype)
    print(torch.func.vmap(torch.sin)(torch.ones(2, 2)), torch.func.grad(torch.sin)(torch.ones(())))


@program
def the_process() -> None:
    print(
        sys.excepthook,
        sys.displayhook,
        sys.unraisablehook,
        threading.excepthook,
        sys.getswitchinterval(),
    )
    # Without the finder by which modules of torch are patched when they are imported
    # (`torch_state/when_imported.py`).
    finders = [
        type(finder) for finder in sys.meta_path if not finder.__module__.startswith("spmd.")
    ]
    print(finders, sys.path_hooks[1:], sys.getrecursionlimit())
    print(
        warnings.showwarning.__module__,
        faulted(),
        os.getcwd() == sys.path[0],
        sys.flags.dont_write_bytecode,
    )
    print(
        sorted(map(str, torch.serialization.get_safe_globals())),
        torch.overrides.is_tensor_like(torch.ones(1)),
    )


def faulted() -> bool:
    return importlib.import_module("faulthandler").is_enabled()


@program
def assigned_state() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    state = {name: value.clone() for name, value in model.state_dict().items()}
    before = model[0].weight
    print(
        model.load_state_dict(state, assign=True), model[0].weight is before, type(model[0].weight)
    )
    print(
        model[1].running_mean is state["1.running_mean"],
        model.load_state_dict({}, strict=False, assign=True),
    )
    print(torch.nn.Module.__dict__["_load_from_state_dict"].__name__)


@program
def higher_order_ops() -> None:
    module = importlib.import_module("torch.nn.attention.flex_attention")
    x = torch.arange(8.0).reshape(1, 1, 4, 2)
    mask = module.create_block_mask(
        lambda b, h, q_idx, kv_idx: q_idx >= kv_idx, None, None, 4, 4, device="cpu"
    )
    show(mask.kv_num_blocks, mask.to_dense())
    for flag in (None, True, False):
        if flag is not None:
            module._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = flag
        show(module.flex_attention(x, x, x, block_mask=mask))
    try:
        module.flex_attention(x.clone().requires_grad_(), x, x)
    except NotImplementedError as error:
        print(error)
    associative_scan = importlib.import_module(
        "torch._higher_order_ops.associative_scan"
    ).associative_scan
    show(associative_scan(torch.add, torch.arange(5.0), 0, combine_mode="generic"))
    for how in ({}, {"combine_mode": "other"}, {"reverse": 1}):
        try:
            associative_scan(torch.add, torch.arange(5.0), 0, **how)
        except (ValueError, RuntimeError) as error:
            print(type(error), error)


@program
def compiled_functions() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([torch.tensor([1.0, 2.0]), x * 2]).sum() + 1

    made_inside = torch.compile(
        lambda x: nn.BCEWithLogitsLoss()(x, x), backend="eager", fullgraph=True
    )
    show(made_inside(torch.ones(3)))
    for backend in ("eager", "aot_eager"):
        x = torch.ones(3, requires_grad=True)
        loss = torch.compile(function, backend=backend, fullgraph=True)(x)
        loss.backward()
        show(loss, x.grad)
    wrapper = torch._TorchCompileInductorWrapper(None, None, None)
    print(wrapper.compiler_name, type(wrapper).__name__, wrapper == wrapper)


@program
def jax_and_the_environment() -> None:
    # The one row that imports jax in both processes, and so compares what a JAX program sees.
    jax = importlib.import_module("jax")
    print(dict(sorted(jax.config.values.items())))
    print(
        {
            name: value
            for name, value in sorted(os.environ.items())
            if name.startswith(("XLA", "TF_", "JAX", "PJRT"))
        }
    )
    print(jax.numpy.arange(2.0).dtype, jax.devices(), jax.jit(lambda x: x + 1)(1.0).dtype)


def run(row: Callable[[], None]) -> None:
    written = io.StringIO()
    with warnings.catch_warnings(record=True) as seen, contextlib.redirect_stderr(written):
        warnings.simplefilter("always")
        try:
            row()
        except BaseException as error:
            print(type(error), error)
    for warning in seen:
        print(
            "warned",
            warning.category.__name__,
            warning.filename,
            warning.lineno,
            str(warning.message)[:200],
        )
    print("stderr", written.getvalue())


if __name__ == "__main__":
    if sys.argv[1:] == ["with"]:
        importlib.import_module("spmd")
    atexit.register(print, "== at exit")
    for row in PROGRAMS:
        print("==", row.__name__)
        run(row)
    sys.stdout.flush()
