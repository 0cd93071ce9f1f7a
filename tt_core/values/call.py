"""What a unit is, what it receives, and what its eager runs showed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs
import torch
from torch import nn

from tt_core.values.backend import Keeps
from tt_core.values.kinds import frozen, valued
from tt_core.values.shapes import Shapes


@attrs.frozen(init=False, eq=False)
class Call:
    """One call of a module: `tt.Call(*args, **kwargs)`."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    weight: float

    def __init__(self, /, *args: Any, **kwargs: Any) -> None:
        """Every argument is the model's own; see `weighted` for the only option."""
        self.__attrs_init__(args=args, kwargs=kwargs, weight=1.0)

    def weighted(self, weight: float) -> Call:
        """The same call, counting `weight` times as much as one of weight 1 in latency scores."""
        if not weight > 0:
            message = f"weighted({weight!r}): a weight is a number above 0"
            raise ValueError(message)
        made = Call(*self.args, **self.kwargs)
        object.__setattr__(made, "weight", float(weight))
        return made


@valued
class TensorLeaf:
    """The identity of a tensor argument, without its sizes."""

    dtype: torch.dtype
    rank: int
    device: torch.device
    layout: torch.layout
    type: type


@valued
class ConstLeaf:
    """The identity of a plain constant argument: `True`, `1` and `1.0` differ, NaN equals itself."""

    type: type
    value: Any
    """A hashable stand-in for the value (floats by their hex form, so that NaN equals NaN and -0.0 is not 0.0)."""


@valued
class Ambient:
    """What surrounds a call and belongs to its identity."""

    training: bool = False
    autocast: tuple[tuple[str, torch.dtype], ...] = ()
    """(device type, dtype) of each enabled autocast."""


@valued
class CallKey:
    """The identity of a call (a "graph" elsewhere): equal keys may share one built.

    Attributes:
        tree: an optree PyTreeSpec of the *canonical* arguments: a dict from parameter name to value in signature
            order, defaults filled in (so that every spelling of one call shares one key).
        leaves: one entry per leaf of `tree`, in its order.
        ambient: autocast and training state.
    """

    tree: Any
    leaves: tuple[TensorLeaf | ConstLeaf, ...]
    ambient: Ambient

    @property
    def tensors(self) -> tuple[TensorLeaf, ...]:
        """The tensor leaves, in order: the order of `Shapes.leaves`."""
        return tuple(leaf for leaf in self.leaves if isinstance(leaf, TensorLeaf))


@frozen
class Observation:
    """What one run of a unit did, all of it.

    Attributes:
        result: the pytree that was returned, detached; tensors are owned by the observation.
        inputs_after: the canonical arguments after the call (a pytree), or None when they were compared equal.
        state_after: state that the call changed, by dotted name.
        aliases: pairs (result leaf, source) of results that share memory; source is `("input", i)`, `("state", name)`
            or `("result", j)`.
    """

    result: Any
    inputs_after: Any = None
    state_after: Mapping[str, Any] = attrs.field(factory=dict)
    aliases: frozenset[tuple[int, tuple[str, Any]]] = frozenset()


@frozen
class Sample:
    """One recorded call of a unit with what eager made of it.

    Attributes:
        call: the recorded call; its tensors are never handed out, only replicas of them.
        expected: what eager did.
        truth: the float64 run of the same call, or None where float64 cannot run.
        index: position among the recorded calls of the unit.
        count: how often a call of these sizes was seen.
    """

    call: Call
    expected: Observation
    truth: Observation | None = None
    index: int = 0
    count: int = 1


@valued
class Facts:
    """What eager runs of a unit showed, found by comparing values."""

    writes_inputs: bool = False
    writes_state: tuple[str, ...] = ()
    aliases: bool = False
    random: bool = False
    non_tensors: bool = False
    """Results hold leaves that are neither tensors nor None."""
    hooks_inside: bool = False
    tied: bool = False
    custom_autograd: bool = False
    tensor_kinds: frozenset[str] = frozenset()
    """Unusual kinds of tensors met: "sparse", "complex", "quantized", "subclass", "nested", "mkldnn"."""

    @property
    def needs(self) -> frozenset[Keeps]:
        """What a backend has to keep to be right on this unit."""
        pairs = {
            Keeps.INPUT_WRITES: self.writes_inputs,
            Keeps.STATE_WRITES: bool(self.writes_state),
            Keeps.ALIASES: self.aliases,
            Keeps.RANDOM: self.random,
            Keeps.NON_TENSORS: self.non_tensors,
        }
        return frozenset(keep for keep, needed in pairs.items() if needed)


@frozen
class Calls:
    """All that is known about the calls of one unit under one key.

    Attributes:
        key: the identity that the calls share.
        shapes: the sizes seen, moved axes as ranges.
        samples: a few recorded calls, the smallest and the largest among them.
        seen: how many calls were seen in one pass.
        facts: what eager runs of the samples showed.
        untunable: why this key stays eager (opaque argument, over the byte cap, ...); empty where it can be tuned.
    """

    key: CallKey
    shapes: Shapes
    samples: tuple[Sample, ...]
    seen: int
    facts: Facts
    untunable: str = ""


@frozen
class Unit:
    """One module that is tuned as one piece.

    Attributes:
        path: dotted path inside the user's object; `""` is the root.
        aliases: other paths of the same module.
        module: the live module. While tuning runs, its `forward` and its children's are the originals.
        forward: the original forward, safe to call from a built.
        depth: number of executed ancestors.
        parent: path of the executed parent with the smallest depth, None for a top unit.
        twin: fingerprint of the program, empty where unknown.
        twins: how many units of the cut have this program, itself among them; 0 where unknown or alone.
    """

    path: str
    aliases: tuple[str, ...] = ()
    module: nn.Module
    forward: Callable[..., Any]
    depth: int = 0
    parent: str | None = None
    twin: str = ""
    twins: int = 0
