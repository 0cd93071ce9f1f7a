"""The two kinds of frozen values: compared by identity, or by their fields."""

from __future__ import annotations

from typing import Any, TypeVar, dataclass_transform

import attrs

T = TypeVar("T")


@dataclass_transform(frozen_default=True, kw_only_default=True, eq_default=False, field_specifiers=(attrs.field,))
def frozen(cls: type[T]) -> type[T]:
    """A value that holds tensors, modules or callables: equal only to itself."""
    return attrs.frozen(cls, kw_only=True, eq=False)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(attrs.field,))
def valued(cls: type[T]) -> type[T]:
    """A plain value: equal and hashed by its fields."""
    return attrs.frozen(cls, kw_only=True)


def evolve(value: T, **fields: Any) -> T:
    """A copy of a frozen value with other fields."""
    return attrs.evolve(value, **fields)  # type: ignore[misc]  # the decorators above hide attrs from mypy
