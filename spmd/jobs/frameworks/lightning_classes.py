"""The accelerator `xla` of Lightning's Trainer and of Fabric, and their strategies `xla` and
`xla_fsdp`.

The classes derive from Lightning's, so they are made when a program imports it; `lightning.pytorch`
and `pytorch_lightning` are one code under two names, each with its own, and so are Fabric's.
"""

import weakref
from collections.abc import Collection, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ...core import processes
from ...mesh.mesh import Mesh
from ...mesh.notes import say_once
from ...names.compat.finder import resolve
from ...names.torch_xla.parallel_loader import MpDeviceLoader
from ...names.torch_xla.sharding_spec import ShardingSpec
from ...tensors import metrics
from ...tensors.runtime import device_ids, sync
from .accelerate_device import DEVICE
from .batches import shard_batch
from .fsdp_plugin import wrap_units

# The modules that are sharded already.
_sharded: "weakref.WeakSet[Any]" = weakref.WeakSet()
# keywords of Lightning's strategies
_PLUGINS = ("accelerator", "checkpoint_io", "precision", "precision_plugin")


def complete(
    connector: Any, root: str, registries: tuple[Any, Any], chooser: Any, *mixins: type
) -> tuple[Any, Any]:
    """Registers an accelerator and strategies as what a Trainer or a Fabric chooses from here on;
    returns the latter.

    Args:
        connector: the module that chooses. root: the package with `accelerators` and `strategies`.
            registries: of accelerators and of strategies. chooser: the class that chooses, which
            takes `xla` for the accelerator where the user names no strategy. mixins: of the two
            strategies, which derive from Lightning's for one device.
    """
    accelerator = type(
        "XLAAccelerator", (AllDevices, resolve(f"{root}.accelerators:Accelerator")), {}
    )
    of_gpus = type("XLAForGPUs", (ForGPUs, accelerator), {})
    strategies: Any = resolve(f"{root}.strategies")
    shared = type("XLAStrategy", (mixins[0], strategies.SingleDeviceStrategy), {})
    fsdp = type("XLAFSDPStrategy", (mixins[1], shared), {})
    strategies.XLAStrategy, strategies.XLAFSDPStrategy = shared, fsdp
    for registry, name, kind, description in (
        (registries[0], "xla", accelerator, "all devices of XLA"),
        (registries[0], "tpu", accelerator, "all devices of XLA"),
        (registries[0], "cuda", of_gpus, "all devices of XLA"),
        (registries[1], "xla", shared, "the batch sharded over all devices"),
        (registries[1], "single_xla", shared, "the batch sharded over all devices"),
        (registries[1], "xla_fsdp", fsdp, "parameters sharded, too"),
    ):
        registry.register(name, kind, description=description, override=True)

    # Lightning looks by these names for the strategy and the precision of its own accelerator for
    # PyTorch/XLA.
    connector.XLAAccelerator, connector.SingleDeviceXLAStrategy = accelerator, shared
    connector.XLAPrecision = lambda precision: _precision(connector, precision)
    chooser._choose_gpu_accelerator_backend = staticmethod(lambda: "cuda")  # of "gpu"
    choose, check = chooser._choose_strategy, chooser._check_strategy_and_fallback
    chooser._choose_strategy = lambda self: (
        shared() if isinstance(self.accelerator, accelerator) else choose(self)
    )

    def check_strategy(self: Any) -> None:
        if isinstance(self.accelerator, accelerator):
            if isinstance(self._strategy_flag, strategies.FSDPStrategy):
                raise NotImplementedError(
                    "FSDPStrategy: it is for one process a device; on xla write "
                    "strategy='fsdp', or XLAFSDPStrategy(auto_wrap_policy=...) of "
                    f"{root}.strategies"
                )
            if self._strategy_flag == "fsdp":
                self._strategy_flag = "xla_fsdp"
        check(self)

    chooser._check_strategy_and_fallback = check_strategy
    return shared, fsdp


def _precision(connector: Any, precision: str) -> Any:
    """The plugin of a precision, as on any other device."""
    if precision in ("16-mixed", "bf16-mixed"):
        return connector.MixedPrecision(precision, DEVICE.type)
    if precision in ("16-true", "bf16-true"):
        return connector.HalfPrecision(precision)
    return connector.DoublePrecision() if precision == "64-true" else connector.Precision()


class AllDevices:
    """All devices of XLA as one."""

    def setup_device(self, device: torch.device) -> None:
        """Leaves the devices to the core, which starts them at their first use."""

    def teardown(self) -> None:
        sync()

    def get_device_stats(self, device: Any) -> dict[str, Any]:
        return {name: float(metrics.counter(name)) for name in metrics.counter_names()}

    @staticmethod
    def parse_devices(devices: Any) -> int:
        """The number of devices that `Trainer(devices=)` requests."""
        number = len(device_ids())
        if str(devices) in ("-1", "auto", str(number)):
            return number
        if str(devices) == "1":
            return 1
        raise ValueError(
            f"Trainer, Fabric: expected devices='auto', 1 or {number}, got {devices!r}; for "
            "others pass a mesh to the strategy: XLAStrategy(mesh=spmd.Mesh(...)) of "
            "lightning.pytorch.strategies or lightning.fabric.strategies"
        )

    @staticmethod
    def get_parallel_devices(devices: Any) -> list[torch.device]:
        return [DEVICE] * devices

    @staticmethod
    def auto_device_count() -> int:
        return len(device_ids())

    @staticmethod
    def is_available() -> bool:
        return True

    @staticmethod
    def name() -> str:
        return "xla"


class ForGPUs:
    """What `accelerator="gpu"` and `"cuda"` mean after `use()`: all devices, whatever number of
    GPUs a script names, which is that of its processes."""

    @staticmethod
    def parse_devices(devices: Any) -> int:
        number = len(device_ids())
        say_once(f"Lightning: {devices=} of GPUs are the {number} devices of xla here")
        return number


# The base class is in the Lightning package that a program imports.
_Lightning: Any = object


class DataParallelStrategy(_Lightning):
    """Data parallel: parameters on each device, dim 0 of a batch's tensors sharded over the mesh.

    Args:
        mesh: the devices; None: all of them, or one for `Trainer(devices=1)` and
            `Fabric(devices=1)`. data_axes: the axes of the mesh that the batch is sharded over;
            None: all.
    """

    strategy_name = "xla"
    # set to as many as are requested
    parallel_devices: tuple[torch.device, ...] | list[torch.device] = ()

    def __init__(
        self, mesh: Mesh | None = None, data_axes: Collection[str] | None = None, **how: Any
    ) -> None:
        super().__init__(device=DEVICE, **how)
        self.mesh, self.data_axes = mesh, data_axes

    def _mesh(self) -> Mesh:
        """The mesh, by default of as many devices as are requested."""
        if processes.several():
            raise NotImplementedError(
                f"strategy={self.strategy_name!r}: a Trainer or Fabric runs in one process, with "
                "all of its devices; this job has several. A loop of your own trains there "
                "(spmd.from_process_local)"
            )
        if self.mesh is None:
            ids = device_ids()[: len(self.parallel_devices) or None]
            self.mesh = Mesh(ids, (len(ids),), ("fsdp",))
        return self.mesh

    def optimizer_step(self, *args: Any, **how: Any) -> Any:
        result = super().optimizer_step(*args, **how)
        sync()  # a step is a program, whether or not a logger or the progress bar reads its loss
        return result


class FullyShardedStrategy(DataParallelStrategy):
    """FSDP: parameters, gradients and optimizer state sharded over the mesh, too.

    Args:
        auto_wrap_policy: chooses the submodules that are units (`fsdp.FullyShardedDataParallel`).
            mesh: with an axis `fsdp`; None: all devices. activation_checkpointing: recomputes the
            units' activations in backward. how: keywords of `fsdp.FullyShardedDataParallel`, and
            the plugins of Lightning's strategies.
    """

    strategy_name = "xla_fsdp"

    def __init__(
        self,
        auto_wrap_policy: Any = None,
        mesh: Mesh | None = None,
        data_axes: Collection[str] | None = None,
        activation_checkpointing: bool = False,
        **how: Any,
    ) -> None:
        super().__init__(
            mesh, data_axes, **{name: how.pop(name) for name in _PLUGINS if name in how}
        )
        self.auto_wrap_policy, self.activation_checkpointing = (
            auto_wrap_policy,
            activation_checkpointing,
        )
        self.how = how

    def _shard_units(self, module: Any) -> bool:
        """Shards a module in place, which callbacks and the optimizer know, once; returns True if
        it does."""
        if module in _sharded:
            return False
        _sharded.add(module)
        wrap = resolve("fsdp:FullyShardedDataParallel")
        wrap_units(
            wrap,
            module,
            self.auto_wrap_policy,
            self.activation_checkpointing,
            mesh=self._mesh(),
            **self.how,
        )
        return True


# --- of Fabric and of the Trainer -----------------------------------------------------------------


def complete_fabric(connector: Any) -> None:
    """Registers the accelerator and the strategies; they are what a Fabric chooses from here on.

    Args:
        connector: `lightning.fabric.connector`.
    """
    registries = connector.ACCELERATOR_REGISTRY, connector.STRATEGY_REGISTRY
    root = connector.__name__.rpartition(".")[0]
    # Fabric looks for its strategies by these names, too.
    connector.XLAStrategy, connector.XLAFSDPStrategy = complete(
        connector, root, registries, connector._Connector, FabricStrategy, FabricFSDPStrategy
    )


class FabricStrategy(DataParallelStrategy):
    def process_dataloader(self, dataloader: Iterable[Any]) -> MpDeviceLoader:
        mesh = self._mesh()
        spec = ShardingSpec(mesh, (tuple(self.data_axes or mesh.axes),))
        return MpDeviceLoader(dataloader, DEVICE, input_sharding=spec)

    def _convert_stateful_objects_in_state(self, *args: Any, **how: Any) -> Any:
        return _on_cpu(super()._convert_stateful_objects_in_state(*args, **how))


class FabricFSDPStrategy(FullyShardedStrategy):
    def setup_module(self, module: Any) -> Any:
        self._shard_units(module)
        return module


def complete_trainer(connector: Any) -> None:
    """Registers the accelerator and the strategies; they are what a Trainer chooses from here on.

    Args:
        connector: `lightning.pytorch.trainer.connectors.accelerator_connector`.
    """
    registries = connector.AcceleratorRegistry, connector.StrategyRegistry
    root = connector.__name__.partition(".trainer.")[0]
    complete(
        connector,
        root,
        registries,
        connector._AcceleratorConnector,
        TrainerStrategy,
        TrainerFSDPStrategy,
    )
    if hasattr(connector, "_select_auto_accelerator"):
        connector._select_auto_accelerator = lambda: "xla"
    else:  # Lightning 2.4
        connector._AcceleratorConnector._choose_auto_accelerator = staticmethod(lambda: "xla")


class TrainerStrategy(DataParallelStrategy):
    def setup(self, trainer: Any) -> None:
        self._mesh()
        super().setup(trainer)

    def batch_to_device(self, batch: Any, device: Any = None, dataloader_idx: int = 0) -> Any:
        batch = super().batch_to_device(batch, device, dataloader_idx)
        if self.mesh is not None:
            shard_batch("Trainer", batch, self.mesh, tuple(self.data_axes or self.mesh.axes))
        return batch

    def validation_step(self, *args: Any, **how: Any) -> Any:
        return _synced(super().validation_step(*args, **how))

    def test_step(self, *args: Any, **how: Any) -> Any:
        return _synced(super().test_step(*args, **how))

    def predict_step(self, *args: Any, **how: Any) -> Any:
        return _synced(super().predict_step(*args, **how))

    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None
    ) -> None:
        super().save_checkpoint(_on_cpu(checkpoint), filepath, storage_options)


class TrainerFSDPStrategy(FullyShardedStrategy):
    def teardown(self) -> None:
        # Lightning moves a model to the CPU in the end; one that is sharded may not fit there.
        for plugin in (self.precision_plugin, self.accelerator, self.checkpoint_io):
            plugin.teardown()

    def _setup_model(self, model: Any) -> Any:
        if self._shard_units(model):  # else by an earlier fit or test
            for step in ("training_step", "validation_step", "test_step", "predict_step"):
                if step in vars(type(model)):
                    resolve("fsdp:register_fsdp_forward_method")(model, step)
        return model


def _on_cpu(state: Any) -> Any:
    """A state without a trace of the device: a machine without this library loads its file."""
    return pytree.tree_map_only(Tensor, Tensor.cpu, state)


def _synced(result: Any) -> Any:
    sync()
    return result
