"""Policies for the values that a checkpointed block saves in its forward pass: everything, nothing,
dots, names, some of them in the host's memory. The names and their meaning are those of
`jax.checkpoint_policies`.

Policies go to `spmd.remat`, `spmd.scan` and `spmd.scan_layers`; the frequent ones have a short
word: "everything", "nothing", "dots", "dots_with_no_batch_dims", "offload_dot_with_no_batch_dims".
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

# A value is kept in the device's memory, recomputed, or kept in the host's memory.
Decision = Literal["save", "recompute", "offload"]

# Products of linear algebra whose two operands share no batch dim, and the rest. Convolutions are
# among the latter: jax's "dots" has them, its "no batch dims" does not.
_UNBATCHED = (
    "mm",
    "addmm",
    "linear",
    "mv",
    "addmv",
    "dot",
    "vdot",
    "_addmm_activation",
    "_int_mm",
    "_scaled_mm",
    "_scaled_mm_v2",
)
_BATCHED = (
    "bmm",
    "baddbmm",
    "addbmm",
    "_grouped_mm",
    "_trilinear",
    "convolution",
    "_convolution",
    "conv_tbc",
)


@dataclass(frozen=True, slots=True)
class SavingRule:
    """A set of values with a decision.

    Attributes:
        decision: "save" or "offload". ops: the results of these ops, by name without overload;
            None: of all. names: the
        values with these names. but: all named values except these; None: no such rule.
    """

    decision: Decision
    ops: tuple[str, ...] | None = ()
    names: tuple[str, ...] = ()
    but: tuple[str, ...] | None = None

    def covers(self, op: str, name: str | None) -> bool:
        if self.ops is None or op in self.ops:
            return True
        return name is not None and (
            name in self.names or (self.but is not None and name not in self.but)
        )


@dataclass(frozen=True, slots=True)
class Policy:
    """The values to save, as data: all that one of the rules covers; "save" wins where two differ,
    the rest is recomputed. Equal policies are equal, and each has a text that is the same in every
    process.

    Make one with the functions of `spmd.checkpoint_policies`.

    >>> from spmd import checkpoint_policies
    >>> (
    ...     checkpoint_policies.dots_saveable.decide("aten.mm"),
    ...     checkpoint_policies.dots_saveable.decide("aten.gelu"),
    ... )
    ('save', 'recompute')
    """

    rules: tuple[SavingRule, ...] = ()

    def decide(self, op: str, name: str | None = None) -> Decision:
        """The decision for the result of an op ("aten.mm", "aten.addmm.dtype"); name: the name it
        gives its result."""
        base = ".".join(op.split(".")[:2])
        decisions = {rule.decision for rule in self.rules if rule.covers(base, name)}
        return (
            "save" if "save" in decisions else "offload" if "offload" in decisions else "recompute"
        )

    @property
    def keeps_all(self) -> bool:
        """True if nothing is recomputed, as without a checkpoint."""
        return any(rule.decision == "save" and rule.ops is None for rule in self.rules)


def _aten(*ops: str) -> tuple[str, ...]:
    return tuple(f"aten.{op}" for op in ops)


everything_saveable = Policy((SavingRule("save", ops=None),))
nothing_saveable = Policy()
dots_saveable = checkpoint_dots = Policy((SavingRule("save", ops=_aten(*_UNBATCHED, *_BATCHED)),))
dots_with_no_batch_dims_saveable = Policy((SavingRule("save", ops=_aten(*_UNBATCHED)),))
checkpoint_dots_with_no_batch_dims = dots_with_no_batch_dims_saveable
offload_dot_with_no_batch_dims = Policy((SavingRule("offload", ops=_aten(*_UNBATCHED)),))


def save_only_these_names(*names: str) -> Policy:
    """Saves the values that `spmd.checkpoint_name` gave one of these names.

    >>> from spmd import checkpoint_policies
    >>> checkpoint_policies.save_only_these_names("attention").decide(
    ...     "spmd.checkpoint_name", "attention"
    ... )
    'save'
    """
    return Policy((SavingRule("save", names=_checked("save_only_these_names", names)),))


def save_any_names_but_these(*names: str) -> Policy:
    """Saves every value that has a name, except those with one of these.

    >>> from spmd import checkpoint_policies
    >>> checkpoint_policies.save_any_names_but_these("wide").decide("spmd.checkpoint_name", "wide")
    'recompute'
    """
    return Policy((SavingRule("save", but=_checked("save_any_names_but_these", names)),))


def save_and_offload_only_these_names(
    *,
    names_which_can_be_saved: Iterable[str] = (),
    names_which_can_be_offloaded: Iterable[str] = (),
) -> Policy:
    """Saves the values of some names on the device, and those of others in the host's memory
    between the passes.

    Raises ValueError for a name in both.

    >>> from spmd import checkpoint_policies
    >>> policy = checkpoint_policies.save_and_offload_only_these_names(
    ...     names_which_can_be_offloaded=["residual"]
    ... )
    >>> policy.decide("spmd.checkpoint_name", "residual")
    'offload'
    """
    saved, offloaded = _apart(
        "save_and_offload_only_these_names", names_which_can_be_saved, names_which_can_be_offloaded
    )
    return Policy((SavingRule("save", names=saved), SavingRule("offload", names=offloaded)))


def save_and_offload_only_these_ops(
    *, ops_which_can_be_saved: Iterable[str] = (), ops_which_can_be_offloaded: Iterable[str] = ()
) -> Policy:
    """Saves the results of some ops on the device, and those of others in the host's memory between
    the passes.

    An op is named without its overload, as "aten.mm". The backward pass of attention reads its
    output and the logarithms of its sums: a policy on
    "aten._scaled_dot_product_fused_attention_overrideable", the op of the device xla, saves both,
    as MaxText's "context" does.

    Raises ValueError for an op in both.

    >>> from spmd import checkpoint_policies
    >>> policy = checkpoint_policies.save_and_offload_only_these_ops(
    ...     ops_which_can_be_offloaded=["aten.mm"]
    ... )
    >>> policy.decide("aten.mm")
    'offload'
    """
    saved, offloaded = _apart(
        "save_and_offload_only_these_ops", ops_which_can_be_saved, ops_which_can_be_offloaded
    )
    return Policy((SavingRule("save", ops=saved), SavingRule("offload", ops=offloaded)))


def save_from_both_policies(policy_1: "Policy | str", policy_2: "Policy | str") -> Policy:
    """Saves the values that either policy saves; a value that one saves and the other offloads is
    saved.

    >>> from spmd import checkpoint_policies
    >>> both = checkpoint_policies.save_from_both_policies(
    ...     "dots", checkpoint_policies.save_only_these_names("norm")
    ... )
    >>> (
    ...     both.decide("aten.mm"),
    ...     both.decide("spmd.checkpoint_name", "norm"),
    ...     both.decide("aten.add.Tensor"),
    ... )
    ('save', 'save', 'recompute')
    """
    return Policy((*as_policy(policy_1).rules, *as_policy(policy_2).rules))


def _apart(
    caller: str, saved: Iterable[str], offloaded: Iterable[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Both sorted; raises ValueError for a value in both."""
    saved_names, moved = _checked(caller, saved), _checked(caller, offloaded)
    if common_names := sorted({*saved_names} & {*moved}):
        kind = caller.rpartition("_")[2]  # names or ops
        raise ValueError(
            f"{caller}: a value is saved or offloaded, but {common_names} are among both {kind}"
        )
    return saved_names, moved


def _checked(caller: str, names: Iterable[str]) -> tuple[str, ...]:
    if isinstance(names, str):
        raise TypeError(
            f"{caller}: expected several names, got the one text {names!r}; write [{names!r}]"
        )
    texts = tuple(sorted(set(names)))
    if any(not isinstance(name, str) for name in texts):
        raise TypeError(f"{caller}: expected names as text, got {texts!r}")
    return texts


WORDS = {
    "everything": everything_saveable,
    "nothing": nothing_saveable,
    "dots": dots_saveable,
    "dots_with_no_batch_dims": dots_with_no_batch_dims_saveable,
    "offload_dot_with_no_batch_dims": offload_dot_with_no_batch_dims,
}


def as_policy(policy: "Policy | str | None", caller: str = "policy") -> Policy:
    """Returns a policy, also for a short word; None means "nothing".

    Raises ValueError for another word, TypeError for other objects.
    """
    if policy is None:
        return nothing_saveable
    if isinstance(policy, Policy):
        return policy
    if not isinstance(policy, str):
        raise TypeError(
            f"{caller}: expected a policy of spmd.checkpoint_policies or a word, got {policy!r}"
        )
    if policy not in WORDS:
        words = ", ".join(map(repr, WORDS))
        raise ValueError(
            f"{caller}: expected one of {words} or a policy of spmd.checkpoint_policies, got "
            f"{policy!r}"
        )
    return WORDS[policy]
