"""Lightning's Trainer: the accelerator `xla` and the strategies `xla` (data parallel) and `xla_fsdp`.

The classes derive from Lightning's, so they are made when a program imports it; `lightning.pytorch` and
`pytorch_lightning` are one code under two names, each with its own.
"""

import weakref
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ...core import processes
from ...mesh.mesh import Mesh
from ...mesh.partition_spec import PartitionSpec
from ...names.compat.finder import resolve
from ...tensors import metrics
from ...tensors.annotate import mark_sharding
from ...tensors.runtime import device_ids, sync
from .accelerate_device import DEVICE

# The LightningModules that are sharded already.
_sharded: "weakref.WeakSet[Any]" = weakref.WeakSet()


def complete(connector: Any) -> None:
    """Registers the accelerator and the strategies; they are what a Trainer chooses from here on.

    Args:
        connector: `lightning.pytorch.trainer.connectors.accelerator_connector`.
    """
    root = connector.__name__.partition(".trainer.")[0]
    accelerator = accelerator_of(resolve(f"{root}.accelerators:Accelerator"))
    strategies: Any = resolve(f"{root}.strategies")
    shared, fsdp = _strategies(strategies.SingleDeviceStrategy)
    strategies.XLAStrategy, strategies.XLAFSDPStrategy = shared, fsdp
    for name in ("xla", "tpu"):
        connector.AcceleratorRegistry.register(name, accelerator, description="all devices of XLA", override=True)
    for name in ("xla", "single_xla"):
        connector.StrategyRegistry.register(
            name, shared, description="the batch sharded over all devices", override=True
        )
    connector.StrategyRegistry.register("xla_fsdp", fsdp, description="parameters sharded, too", override=True)

    # Lightning looks by these names for the strategy and the precision of its own accelerator for PyTorch/XLA.
    connector.XLAAccelerator, connector.SingleDeviceXLAStrategy = accelerator, shared
    connector.XLAPrecision = lambda precision: precision_of(connector, precision)
    if hasattr(connector, "_select_auto_accelerator"):
        connector._select_auto_accelerator = lambda: "xla"
    else:  # Lightning 2.4
        connector._AcceleratorConnector._choose_auto_accelerator = staticmethod(lambda: "xla")
    choose = connector._AcceleratorConnector._choose_strategy

    def choose_strategy(self: Any) -> Any:
        return shared() if isinstance(self.accelerator, accelerator) else choose(self)

    connector._AcceleratorConnector._choose_strategy = choose_strategy


def precision_of(connector: Any, precision: str) -> Any:
    """The plugin of a precision, as on any other device."""
    if precision in ("16-mixed", "bf16-mixed"):
        return connector.MixedPrecision(precision, DEVICE.type)
    if precision in ("16-true", "bf16-true"):
        return connector.HalfPrecision(precision)
    return connector.DoublePrecision() if precision == "64-true" else connector.Precision()


def _devices(devices: Any) -> int:
    """The number of devices that `Trainer(devices=)` requests."""
    number = len(device_ids())
    if str(devices) in ("-1", "auto", str(number)):
        return number
    if str(devices) == "1":
        return 1
    raise ValueError(
        f"Trainer, Fabric: expected devices='auto', 1 or {number}, got {devices!r}; for others pass a mesh to the "
        "strategy: XLAStrategy(mesh=spmd.Mesh(...)) of lightning.pytorch.strategies or lightning.fabric.strategies"
    )


def accelerator_of(base: Any) -> Any:
    """The accelerator, a class that derives from Lightning's."""

    class XLAAccelerator(base):
        """All devices of XLA as one."""

        def setup_device(self, device: torch.device) -> None:
            pass

        def teardown(self) -> None:
            sync()

        def get_device_stats(self, device: Any) -> dict[str, Any]:
            return {name: float(metrics.counter(name)) for name in metrics.counter_names()}

        @staticmethod
        def parse_devices(devices: Any) -> int:
            return _devices(devices)

        @staticmethod
        def get_parallel_devices(devices: Any) -> list[torch.device]:
            return [DEVICE]

        @staticmethod
        def auto_device_count() -> int:
            return len(device_ids())

        @staticmethod
        def is_available() -> bool:
            return True

        @staticmethod
        def name() -> str:
            return "xla"

    return XLAAccelerator


def _strategies(base: Any) -> tuple[Any, Any]:
    class XLAStrategy(base):
        """Data parallel: parameters on each device, dim 0 of a batch's tensors sharded over the mesh.

        Args:
            mesh: the devices; None: all of them, or one for `Trainer(devices=1)`. data_axes: the axes of the mesh that
                the batch is sharded over; None: all.
        """

        strategy_name = "xla"

        def __init__(self, mesh: Mesh | None = None, data_axes: Collection[str] | None = None, **how: Any) -> None:
            super().__init__(device=DEVICE, **how)
            self.mesh, self.data_axes = mesh, data_axes

        def setup(self, trainer: Any) -> None:
            if processes.several():
                raise NotImplementedError(
                    f"strategy={self.strategy_name!r}: a Trainer runs in one process, with all of its devices; this "
                    "job has several. A loop of your own trains there (spmd.from_process_local)"
                )
            if self.mesh is None:
                ids = device_ids()[: trainer._accelerator_connector._devices_flag]
                self.mesh = Mesh(ids, (len(ids),), ("fsdp",))
            super().setup(trainer)

        def batch_to_device(self, batch: Any, device: Any = None, dataloader_idx: int = 0) -> Any:
            batch = super().batch_to_device(batch, device, dataloader_idx)
            pytree.tree_map_only(Tensor, self._shard, batch)
            return batch

        def _shard(self, tensor: Tensor) -> None:
            if tensor.dim() and tensor.device.type == DEVICE.type and self.mesh is not None and self.mesh.size() > 1:
                axes = tuple(self.data_axes or self.mesh.axis_names)
                mark_sharding(tensor, self.mesh, PartitionSpec(axes, *[None] * (tensor.dim() - 1)))

        def optimizer_step(self, *args: Any, **how: Any) -> Any:
            result = super().optimizer_step(*args, **how)
            sync()  # a step is a program, whether or not a logger or the progress bar reads its loss
            return result

        def validation_step(self, *args: Any, **how: Any) -> Any:
            return _synced(super().validation_step(*args, **how))

        def test_step(self, *args: Any, **how: Any) -> Any:
            return _synced(super().test_step(*args, **how))

        def predict_step(self, *args: Any, **how: Any) -> Any:
            return _synced(super().predict_step(*args, **how))

        def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
            # A file without a trace of the device: a machine without this library loads it.
            super().save_checkpoint(pytree.tree_map_only(Tensor, Tensor.cpu, checkpoint), filepath, storage_options)

    class XLAFSDPStrategy(XLAStrategy):
        """FSDP: parameters, gradients and optimizer state sharded over the mesh, too.

        Args:
            auto_wrap_policy: chooses the submodules that are units (`fsdp.FullyShardedDataParallel`). mesh: with an
                axis `fsdp`; None: all devices. activation_checkpointing: recomputes the units' activations in backward.
                how: keywords of `fsdp.FullyShardedDataParallel`.
        """

        strategy_name = "xla_fsdp"

        def __init__(
            self,
            auto_wrap_policy: Any = None,
            mesh: Mesh | None = None,
            data_axes: Collection[str] | None = None,
            activation_checkpointing: bool = False,
            accelerator: Any = None,
            checkpoint_io: Any = None,
            precision_plugin: Any = None,
            **how: Any,
        ) -> None:
            super().__init__(
                mesh, data_axes, accelerator=accelerator, checkpoint_io=checkpoint_io, precision_plugin=precision_plugin
            )
            self.auto_wrap_policy, self.activation_checkpointing = auto_wrap_policy, activation_checkpointing
            self.how = how

        def teardown(self) -> None:
            # Lightning moves a model to the CPU in the end; one that is sharded may not fit there.
            for plugin in (self.precision_plugin, self.accelerator, self.checkpoint_io):
                plugin.teardown()

        def _setup_model(self, model: Any) -> Any:
            if model in _sharded:  # by an earlier fit or test
                return model
            _sharded.add(model)
            # In place: a LightningModule stays the object that callbacks and the optimizer know.
            wrap_units(model, self.mesh, self.auto_wrap_policy, self.activation_checkpointing, self.how)
            for step in ("training_step", "validation_step", "test_step", "predict_step"):
                if step in vars(type(model)):
                    resolve("fsdp:register_fsdp_forward_method")(model, step)
            return model

    return XLAStrategy, XLAFSDPStrategy


def wrap_units(model: Any, mesh: Mesh | None, policy: Any, checkpointing: bool, how: dict[str, Any]) -> None:
    """Shards a model in place, its units by a policy; checkpointing recomputes the units' activations."""
    wrap, checkpointed = resolve("fsdp:FullyShardedDataParallel"), None
    if checkpointing:

        def checkpointed(unit: Any, **how: Any) -> Any:
            return wrap(resolve("fsdp:checkpoint_module")(unit), **how)

    wrap(model, mesh=mesh, auto_wrap_policy=policy, auto_wrapper_callable=checkpointed, **how)


def _synced(result: Any) -> Any:
    sync()
    return result
