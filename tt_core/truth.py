"""The truth that results are judged by: the unit run once more in float64."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from typing import Any

import attrs
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from tt_core import trees
from tt_core.callkey import canonical
from tt_core.contain import Caught, attempt
from tt_core.state import Snapshot, kept, seed
from tt_core.state.rng import moved, states
from tt_core.values import Call, Observation, Unit

SEED = 0
_WIDER = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex32: torch.complex128,
    torch.complex64: torch.complex128,
}
_HALVES = {torch.float16, torch.bfloat16}
_PLAUSIBLE = 1e-2
"""Farther from float64 (relative L2) than this, eager did something else than round: no truth for it."""
_PLAUSIBLE_HALF = 1e-1
_NARROWING = {"float", "half", "bfloat16"}
_NEGLIGIBLE = 1e-6
"""Root mean square up to which a difference is rounding even where the truth is nearly zero."""
_NO_WRITES = {"__invert__", "__int__", "__index__", "__iter__", "__instancecheck__", "__init__"}
_MIN_NUMBERS = 8


def truth_of(unit: Unit, call: Call, expected: Observation) -> Observation | None:
    """What the unit would give in exact arithmetic, nearly: a float64 run through `torch.func.functional_call`.

    Parameters, buffers and floating point inputs are float64 copies (tied ones stay tied, views stay views), so the
    module is not changed; what its forward writes elsewhere is put back. Where forward mixes in float32 of its own, a
    second run makes every float32 on the way a float64; where the device has no float64, a third runs on the CPU.

    Args:
        unit: its `forward` runs, without hooks around it.
        call: the recorded call; its tensors are only read.
        expected: eager's observation of the same call.

    Returns:
        An observation of the structure of `expected` with float64 and complex128 tensors, on the unit's device or on the
        CPU. None where there is no truth: float64 cannot run, random numbers were drawn, the structure or a shape
        is another one, a number is not finite where eager's is, or eager is farther off than rounding explains
        (a branch or an index went the other way).
    """
    where = f"float64 run of {unit.path!r}"
    homes = attempt(lambda: _homes(unit, call), where=where)
    for home in () if isinstance(homes, Caught) else homes:
        for widen in (False, True):
            run = functools.partial(_run, unit, call, expected, home, widen=widen)
            found = attempt(run, where=where)
            if found is _Random:
                return None
            if isinstance(found, Observation):
                return found
    return None


def _homes(unit: Unit, call: Call) -> list[torch.device | None]:
    """Where to run: where the tensors are (None), and on the CPU if that device may lack float64."""
    tensors = (*_state(unit.module).values(), *trees.tensors((call.args, call.kwargs)))
    known = all(tensor.device.type in {"cpu", "cuda"} for tensor in tensors)
    return [None] if known else [None, torch.device("cpu")]


class _Random:
    """Answer of a run that drew random numbers: float64 draws others."""


def _run(
    unit: Unit, call: Call, expected: Observation, home: torch.device | None, *, widen: bool
) -> Observation | type[_Random] | None:
    """One float64 run; None when what came out is no truth for `expected`."""
    with torch.inference_mode(False), torch.no_grad(), kept(unit.module) as before_run:
        copies = _Copies(home=home)
        weights = {name: copies.of(tensor) for name, tensor in _state(unit.module).items()}
        args, kwargs = trees.mapped(copies.of, (call.args, call.kwargs))
        runner = _Runner(unit, lambda: _written(before_run, expected))
        seed(SEED)
        before = states()
        with _Widened() if widen else torch.no_grad():
            result = torch.func.functional_call(runner, weights, args, kwargs)
        if moved(before):
            return _Random
        inputs = None
        if expected.inputs_after is not None:
            inputs = canonical(inspect.signature(unit.forward), Call(*args, **kwargs))
        exact = Observation(result=_exact(result), inputs_after=_exact(inputs), state_after=_exact(runner.after))
        return exact if _plausible(unit, call, expected, exact) else None


class _Runner(nn.Module):
    """Runs the unit's forward as its own, so that `functional_call` swaps the weights and no hook of the unit runs."""

    def __init__(self, unit: Unit, written: Callable[[], dict[str, Any]]) -> None:
        super().__init__()
        self.unit = unit.module
        self._call: Callable[..., Any] = unit.forward
        self._written = written
        self.after: dict[str, Any] = {}

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The unit's result; what it wrote is read before the weights are swapped back."""
        result = self._call(*args, **kwargs)
        self.after = self._written()
        return result


def _written(before: Snapshot, expected: Observation) -> dict[str, Any]:
    """The state that eager changed, as it is now."""
    if not expected.state_after:
        return {}
    return {name: value for name, value in before.changed().items() if name in expected.state_after}


def _state(module: nn.Module) -> dict[str, torch.Tensor]:
    """All parameters and buffers by name below `_Runner`, tied ones under each of their names."""
    named = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    return {f"unit.{name}": tensor for name, tensor in named}


@attrs.define(kw_only=True)
class _Copies:
    """Copies with floating point numbers as float64; one copy a tensor, and one a storage.

    `held` keeps the originals alive: an id and an address are unique only as long as they live.
    """

    home: torch.device | None
    made: dict[Any, torch.Tensor] = attrs.field(factory=dict)
    held: list[torch.Tensor] = attrs.field(factory=list)

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The copy of `tensor`, detached, on `home` or where it is."""
        if id(tensor) not in self.made:
            self.held.append(tensor)
            self.made[id(tensor)] = self._copy(tensor.detach())
        return self.made[id(tensor)]

    def _copy(self, source: torch.Tensor) -> torch.Tensor:
        to = _WIDER.get(source.dtype, source.dtype)
        home = source.device if self.home is None else self.home
        if type(source) is not torch.Tensor or source.layout != torch.strided or _odd(source):
            return source.to(device=home, dtype=to, copy=True)
        storage = source.untyped_storage()
        if storage.nbytes() == 0 or storage.nbytes() > 2 * source.numel() * source.element_size():
            return source.to(device=home, dtype=to, copy=True)
        place = (storage.data_ptr(), str(source.device), source.dtype)
        if place not in self.made:
            flat = torch.empty(0, dtype=source.dtype, device=source.device).set_(storage)
            self.made[place] = flat.to(device=home, dtype=to, copy=True)
        return self.made[place].as_strided(source.size(), source.stride(), source.storage_offset())


def _odd(tensor: torch.Tensor) -> bool:
    return tensor.is_quantized or tensor.is_nested or tensor.is_conj() or tensor.is_neg() or tensor.is_meta


def _exact(tree: Any) -> Any:
    """`tree` with its floating point tensors in float64: a forward may convert its result."""
    return trees.mapped(lambda tensor: tensor.detach().to(_WIDER.get(tensor.dtype, tensor.dtype)), tree)


class _Widened(TorchFunctionMode):
    """Makes every float32 (and half) on the way a float64: tensors that were not registered, dtypes, conversions."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name in _NARROWING and args and isinstance(args[0], torch.Tensor):
            return args[0].double()
        if name == "__get__":
            return func(*args, **(kwargs or {}))
        if _writes(name):
            return func(*args[:1], *_widened(args[1:]), **_widened(kwargs or {}))
        return _widened(func(*_widened(args), **_widened(kwargs or {})))


def _writes(name: str) -> bool:
    """Whether a function of this name writes to its first argument, which must then stay the very tensor."""
    if name.endswith("__"):
        return name in {"__setitem__", "__set__"} or (name.startswith("__i") and name not in _NO_WRITES)
    return name.endswith("_")


def _widened(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(_WIDER[value.dtype]) if value.dtype in _WIDER else value
    if isinstance(value, torch.dtype):
        return _WIDER.get(value, value)
    if type(value) in {tuple, list}:
        return type(value)(_widened(item) for item in value)
    return {key: _widened(item) for key, item in value.items()} if type(value) is dict else value


def _plausible(unit: Unit, call: Call, expected: Observation, truth: Observation) -> bool:
    """Whether eager differs from float64 by no more than rounding, in the same structure."""
    left, spec = trees.flatten(expected.result)
    right, other = trees.flatten(truth.result)
    if spec != other:
        return False
    given = (*_state(unit.module).values(), *trees.tensors((call.args, call.kwargs, expected.result)))
    limit = _PLAUSIBLE_HALF if any(tensor.dtype in _HALVES for tensor in given) else _PLAUSIBLE
    return all(_near(a, b, limit) for a, b in zip(left, right, strict=True) if isinstance(a, torch.Tensor))


def _near(want: torch.Tensor, true: Any, limit: float) -> bool:
    """Whether one leaf is within rounding of float64's; integers may differ, as a tie may go the other way."""
    if not isinstance(true, torch.Tensor) or want.is_nested != true.is_nested:
        return False
    if want.is_nested or want.is_quantized or want.is_meta:
        return True
    if want.shape != true.shape or _WIDER.get(want.dtype, want.dtype) != true.dtype:
        return False
    return not (want.is_floating_point() or want.is_complex()) or _rounded(want, true, limit)


def _rounded(want: torch.Tensor, true: torch.Tensor, limit: float) -> bool:
    a, b = (side.detach().to_dense() if side.layout != torch.strided else side.detach() for side in (want, true))
    a = a.to(b.device)
    finite = torch.isfinite(a)
    if bool((finite & ~torch.isfinite(b)).any()):
        return False
    count = int(finite.sum())
    if count < _MIN_NUMBERS:
        return True
    if a.is_floating_point():  # finfo.min as a mask is another number in float64
        b = b.clamp(torch.finfo(a.dtype).min, torch.finfo(a.dtype).max)
    gap = float(torch.where(finite, a.to(b.dtype) - b, 0).abs().norm())
    norm = float(torch.where(finite, b, 0).abs().norm())
    return gap <= max(limit * norm, _NEGLIGIBLE * math.sqrt(count))
