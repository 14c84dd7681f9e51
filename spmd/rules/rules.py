"""ShardingRules: an ordered table from patterns of paths to specs, apart from the model."""

import dataclasses
import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from ..core import ends_at_user_line, user_line
from ..loops.recompute.checkpoint_policies import WORDS
from ..mesh.mesh import Mesh
from ..mesh.partition_spec import PartitionSpec
from ..tensors import sealed_json
from .applied import Applied, apply
from .model_plans import Axis, plans_of
from .patterns import REGEX, HookSite, check, matches, near_site, site_of

Specs = Mapping[Any, Sequence[Any]] | Iterable[tuple[Any, Sequence[Any]]]


@dataclass(frozen=True)
class Units:
    """The units of FSDP and their axes (`fsdp.FullyShardedDataParallel`).

    Attributes:
        modules: patterns of module paths; the root is always a unit. shard_axis: the mesh axis that
            shards parameters. extra_data_axis: one more axis that shards the batch.
            reshard_after_forward: free the gathered parameters and gather them again for backward;
            False: keep them; a number: keep them sharded over so many neighbours. stages: the mesh
            axis over which the units themselves, equal layers, are split (a pipeline).
            micro_batches: of the pipeline.
    """

    modules: tuple[str, ...] = ()
    shard_axis: str = "fsdp"
    extra_data_axis: str | None = None
    reshard_after_forward: bool | int = True
    stages: str | None = None
    micro_batches: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "modules", _patterns("units", self.modules))
        if self.micro_batches is not None and (self.stages is None or self.micro_batches < 1):
            raise ValueError(
                f"ShardingRules: got micro_batches={self.micro_batches!r}; expected a number from "
                "1 on, with stages='axis'"
            )


@ends_at_user_line
class ShardingRules:
    """The specs of a model's parameters and activations, as an ordered table apart from the model.

    A rule is a pattern and a spec; for each path the first rule that matches counts. The table is a
    value: `put` and `without` return another one.

    Args:
        rules: (pattern, spec) in order, or a dict. A pattern is of the paths of parameters and
            buffers ("layers.*.attention.query.weight"), or of an activation: a module's path with
            ":input" or ":output" ("layers.*.norm:output"; ":output" is the root's), followed by the
            position or name of one of several values (":output[0]", ":input[mask]"); without it all
            tensors of the spec's rank. In a glob `*` and `?` stay within one part of a name, `**`
            spans parts, `{a,b}` and `[0-7]` choose; a text that begins with "re:", or a compiled
            regular expression, must match the full path. A spec is as in `mark_sharding`, or `P()`:
            replicated, for any rank.
        units: patterns of modules; with them, or `()` for the root only, FSDP shards parameters
            over `shard_axis`, too, and gathers those of a unit at once. shard_axis,
            extra_data_axis, reshard_after_forward: as in `fsdp.FullyShardedDataParallel`.
        stages: the mesh axis over which the units, equal layers, are split: each lies with its
            gradients and the optimizer's state on its stage, and micro-batches pass from stage to
            stage. The batch is split over it, too. micro_batches: of each device's rows of the
            batch, the largest number up to this one that divides them; None: four a stage. It is
            `config.micro_batches` from `apply` on.
        checkpoint: patterns of modules whose forward is recomputed in backward (activation
            checkpointing); or a dict, pattern -> what is saved from forward, by a word of
            `spmd.remat`: "nothing", "dots" (results of products), "offload_dot_with_no_batch_dims"
            (these in the host's memory). The first pattern that matches counts.

    Raises ValueError for a pattern that cannot be read or that is repeated, TypeError for another
    type of rule. Source: the tables of t5x (`logical_axis_rules`), MaxText and torchtitan.

    >>> from spmd import P, ShardingRules
    >>> rules = ShardingRules(
    ...     {"**.{query,key}.weight": P("tensor", None), "**.weight": P(None, "tensor")}
    ... )
    >>> rules.spec_of("layers.0.key.weight"), rules.spec_of("layers.0.bias")
    (P('tensor', None), None)
    """

    __slots__ = ("_rules", "checkpoint", "line", "units")

    _rules: dict[str, PartitionSpec]
    line: str  # the user's line that made the table, or the file that it came from
    units: Units | None
    checkpoint: dict[str, str]  # pattern -> what is saved

    def __init__(
        self,
        rules: Specs = (),
        *,
        units: Sequence[str] | None = None,
        shard_axis: str = "fsdp",
        extra_data_axis: str | None = None,
        reshard_after_forward: bool | int = True,
        stages: str | None = None,
        micro_batches: int | None = None,
        checkpoint: Sequence[str] | Mapping[str, str] = (),
    ):
        if isinstance(rules, str):
            raise TypeError(
                f"ShardingRules: expected {{pattern: spec}}, got text; write {{{rules!r}: P(...)}}"
            )
        pairs = rules.items() if isinstance(rules, (Mapping, ShardingRules)) else rules
        table: dict[str, PartitionSpec] = {}
        for pair in pairs:
            pattern, spec = _rule(pair)
            if pattern in table:
                raise ValueError(
                    f"ShardingRules: {pattern!r} is repeated; the first match counts, drop one"
                )
            table[pattern] = spec
        if units is None and stages is not None:
            raise ValueError(
                f"ShardingRules: stages={stages!r} splits units; name the layers, "
                "units=['model.layers.*']"
            )
        fsdp = (
            None
            if units is None
            else Units(
                units,  # type: ignore[arg-type]
                shard_axis,
                extra_data_axis,
                reshard_after_forward,
                stages,
                micro_batches,
            )
        )
        values = table, _saved(checkpoint), str(user_line()), fsdp
        for name, value in zip(ShardingRules.__slots__, values, strict=True):
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError("ShardingRules are immutable; put() and without() return others")

    # -- Read.

    def items(self) -> Iterator[tuple[str, PartitionSpec]]:
        """Iterates over (pattern, spec), in order."""
        return iter(self._rules.items())

    def __iter__(self) -> Iterator[str]:
        return iter(self._rules)

    def __len__(self) -> int:
        return len(self._rules)

    def __getitem__(self, pattern: str) -> PartitionSpec:
        return self._rules[pattern]

    def match(self, path: str) -> str | None:
        """The pattern of the first rule for a parameter's path; None without a match."""
        return next(
            (pattern for pattern, _ in self.of_parameters() if matches(pattern, path)), None
        )

    def spec_of(self, path: str) -> PartitionSpec | None:
        """The spec of the first rule for a parameter's path; None without a match."""
        pattern = self.match(path)
        return None if pattern is None else self._rules[pattern]

    def of_parameters(self) -> list[tuple[str, PartitionSpec]]:
        """The rules of parameters and buffers, in order."""
        return [(pattern, spec) for pattern, spec in self.items() if site_of(pattern) is None]

    def of_activations(self) -> list[tuple[str, HookSite, PartitionSpec]]:
        """The rules of activations, in order, each with its site."""
        return [
            (pattern, site, spec)
            for pattern, spec in self.items()
            if (site := site_of(pattern)) is not None
        ]

    # -- Edit.

    def put(
        self, pattern: Any, spec: Sequence[Any], *, before: str | None = None
    ) -> "ShardingRules":
        """Returns the table with one more rule: it replaces the one with this pattern, else
        precedes `before`, else is the last.

        >>> from spmd import P, ShardingRules
        >>> list(ShardingRules({"**": P()}).put("head.weight", P("tensor", None), before="**"))
        ['head.weight', '**']
        """
        pattern, spec = _rule((pattern, spec))
        self._known(before)
        if pattern in self._rules:
            return self._replaced([*{**self._rules, pattern: spec}.items()])
        pairs = [*self.items()]
        pairs.insert(len(pairs) if before is None else [*self].index(before), (pattern, spec))
        return self._replaced(pairs)

    def without(self, pattern: str) -> "ShardingRules":
        """Returns the table without a rule. Raises KeyError for a pattern that is not in it."""
        self._known(pattern)
        return self._replaced([pair for pair in self.items() if pair[0] != pattern])

    def _known(self, pattern: str | None) -> None:
        if pattern is not None and pattern not in self._rules:
            raise KeyError(
                f"ShardingRules: no rule has the pattern {pattern!r}; there are "
                f"{', '.join(self._rules)}"
            )

    def _replaced(self, pairs: list[tuple[str, PartitionSpec]]) -> "ShardingRules":
        return _made(pairs, self.units, self.checkpoint)

    # -- Apply.

    @classmethod
    def of(
        cls,
        model: nn.Module,
        config: Any = None,
        *,
        fsdp: str | None = "fsdp",
        tensor: Axis = "tensor",
        expert: Axis = None,
        stages: str | None = None,
        micro_batches: int | None = None,
    ) -> "ShardingRules":
        """Translates the plans that a model has itself into a table: `_tp_plan`, `_fsdp_plan` and
        `_ep_plan` of transformers' classes.

        An entry of `_tp_plan` becomes the specs of its module's parameters. An entry of
        `_fsdp_plan` that frees its parameters becomes a unit; the root keeps all others from
        forward to backward.

        Args:
            model: a module with plans, or with a part that has them.
            config: a `transformers.distributed.DistributedConfig` or a dict, whose `tp_plan`,
                `ep_plan` and `fsdp_plan` override entries; its sizes are those of the mesh here.
                None: `model.config.distributed_config`, if any.
            fsdp: the axis of FSDP's units; None: no units.
            tensor: the axis or axes of `_tp_plan`; None: it is not read.
            expert: the axis or axes of `_ep_plan`, which precedes `_tp_plan` for its modules; None:
                it is not read.
            stages: the axis of a pipeline, over which the lists of layers of `_pp_plan` are split;
                they are the units then. None: it is not read. micro_batches: of the pipeline.

        Returns a table for `apply`; with units it needs `import fsdp`. Warns of entries that match
        nothing. Raises ValueError for a model without a plan, a style that is not known, and an
        entry of the configuration that matches nothing.
        Source: `transformers.distributed`.

        >>> import torch, spmd
        >>> class Block(torch.nn.Module):
        ...     _tp_plan = {"up": "colwise", "down": "rowwise"}
        ...
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.up, self.down = torch.nn.Linear(4, 8), torch.nn.Linear(8, 4)
        >>> print(spmd.ShardingRules.of(Block(), fsdp=None))
        up.weight    P('tensor', None)
        up.bias      P('tensor')
        down.weight  P(None, 'tensor')
        """
        plans = plans_of(model, config, fsdp=fsdp, tensor=tensor, expert=expert, stages=stages)
        return cls(
            plans.rules,
            units=plans.units,
            shard_axis="fsdp" if fsdp is None else fsdp,
            stages=stages,
            micro_batches=micro_batches,
        )

    def apply(
        self, model: nn.Module, mesh: Mesh | None = None, *, strict: bool = True, **fsdp: Any
    ) -> Applied:
        """Shards a model over a mesh: parameters and buffers now or when they reach the device,
        activations by hooks.

        Tensors on the CPU or on `meta` are sharded when they move (`.to("xla")`,
        `.to_empty(device="xla")`) or are planned. With FSDP, before or after, the dim that it
        shards is added to the rules' specs.

        Args:
            model: any module; paths are as it names its parameters. mesh: must have the axes of the
                rules in use; None: that of `with mesh:` or `spmd.torch_xla.set_global_mesh`.
            strict: raise for a rule that matches nothing in the model. False: for a table that
                several models share.
            fsdp: for a table with `units`: keywords of `fsdp.FullyShardedDataParallel`, such as
                `mp_policy`.

        Returns a handle whose `remove()` removes the hooks; tensors keep their shardings.
        Raises ValueError for an axis that is not in the mesh, a spec of another rank, a rule that
        matches nothing, and two rules with different specs for one tied tensor; TypeError for
        another type of model or mesh.

        >>> import torch, spmd
        >>> mesh = spmd.Mesh([0], (1,), ("tensor",))
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 4))
        >>> rules = spmd.ShardingRules({"0.weight": ("tensor", None), "1.weight": (None, "tensor")})
        >>> rules.apply(model, mesh).tensors  # path -> pattern
        {'0.weight': '0.weight', '1.weight': '1.weight'}
        >>> model.to("xla")(torch.ones(2, 4, device="xla")).shape
        torch.Size([2, 4])
        """
        return apply(self, model, mesh, strict=strict, how=fsdp)

    # -- As text and as a file.

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ShardingRules):
            return NotImplemented
        return self._parts() == other._parts()

    def __hash__(self) -> int:
        return hash(self._parts())

    def _parts(self) -> tuple[Any, ...]:
        return tuple(self.items()), self.units, tuple(self.checkpoint.items())

    def __reduce__(self) -> tuple[Any, ...]:
        return _made, self._parts()

    def __repr__(self) -> str:
        fsdp = {} if self.units is None else {"units": self.units.modules, **_fields(self.units)}
        options = fsdp | ({"checkpoint": _short(self.checkpoint)} if self.checkpoint else {})
        more = "".join(f", {name}={value!r}" for name, value in options.items())
        return f"ShardingRules({self._rules!r}{more})"

    def __str__(self) -> str:
        width = max((len(pattern) for pattern in self), default=0)
        lines = [f"{pattern:<{width}}  {spec!r}" for pattern, spec in self.items()]
        if self.units is not None:
            lines.append(f"fsdp units: {', '.join([*self.units.modules, 'the root'])}")
            lines += [f"    {name} = {value!r}" for name, value in _fields(self.units).items()]
        if self.checkpoint:
            saved = (
                pattern if word == NOTHING else f"{pattern} ({word})"
                for pattern, word in self.checkpoint.items()
            )
            lines.append(f"checkpointed: {', '.join(saved)}")
        return "\n".join(lines) or "no rules"

    def to_toml(self) -> str:
        """Returns the table as TOML: `from_toml` reads it back exactly."""
        lines = [
            (
                "# pattern, spec: one entry per dim; [] is unsharded, [a, b] is split over both, "
                '"?" is left open'
            )
        ]
        rules = ([pattern, [*map(_written, spec)]] for pattern, spec in self.items())
        lines += ["rules = [", *(f"  {_toml(rule)}," for rule in rules), "]"]
        if self.checkpoint:
            short = _short(self.checkpoint)
            pairs = ", ".join(
                f"{_toml(pattern)} = {_toml(word)}" for pattern, word in self.checkpoint.items()
            )
            lines.append(
                f"checkpoint = {f'{{ {pairs} }}' if isinstance(short, dict) else _toml(short)}"
            )
        if self.units is not None:
            lines += ["", "[fsdp]", f"units = {_toml(self.units.modules)}"]
            lines += [f"{name} = {_toml(value)}" for name, value in _fields(self.units).items()]
        return "\n".join(lines) + "\n"

    @classmethod
    def from_toml(cls, text: str) -> "ShardingRules":
        """Reads a table that `to_toml` wrote. Raises ValueError for another text.

        >>> from spmd import P, ShardingRules
        >>> rules = ShardingRules({"a.*": P(("x", "y"), None), "a:output": P(P.UNCONSTRAINED, 0)})
        >>> ShardingRules.from_toml(rules.to_toml()) == rules
        True
        """
        try:
            parsed = tomllib.loads(text)
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            raise ValueError(f"ShardingRules: expected TOML: {error}") from None
        fsdp = parsed.pop("fsdp", {})
        rules, checkpoint = parsed.pop("rules", []), parsed.pop("checkpoint", [])
        if (
            not isinstance(fsdp, dict)
            or not isinstance(rules, list)
            or not isinstance(checkpoint, (list, dict))
        ):
            raise ValueError(
                "ShardingRules: expected rules as a list, checkpoint as a list or a table, [fsdp] "
                "as a table"
            )
        if parsed:
            raise ValueError(
                "ShardingRules: expected only rules, checkpoint and [fsdp], also got "
                f"{', '.join(parsed)}"
            )
        if unknown := fsdp.keys() - _FSDP:
            raise ValueError(
                f"ShardingRules: [fsdp] has {', '.join(sorted(unknown))}; expected "
                f"{', '.join(_FSDP)}"
            )
        options: dict[str, Any] = {"units": ()} | fsdp if fsdp else {}
        return cls([_rule_of(row) for row in rules], checkpoint=checkpoint, **options)

    def save(self, path: str | Path) -> None:
        """Writes the table as a TOML file, to be read, edited and kept with the model."""
        Path(path).write_text(self.to_toml(), encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> "ShardingRules":
        """Reads the table of a TOML file.

        Raises ValueError, which names the file, for another content.
        """
        try:
            rules = cls.from_toml(sealed_json.content(Path(path), follows_links=True).decode())
        except (ValueError, TypeError) as error:
            raise (TypeError if type(error) is TypeError else ValueError)(
                f"{path}: {error}"
            ) from None
        object.__setattr__(rules, "line", str(path))
        return rules


def _made(pairs: Any, units: Units | None, checkpoint: Any) -> ShardingRules:
    fsdp = {} if units is None else {"units": units.modules, **_fields(units)}
    return ShardingRules(pairs, checkpoint=dict(checkpoint), **fsdp)


def _rule(pair: Any) -> tuple[str, PartitionSpec]:
    if not isinstance(pair, Sequence) or isinstance(pair, str) or len(pair) != 2:
        raise TypeError(f"ShardingRules: expected (pattern, spec), got {pair!r}")
    pattern, spec = pair
    if isinstance(pattern, re.Pattern):
        flags = re.RegexFlag(pattern.flags) & ~re.UNICODE
        if flags:
            raise ValueError(
                f"ShardingRules: write the flags {flags!r} of {pattern.pattern!r} in it, as in "
                "'(?i)...'"
            )
        pattern = REGEX + pattern.pattern
    if not isinstance(pattern, str):
        raise TypeError(
            f"ShardingRules: expected a pattern as text or a compiled one, got {pattern!r}"
        )
    if isinstance(spec, str) or not isinstance(spec, Sequence):
        raise TypeError(
            f"ShardingRules: expected the spec of {pattern!r} with one entry per dim, got {spec!r}"
        )
    site = site_of(pattern)
    near = near_site(pattern) if site is None else None
    if near is not None:
        raise ValueError(
            f"ShardingRules: {pattern!r} names neither an input nor an output; did you mean "
            f"{near!r}?"
        )
    check(pattern if site is None else site.path)
    # An empty tuple of axes means None; a table always has None.
    return pattern, PartitionSpec(*(None if entry == () else entry for entry in spec))


NOTHING = "nothing"  # is saved


def _saved(checkpoint: Any) -> dict[str, str]:
    """Pattern -> saved values; none where there are only patterns."""
    words = (
        dict(checkpoint)
        if isinstance(checkpoint, Mapping)
        else dict.fromkeys(_patterns("checkpoint", checkpoint), NOTHING)
    )
    _patterns("checkpoint", words)
    for pattern, word in words.items():
        if word not in WORDS:
            choices = ", ".join(map(repr, WORDS))
            raise ValueError(
                f"ShardingRules: expected checkpoint[{pattern!r}] to be one of {choices}, got "
                f"{word!r}"
            )
    return words


def _short(saved: Mapping[str, str]) -> tuple[str, ...] | dict[str, str]:
    """The patterns alone, where nothing is saved of any."""
    return dict(saved) if set(saved.values()) - {NOTHING} else tuple(saved)


def _patterns(name: str, patterns: Any) -> tuple[str, ...]:
    if isinstance(patterns, str) or not all(isinstance(pattern, str) for pattern in patterns):
        raise TypeError(
            f"ShardingRules: expected {name} to be patterns of module paths, got {patterns!r}; "
            f"write {name}=[{patterns if isinstance(patterns, str) else 'layers.*'!r}]"
        )
    for pattern in patterns:
        check(pattern)
    return tuple(patterns)


def _fields(units: Units) -> dict[str, Any]:
    """The fields of the units except `modules`, without None."""
    values = {
        field.name: getattr(units, field.name)
        for field in dataclasses.fields(units)
        if field.name != "modules"
    }
    return {name: value for name, value in values.items() if value is not None}


_FSDP = (
    "units",
    "shard_axis",
    "extra_data_axis",
    "reshard_after_forward",
    "stages",
    "micro_batches",
)
OPEN = "?"  # in a file; no axis has this name


def _toml(value: Any) -> str:
    """Texts, numbers and lists of them, which JSON and TOML have in common."""
    return json.dumps(value, ensure_ascii=False)


def _written(entry: Any) -> Any:
    """An entry of a spec as it is in a file; `_op_of` reads it back."""
    if entry is PartitionSpec.UNCONSTRAINED:
        return OPEN
    if entry == OPEN:
        raise ValueError(
            f"ShardingRules: an axis called {OPEN!r} cannot be written to a file; rename it"
        )
    return [*map(_written, entry)] if isinstance(entry, tuple) else [] if entry is None else entry


def _rule_of(row: Any) -> tuple[str, PartitionSpec]:
    if not isinstance(row, list) or len(row) != 2 or not isinstance(row[1], list):
        raise ValueError(f"ShardingRules: expected a rule as [pattern, [entries]], got {row!r}")
    return row[0], PartitionSpec(*map(_op_of, row[1]))


def _op_of(entry: Any) -> Any:
    if entry == OPEN:
        return PartitionSpec.UNCONSTRAINED
    return (tuple(entry) or None) if isinstance(entry, list) else entry
