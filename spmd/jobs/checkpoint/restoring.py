"""Restoring of a state's entries: tensors in place, shard by shard in the sharding that they have,
objects by their `load_state_dict`."""

from typing import Any

import torch
from torch import nn

from ...core import XlaTensor, annotations, placed_like, storage_of, view_of
from ...mesh.hints import did_you_mean
from ...tensors.annotate import mark_sharding
from ...tensors.bare_names import bare_name
from .loading import matched_names
from .manifest import tensor_names
from .plain_values import decode
from .random_state import RandomState
from .staged_state import identity
from .state_entries import Entry, checked, entries, filled, kind_of, replaced
from .step_reader import StepReader
from .streaming import load_into


class Restoring:
    """A step that is read into a state; everything is compared first, so that a state that does not
    fit stays as it is.

    process: (the index of this process, their number).
    """

    def __init__(self, reader: StepReader, state: Any, process: tuple[int, int]) -> None:
        self.reader, self.state, self._process = reader, state, process
        self._filled: set[tuple[Any, str]] = set()
        self._wrong: list[str] = []
        stored = reader.manifest["values"]
        self._entries: dict[str, Entry] = {}
        self._present = checked(state, "CheckpointManager.restore")
        names = matched_names(stored, self._present)
        stored = {names[path]: entry for path, entry in stored.items()}
        for path, value in self._present.items():
            if path not in stored:
                hint = did_you_mean(path, stored)
                self._wrong.append(
                    f"{path!r} is not in the step, which has {_some(list(stored))}{hint}"
                )
                continue
            entry = self._of_this_process(path, value, stored[path])
            if entry is None:
                continue
            self._entries[path] = entry
            kind = kind_of(value)
            if entry["kind"] != kind:
                self._wrong.append(
                    f"{path!r} is {_article(entry)} in the step, and {_article({'kind': kind})} "
                    "here"
                )
            elif isinstance(value, torch.Tensor):
                self._compare(path, value, entry["state"]["$tensor"])
            elif isinstance(value, nn.Module):
                self._compare_module(path, value, entry["state"])
            elif _is_optimizer(value):
                self._compare_optimizer(path, value, entry)
        if self._wrong:
            raise ValueError(
                (
                    f"CheckpointManager.restore: the state differs from {reader.path}; nothing "
                    "was loaded:\n    "
                )
                + "\n    ".join(self._wrong[:12])
                + (f"\n    and {len(self._wrong) - 12} more" if len(self._wrong) > 12 else "")
            )

    def _of_this_process(self, path: str, value: Any, entry: Entry) -> Entry | None:
        if "by_process" not in entry:
            return entry
        index, count = self._process
        saved = entry["by_process"]
        if len(saved) == count and saved[index] is not None:
            return saved[index]
        if isinstance(value, RandomState) and None not in saved:
            first = saved[0]
            return (
                saved[index]
                if index < len(saved)
                else {**first, "state": {"device": first["state"]["device"]}}
            )
        self._wrong.append(
            f"{path!r} was another value in each of {len(saved)} processes, and here are {count}: "
            "leave it out of the state, or resume with as many processes"
        )
        return None

    # --- what is compared first -------------------------------------------------------------------

    def _compare(self, path: str, target: torch.Tensor, name: str) -> None:
        shape = self.reader.tensors[name]["shape"]
        if target.is_meta:
            self._wrong.append(
                f'{path!r} is on meta, where it has no devices; call to_empty(device="xla") first'
            )
        elif list(target.shape) != shape:
            self._wrong.append(
                f"{path!r} has the shape {shape} in the step and {list(target.shape)} here"
            )

    def _compare_module(self, path: str, module: nn.Module, stored: Any) -> None:
        if not isinstance(stored, dict):
            self._wrong.append(f"{path!r} is no module in the step")
            return
        values = {bare_name(name): value for name, value in module.state_dict().items()}
        saved = {bare_name(name): value for name, value in stored.items()}
        for title, names, counterpart in (
            ("not in the step", values, saved),
            ("not in the model", saved, values),
        ):
            for name in names:
                if name not in counterpart:
                    self._wrong.append(
                        f"{path!r}: {name!r} is {title}{did_you_mean(name, counterpart)}"
                    )
        for name, value in values.items():
            encoded = saved.get(name)
            if (
                isinstance(value, torch.Tensor)
                and isinstance(encoded, dict)
                and "$tensor" in encoded
            ):
                self._compare(f"{path}.{name}", value, encoded["$tensor"])

    def _compare_optimizer(self, path: str, optimizer: Any, entry: Entry) -> None:
        state = entry["state"]
        groups = state.get("param_groups") if isinstance(state, dict) else None
        if groups is None:
            return
        if not isinstance(groups, list) or not all(
            isinstance(group.get("params"), list) for group in groups
        ):
            self._wrong.append(f"{path!r} has no groups of parameters in the step")
            return
        was, current_class = str(entry.get("class", "an optimizer")), type(optimizer).__name__
        saved, ours = (
            dict.fromkeys(key for group in group_list for key in group)
            for group_list in (groups, optimizer.param_groups)
        )
        only_saved, only_ours = (
            [key for key in saved if key not in ours],
            [key for key in ours if key not in saved],
        )
        # torch's names say which optimizer it is. Others may be those of a wrapper (ZeRO's,
        # accelerate's) or of a subclass, and go by their keys: schedulers and newer versions add
        # some, and only another optimizer lacks some.
        if (
            was != current_class
            if hasattr(torch.optim, was) and hasattr(torch.optim, current_class)
            else only_saved and only_ours
        ):
            keys = [
                f"{_some(key_names)} in the step alone" for key_names in [only_saved] if key_names
            ]
            keys += [f"{_some(key_names)} here alone" for key_names in [only_ours] if key_names]
            self._wrong.append(
                f"{path!r} is {was} in the step, and {current_class} "
                f"here{'; param_groups have ' if keys else ''}{', and '.join(keys)}: make the "
                "same optimizer, or leave it out of the state"
            )
            return
        sizes, own_sizes = (
            [len(group["params"]) for group in group_list]
            for group_list in (groups, optimizer.param_groups)
        )
        if sizes != own_sizes:
            self._wrong.append(
                f"{path!r} has groups of {sizes} parameters in the step, and of {own_sizes} here"
            )

    # --- loading ----------------------------------------------------------------------------------

    def run(self) -> None:
        """Loads all entries."""
        with torch.no_grad():
            replaced(self.state, self._loaded)

    def _loaded(self, path: str, value: Any) -> Any:
        state = self._state(path, value)
        if self._entries[path]["kind"] == "value":
            return filled(value, state)
        if isinstance(value, torch.Tensor):
            return value
        try:
            (value.set_state if isinstance(value, torch.Generator) else value.load_state_dict)(
                state
            )
        except (TypeError, LookupError, AttributeError, RuntimeError) as error:
            # its own, which does not name the file
            if isinstance(error, RuntimeError) and type(error) is not RuntimeError:  # of the device
                raise
            raise ValueError(
                f"CheckpointManager.restore: {type(value).__name__} at {path!r} does not take the "
                f"state that {self.reader.path} has for it: {error!r}"
            ) from error
        return value

    def _state(self, path: str, value: Any) -> Any:
        """The state of an entry; tensors that the entry has are filled."""
        entry = self._entries[path]
        if entry["kind"] == "tensor":
            self._fill(value, entry["state"]["$tensor"])
            return value
        if isinstance(value, nn.Module):
            return self._module_state(path, value, entry)
        return self._decoded(path, value, entry["state"])

    def _module_state(self, path: str, module: nn.Module, entry: Entry) -> Any:
        """The state of a module, whose own tensors are filled."""
        targets = module.state_dict()
        names = {bare_name(name): name for name in targets}

        def read(name: str, entry_path: str) -> torch.Tensor:
            target = targets.get(names.get(bare_name(entry_path.removeprefix(f"{path}.")), ""))
            if not isinstance(target, torch.Tensor):  # inside of an extra state
                return self._read(name)
            self._fill(target, name)
            return target

        tensors = {
            names[bare_name(name)]: decode(value, f"{path}.{name}", read)
            for name, value in entry["state"].items()
        }
        loaded = type(targets)(tensors)
        metadata = decode(entry.get("metadata"), path, read)
        if metadata is not None:
            loaded._metadata = {bare_name(name): value for name, value in metadata.items()}  # type: ignore[attr-defined]
        return loaded

    def _decoded(self, path: str, value: Any, encoded: Any) -> Any:
        """The state of an object, with tensors of its own where it has them, filled, and new ones
        elsewhere."""
        targets: dict[str, torch.Tensor] = {}
        is_on_devices = any(
            not self.reader.tensors[name]["on_host"] for name in tensor_names(encoded)
        )
        if is_on_devices:  # a loader has none, and the call may start its workers
            targets = {
                entry_path: tensor
                for entry_path, tensor in entries(value.state_dict(), path)
                if isinstance(tensor, torch.Tensor)
            }
        parameters = (
            [p for group in value.param_groups for p in group["params"]]
            if _is_optimizer(value)
            else []
        )

        def read(name: str, entry_path: str) -> torch.Tensor:
            stored, target = self.reader.tensors[name], targets.get(entry_path)
            if (
                target is not None
                and list(target.shape) == stored["shape"]
                and isinstance(target, XlaTensor)
            ):
                self._fill(target, name)
                return target
            parts = entry_path.removeprefix(f"{path}.").split(".")
            if (
                stored["on_host"]
                or parts[0] != "state"
                or not parts[1:2]
                or not parts[1].isdecimal()
            ):
                return self._read(name)
            parameter = parameters[int(parts[1])] if int(parts[1]) < len(parameters) else None
            return (
                self._like(parameter, name)
                if isinstance(parameter, XlaTensor)
                else self._read(name)
            )

        return decode(encoded, path, read)

    def _like(self, parameter: XlaTensor, name: str) -> torch.Tensor:
        """A new tensor on the devices of a parameter: sharded like it where it has its shape, else
        replicated."""
        stored = self.reader.tensors[name]
        if not self._is_like(parameter, name):
            return placed_like(self.reader.read(name).to("xla"), parameter)  # type: ignore[arg-type]  # it is on xla
        result = torch.empty(stored["shape"], dtype=getattr(torch, stored["dtype"]), device="xla")
        sharding = annotations.current_sharding(parameter)
        if sharding is not None:
            mark_sharding(result, sharding)
            storage_of(result).sharding = storage_of(parameter).sharding  # type: ignore[arg-type]  # it is on xla
        self._fill(result, name)
        return result

    def _is_like(self, parameter: XlaTensor, name: str) -> bool:
        is_whole = parameter.numel() > 0 and view_of(parameter) is None
        return is_whole and self.reader.tensors[name]["shape"] == list(parameter.shape)

    def _fill(self, target: torch.Tensor, name: str) -> None:
        """Reads a tensor's values into it, once."""
        key = identity(target), name
        if key not in self._filled:  # tied weights
            self._fill_now(target, name)
            self._filled.add(key)

    def _fill_now(self, target: torch.Tensor, name: str) -> None:
        """Reads a tensor's values into it: of one on devices, a shard at a time."""
        load_into(target, lambda indices: self.reader.read(name, indices))

    def _read(self, name: str) -> torch.Tensor:
        """A tensor of the step as a new one on the CPU."""
        return self.reader.read(name)


def _is_optimizer(value: Any) -> bool:
    return hasattr(value, "param_groups") and hasattr(value, "load_state_dict")


def _article(entry: Entry) -> str:
    return {"tensor": "a tensor", "value": "a plain value"}.get(
        entry["kind"], f"an object {entry.get('class', '')}".strip()
    )


def _some(names: list[str]) -> str:
    return ", ".join(map(repr, names[:8])) + (", ..." if len(names) > 8 else "")
