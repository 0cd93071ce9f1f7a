"""Real traffic as a dataset: the calls that an object gets while a block runs."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import nn

from tt_core import samples, state, trees
from tt_core.errors import UsageError
from tt_core.values import Call


class Recording(list[Call]):
    """Recorded calls, usable as a dataset.

    Attributes:
        inference_function: how a sample is run: None where the object itself is called; for an object that holds
            several modules, a function that calls the recorded one.
        missed: calls beyond the limit, which were not recorded.
    """

    def __init__(self) -> None:
        super().__init__()
        self.inference_function: Callable[[Any, Any], Any] | None = None
        self.missed = 0


@contextlib.contextmanager
def record(obj: Any, *, max_calls: int = 256) -> Iterator[Recording]:
    """Notes what `obj` is called with while the block runs; copies, and nothing of the object is changed.

        with tt.record(model) as calls:
            serve(model)
        tt.auto_tune(model, calls, inference_function=calls.inference_function)

    Args:
        obj: a module, or an object that holds some. The outermost modules of such an object are watched, and each
            sample calls one of them.
        max_calls: how many calls are recorded at most.

    Raises:
        UsageError: no module inside, or `max_calls` below 1.
    """
    if max_calls < 1:
        raise UsageError(f"max_calls={max_calls}: at least one call is needed")
    samples.refuse(obj)
    calls, outer = Recording(), _outermost(obj)
    if not isinstance(obj, nn.Module):
        calls.inference_function = functools.partial(_replay, outer)
    spies = [(module, _Spy(calls, path, max_calls, named=obj is not module)) for path, module in outer.items()]
    with state.patched(spies):
        yield calls


def _outermost(obj: Any) -> dict[str, nn.Module]:
    if isinstance(obj, nn.Module):
        return {"": obj}
    found = {one.path: one.module for one in state.find(obj)}
    inner = {id(one) for module in found.values() for one in module.modules() if one is not module}
    return {path: module for path, module in found.items() if id(module) not in inner}


class _Spy:
    """Wraps the forward of one module."""

    def __init__(self, calls: Recording, path: str, limit: int, *, named: bool) -> None:
        self._calls, self._path, self._limit, self._named = calls, path, limit, named

    def __call__(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(forward)
        def recorded(*args: Any, **kwargs: Any) -> Any:
            self._note(args, kwargs)
            return forward(*args, **kwargs)

        return recorded

    def _note(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if len(self._calls) >= self._limit:
            self._calls.missed += 1
            return
        args, kwargs = trees.replica((args, kwargs))
        self._calls.append(Call(self._path, args, kwargs) if self._named else Call(*args, **kwargs))


def _replay(modules: Mapping[str, nn.Module], _: Any, sample: Call) -> Any:
    """Runs the recorded call of one of the object's modules."""
    path, args, kwargs = sample.args
    return modules[path](*args, **kwargs)
