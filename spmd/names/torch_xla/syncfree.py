"""`torch_xla.amp`: autocast, the scaler of losses, and optimizers that skip a step without a read
by the host."""

from collections.abc import Callable
from typing import Any

import torch


class autocast(torch.autocast):
    """`torch.autocast` of the device, whose default dtype is bfloat16.

    Args: device: the logical device; the others as of `torch.autocast`. Source:
    `torch_xla.amp.autocast`.

    >>> import torch, spmd
    >>> layer, x = torch.nn.Linear(2, 1, device="xla"), torch.ones(1, 2, device="xla")
    >>> with spmd.torch_xla.syncfree.autocast("xla:0"):
    ...     layer(x).dtype
    torch.bfloat16
    """

    def __init__(
        self,
        device: Any = "xla",
        enabled: bool = True,
        dtype: torch.dtype | None = None,
        cache_enabled: bool | None = None,
    ):
        super().__init__(torch.device(device).type, dtype, enabled, cache_enabled)


class GradScaler(torch.amp.GradScaler):
    """`torch.amp.GradScaler` of the device. use_zero_grad: has no meaning here.

    >>> import spmd
    >>> spmd.torch_xla.syncfree.GradScaler(init_scale=4.0).get_scale()
    4.0
    """

    def __init__(self, *args: Any, use_zero_grad: bool = False, **kwargs: Any):
        super().__init__("xla", *args, **kwargs)


class _SyncFree(torch.optim.Optimizer):
    """A fused optimizer of torch's whose step takes the flag of non-finite gradients as a
    tensor."""

    def __init__(self, params: Any, lr: Any = 1e-3, *args: Any, **kwargs: Any):
        super().__init__(params, lr, *args, **{"fused": True, **kwargs})

    def step(
        self, closure: Callable[[], Any] | None = None, found_inf: torch.Tensor | None = None
    ) -> Any:
        if found_inf is None:
            return super().step(closure)
        self.grad_scale, self.found_inf = None, found_inf.reshape(()).float()
        try:
            return super().step(closure)
        finally:
            del self.grad_scale, self.found_inf


class Adam(_SyncFree, torch.optim.Adam):
    """`torch.optim.Adam`, fused: `step(closure=None, found_inf=None)` leaves all as it was where
    `found_inf` is not 0.

    >>> import torch, spmd
    >>> weight = torch.ones(2, device="xla")
    >>> weight.grad = torch.ones(2, device="xla")
    >>> spmd.torch_xla.syncfree.Adam([weight], lr=0.5).step(found_inf=torch.ones(1, device="xla"))
    >>> weight.tolist()
    [1.0, 1.0]
    """


class AdamW(_SyncFree, torch.optim.AdamW):
    """`torch.optim.AdamW`, as `Adam` of this module is `torch.optim.Adam`.

    >>> import torch, spmd
    >>> spmd.torch_xla.syncfree.AdamW([torch.ones(2, device="xla")]).defaults["fused"]
    True
    """


class SGD(_SyncFree, torch.optim.SGD):
    """`torch.optim.SGD`, as `Adam` of this module is `torch.optim.Adam`.

    >>> import torch, spmd
    >>> spmd.torch_xla.syncfree.SGD([torch.ones(2, device="xla")], lr=0.1).defaults["fused"]
    True
    """
