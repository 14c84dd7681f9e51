"""Simulated devices: CPU devices in place of others, and a line for what the environment names
instead."""

import importlib.util

import jax

from ..core import (
    config,
    ends_at_user_line,
    hardware,
    jax_facts,
    messages,
    points,
    processes,
    topology,
    variables,
)
from ..mesh.hints import did_you_mean


@ends_at_user_line
def simulate(num_devices: int, *, slices: int = 1) -> None:
    """Makes this process see `num_devices` CPU devices, so that any mesh can be tried on one
    machine.

    Must run before the first use of a device. Of several processes that have joined
    (`spmd.initialize`, `python -m spmd launch`) each gets its part of the devices, which must be
    what `launch --devices` has given it, if that was given. slices: the devices stand for so many
    slices of equal size, for a `HybridMesh`. Raises ValueError for a count below 1 or one that the
    slices or the processes do not divide or that gives a process another number than it has, or
    more than 2,048, and RuntimeError when JAX's backend is already up with another number of
    devices; a repeated call with the same count does nothing. An accelerator that JAX_PLATFORMS or
    PJRT_DEVICE names is used instead; one that is only present is not. Either, and a number of CPU
    devices in the environment that is not this one, is a line on stderr.

    >>> import spmd
    >>> spmd.simulate(8)
    """
    if not isinstance(num_devices, int) or num_devices < 1:
        raise ValueError(
            f"simulate: expected a number of devices of 1 or more, got {num_devices!r}"
        )
    if not isinstance(slices, int) or slices < 1 or num_devices % slices:
        raise ValueError(f"simulate: {num_devices} devices make no {slices!r} slices of equal size")
    platform = _requested_platform()
    if platform not in ("", "cpu"):
        text = (
            f"simulate: JAX_PLATFORMS or PJRT_DEVICE names {platform}; it wins (JAX_PLATFORMS=cpu "
            "simulates)"
        )
        messages.say(text, "simulate")
        return
    if num_devices % processes.count():
        raise ValueError(
            f"simulate: {num_devices} devices cannot be split over {processes.count()} processes"
        )
    topology.check_simulated(num_devices // processes.count(), f"simulate({num_devices})")
    if hardware.is_running():
        present = len(jax.devices())
        if present == num_devices and jax.default_backend() == "cpu":
            config.num_slices = slices if slices > 1 else 0
            return
        raise RuntimeError(
            f"simulate({num_devices}) came too late: JAX is already running with {present} "
            f"{jax.default_backend()} device(s). Call spmd.simulate before the first tensor, mesh "
            "or jax.devices() of the process."
        )
    num_own = num_devices // processes.count()
    num_requested = jax.config.jax_num_cpu_devices  # type: ignore[attr-defined]  # -1: not given
    if processes.several() and num_requested not in (-1, num_own):
        raise ValueError(
            f"simulate({num_devices}) counts the devices of all {processes.count()} processes, "
            f"{num_own} each, and each has {num_requested} already (launch --devices, "
            "CPU_NUM_DEVICES, or an earlier call): leave one of the two out, or call "
            f"spmd.simulate({num_requested * processes.count()})"
        )
    _say_overridden(num_own, platform)
    config.num_slices = slices if slices > 1 else 0
    hardware.use_cpu_devices(num_own)


def _requested_platform() -> str:
    """The platform that the environment, or jax's config, names first; "" for none."""
    named = jax.config.jax_platforms or variables.requested_hardware().platform or ""  # type: ignore[attr-defined]
    return named.partition(",")[0]


def _say_overridden(num_devices: int, platform: str) -> None:
    """Says what `simulate` overrides: other numbers of CPU devices, and an accelerator that jax
    would find."""
    overridden_counts = [
        f"{name} ({count})"
        for name, count in variables.requested_cpu_devices().items()
        if count != num_devices
    ]
    if overridden_counts:
        messages.say(
            f"simulate makes {num_devices} CPU devices here, against "
            f"{', '.join(overridden_counts)}",
            "simulate",
        )
    plugins = ("jax_cuda12_plugin", "jax_cuda13_plugin")
    has_cuda = variables.has_gpu() and any(map(importlib.util.find_spec, plugins))
    if not platform and (has_cuda or jax_facts.num_tpu_chips()):
        kind = "GPU" if has_cuda else "TPU"
        text = (
            f"simulate computes on the CPU; set PJRT_DEVICE={kind}, or leave it out, for the {kind}"
        )
        messages.say(text, "simulate")


def _say_unknown_variables() -> None:
    """Says which variables are named as flags of this library and set none."""
    for variable, flags in variables.unknown_variables().items():
        messages.say(f"{variable} sets nothing{did_you_mean(variable, flags)}", "variables")


points.AT_FIRST_USE.append(_say_unknown_variables)
