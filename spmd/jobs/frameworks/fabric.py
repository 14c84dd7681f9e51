"""Lightning Fabric: the accelerator `xla` and the strategies `xla` (data parallel) and `xla_fsdp`."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ...mesh.mesh import Mesh
from ...names.compat.finder import resolve
from ...names.torch_xla.parallel_loader import MpDeviceLoader
from ...names.torch_xla.sharding_spec import ShardingSpec
from .accelerate_device import DEVICE
from .lightning_classes import accelerator_of, choose_for, data_parallel_of, fully_sharded_of, register


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
    connector.XLAStrategy, connector.XLAFSDPStrategy = shared, fsdp  # as Fabric looks for them, too
    register(connector, connector.ACCELERATOR_REGISTRY, connector.STRATEGY_REGISTRY, accelerator, shared, fsdp)
    choose_for(connector._Connector, accelerator, shared)


def _accelerator(base: Any) -> Any:
    class XLAAccelerator(accelerator_of(base)):  # type: ignore[misc]  # a class made for this base
        """All devices of XLA as one; the strategy gets their number."""

        @staticmethod
        def get_parallel_devices(devices: Any) -> list[torch.device]:
            return [DEVICE] * devices

    return XLAAccelerator


def _strategies(base: Any) -> tuple[Any, Any]:
    class XLAStrategy(data_parallel_of(base)):  # type: ignore[misc]  # a class made for this base
        parallel_devices: tuple[torch.device, ...] | list[torch.device] = ()  # Fabric sets as many as are requested

        def _mesh(self) -> Mesh:
            return self._mesh_of(len(self.parallel_devices) or None)

        def process_dataloader(self, dataloader: Iterable[Any]) -> MpDeviceLoader:
            mesh = self._mesh()
            spec = ShardingSpec(mesh, (tuple(self.data_axes or mesh.axis_names),))
            return MpDeviceLoader(dataloader, DEVICE, input_sharding=spec)

        def _convert_stateful_objects_in_state(self, *args: Any, **how: Any) -> Any:
            # A file without a trace of the device: a machine without this library loads it.
            return pytree.tree_map_only(Tensor, Tensor.cpu, super()._convert_stateful_objects_in_state(*args, **how))

    class XLAFSDPStrategy(fully_sharded_of(XLAStrategy)):  # type: ignore[misc]  # a class made for this base
        def setup_module(self, module: Any) -> Any:
            self._shard_units(module, self._mesh())
            return module

    return XLAStrategy, XLAFSDPStrategy
