"""Lightning Fabric: the accelerator `xla` and the strategies `xla` (data parallel) and `xla_fsdp`.

The classes derive from Fabric's, so they are made when a program imports it; the Trainer's are in `lightning_trainer`.
"""

import weakref
from collections.abc import Collection, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ...core import processes
from ...mesh.mesh import Mesh
from ...names.compat.finder import resolve
from ...names.torch_xla.parallel_loader import MpDeviceLoader
from ...names.torch_xla.sharding_spec import ShardingSpec
from ...tensors.runtime import device_ids, sync
from .accelerate_device import DEVICE
from .lightning_trainer import accelerator_of, precision_of, wrap_units

# The modules that are sharded already.
_sharded: "weakref.WeakSet[Any]" = weakref.WeakSet()


def complete(connector: Any) -> None:
    """Registers the accelerator and the strategies; they are what a Fabric chooses from here on.

    Args:
        connector: `lightning.fabric.connector`.
    """
    root = connector.__name__.rpartition(".")[0]
    accelerator = _accelerator(resolve(f"{root}.accelerators:Accelerator"))
    strategies: Any = resolve(f"{root}.strategies")
    shared, fsdp = _strategies(strategies.SingleDeviceStrategy)
    strategies.XLAStrategy, strategies.XLAFSDPStrategy = shared, fsdp
    for name in ("xla", "tpu"):
        connector.ACCELERATOR_REGISTRY.register(name, accelerator, description="all devices of XLA", override=True)
    for name, strategy in {"xla": shared, "single_xla": shared, "xla_fsdp": fsdp}.items():
        connector.STRATEGY_REGISTRY.register(name, strategy, override=True)

    # Fabric looks by these names for the strategy and the precision of its own accelerator for PyTorch/XLA.
    connector.XLAAccelerator, connector.SingleDeviceXLAStrategy = accelerator, shared
    connector.XLAStrategy, connector.XLAFSDPStrategy = shared, fsdp
    connector.XLAPrecision = lambda precision: precision_of(connector, precision)
    choose = connector._Connector._choose_strategy

    def choose_strategy(self: Any) -> Any:
        return shared() if isinstance(self.accelerator, accelerator) else choose(self)

    connector._Connector._choose_strategy = choose_strategy


def _accelerator(base: Any) -> Any:
    class XLAAccelerator(accelerator_of(base)):  # type: ignore[misc]  # a class made for this base
        """All devices of XLA as one; the strategy gets their number."""

        @staticmethod
        def get_parallel_devices(devices: Any) -> list[torch.device]:
            return [DEVICE] * devices

    return XLAAccelerator


def _strategies(base: Any) -> tuple[Any, Any]:
    class XLAStrategy(base):
        """Data parallel: parameters on each device, dim 0 of a batch's tensors sharded over the mesh.

        Args:
            mesh: the devices; None: all of them, or one for `Fabric(devices=1)`. data_axes: the axes of the mesh that
                the batch is sharded over; None: all.
        """

        def __init__(self, mesh: Mesh | None = None, data_axes: Collection[str] | None = None, **how: Any) -> None:
            if processes.several():
                raise NotImplementedError(
                    "Fabric: it runs in one process, with all of its devices; this job has several. A loop of your own "
                    "trains there (spmd.from_process_local)"
                )
            super().__init__(device=DEVICE, **how)
            self.mesh, self.data_axes = mesh, data_axes
            self.parallel_devices: list[torch.device] = []  # Fabric sets as many as are requested

        def _mesh(self) -> Mesh:
            if self.mesh is None:
                ids = device_ids()[: len(self.parallel_devices) or None]
                self.mesh = Mesh(ids, (len(ids),), ("fsdp",))
            return self.mesh

        def process_dataloader(self, dataloader: Iterable[Any]) -> MpDeviceLoader:
            mesh = self._mesh()
            spec = ShardingSpec(mesh, (tuple(self.data_axes or mesh.axis_names),))
            return MpDeviceLoader(dataloader, DEVICE, input_sharding=spec)

        def optimizer_step(self, *args: Any, **how: Any) -> Any:
            result = super().optimizer_step(*args, **how)
            sync()  # a step is a program, whether or not its loss is read
            return result

        def _convert_stateful_objects_in_state(self, *args: Any, **how: Any) -> Any:
            # A file without a trace of the device: a machine without this library loads it.
            return pytree.tree_map_only(Tensor, Tensor.cpu, super()._convert_stateful_objects_in_state(*args, **how))

    class XLAFSDPStrategy(XLAStrategy):
        """FSDP: parameters, gradients and optimizer state sharded over the mesh, too.

        Args:
            auto_wrap_policy: chooses the submodules that are units (`fsdp.FullyShardedDataParallel`). mesh: with an
                axis `fsdp`; None: all devices. activation_checkpointing: recomputes the units' activations in backward.
                how: keywords of `fsdp.FullyShardedDataParallel`.
        """

        def __init__(
            self,
            auto_wrap_policy: Any = None,
            mesh: Mesh | None = None,
            data_axes: Collection[str] | None = None,
            activation_checkpointing: bool = False,
            accelerator: Any = None,
            checkpoint_io: Any = None,
            precision: Any = None,
            **how: Any,
        ) -> None:
            super().__init__(mesh, data_axes, accelerator=accelerator, checkpoint_io=checkpoint_io, precision=precision)
            self.auto_wrap_policy, self.activation_checkpointing = auto_wrap_policy, activation_checkpointing
            self.how = how

        def setup_module(self, module: Any) -> Any:
            if module not in _sharded:
                _sharded.add(module)
                # In place: the optimizer knows these parameters.
                wrap_units(module, self._mesh(), self.auto_wrap_policy, self.activation_checkpointing, self.how)
            return module

    return XLAStrategy, XLAFSDPStrategy
