"""Sizes that a built covers, and their intersection."""

from __future__ import annotations

from tt_core.values import Axis, Shapes, covers_of


def axis(lo: int, hi: int, symbol: str) -> Axis:
    return Axis(lo=lo, hi=hi, symbol=symbol)


def shapes(*leaves: tuple) -> Shapes:
    return Shapes(leaves=leaves)


def test_ranges_and_fixed_sizes_are_admitted():
    """A fixed size must be met, a range holds its ends."""
    covers = shapes((2, axis(4, 8, "s")))
    assert covers.admit([(2, 4)])
    assert covers.admit([(2, 8)])
    assert not covers.admit([(2, 9)])
    assert not covers.admit([(3, 4)])
    assert not covers.admit([(2,)])


def test_equal_symbols_must_be_equal():
    """Axes of one symbol must have one size in one call."""
    covers = shapes((axis(1, 9, "s"),), (axis(1, 9, "s"),))
    assert covers.admit([(3,), (3,)])
    assert not covers.admit([(3,), (4,)])


def test_intersection_narrows_ranges():
    """Ranges meet; a fixed size within a range stays fixed; what excludes each other is never met."""
    a = shapes((axis(1, 8, "x"), axis(1, 8, "y"), 3))
    b = shapes((axis(4, 16, "p"), 5, 4))
    met = covers_of([a, b])
    assert met.leaves[0][0] == axis(4, 8, "s0")
    assert met.leaves[0][1] == 5
    assert not met.admit([(4, 5, 3)])
    assert not met.admit([(4, 5, 4)])


def test_intersection_joins_equalities_of_both_sides():
    """Axes are equal in the intersection where either side says so, transitively."""
    a = shapes((axis(1, 9, "x"),), (axis(1, 9, "x"),), (axis(1, 9, "z"),))
    b = shapes((axis(1, 9, "p"),), (axis(1, 9, "q"),), (axis(1, 9, "q"),))
    met = covers_of([a, b])
    assert met.admit([(3,), (3,), (3,)])
    assert not met.admit([(3,), (3,), (4,)])
    assert not met.admit([(4,), (3,), (3,)])


def test_a_fixed_member_fixes_its_class():
    """When one axis of an equality is fixed by the other side, all of it is."""
    a = shapes((axis(1, 9, "x"),), (axis(1, 9, "x"),))
    b = shapes((5,), (axis(1, 9, "p"),))
    met = covers_of([a, b])
    assert met.admit([(5,), (5,)])
    assert not met.admit([(5,), (6,)])


def test_none_covers_everything():
    """None is the neutral claim."""
    only = shapes((1,))
    assert covers_of([None, only, None]) == only
    assert covers_of([None]) is None
