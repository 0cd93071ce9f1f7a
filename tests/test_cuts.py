"""Cuts: every executed unit at a depth, every shallower leaf, none inside another."""

from __future__ import annotations

import pytest

from tt_core.cuts import cut_at, cut_of, cuts
from tt_core.errors import UsageError
from tt_core.survey import Inspection, Seen


def _seen(path, depth, *parents, children=False, **fields):
    parent = parents[0] if parents else None
    return Seen(path=path, depth=depth, parent=parent, parents=parents, children_executed=children, **fields)


def _tree(*modules):
    return Inspection(modules=modules)


PLAIN = _tree(
    _seen("", 0, children=True),
    _seen("stem", 1, ""),
    _seen("body", 1, "", children=True),
    _seen("body.0", 2, "body"),
    _seen("body.1", 2, "body", children=True),
    _seen("body.1.lin", 3, "body.1"),
)


def test_a_cut_holds_the_units_at_its_depth_and_shallower_leaves():
    """Depth 2 keeps the leaf of depth 1; below the deepest unit the cut is all leaves."""
    assert cut_at(PLAIN, 0).units == ("",)
    assert cut_at(PLAIN, 1).units == ("stem", "body")
    assert cut_at(PLAIN, 2).units == ("stem", "body.0", "body.1")
    assert cut_at(PLAIN, 3).units == ("stem", "body.0", "body.1.lin")
    assert cut_at(PLAIN, 9).units == cut_at(PLAIN, 3).units
    assert PLAIN.cut(1) == cut_at(PLAIN, 1)


def test_equal_cuts_are_merged_with_all_their_depths():
    """Depths with the same units are one cut."""
    assert [(cut.depths, len(cut.units)) for cut in cuts(PLAIN, 0, 5)] == [
        ((0,), 1),
        ((1,), 2),
        ((2,), 3),
        ((3, 4, 5), 3),
    ]
    leaf = _tree(_seen("", 0))
    assert [(cut.depths, cut.units) for cut in cuts(leaf, 0, 2)] == [((0, 1, 2), ("",))]


def test_no_unit_is_inside_another():
    """A shared module that also runs inside another unit of the cut gives way to the outer one, however deep it is."""
    tree = _tree(
        _seen("", 0, children=True),
        _seen("shared", 1, "", "block.inner"),
        _seen("block", 1, "", children=True),
        _seen("block.inner", 2, "block", children=True),
    )
    assert cut_at(tree, 1).units == ("block",)
    assert cut_at(tree, 2).units == ("block.inner",)


def test_of_two_modules_inside_each_other_the_first_stays():
    """Modules that call each other at different times do not make both vanish."""
    tree = _tree(
        _seen("", 0, children=True), _seen("a", 1, "", "b", children=True), _seen("b", 1, "", "a", children=True)
    )
    assert cut_at(tree, 1).units == ("a",)


def test_recursive_modules_are_in_no_cut():
    """A module that calls itself is left out; what runs inside it is a unit of a deeper cut."""
    tree = _tree(
        _seen("", 0, children=True),
        _seen("r", 1, "", "r", children=True, recursive=True),
        _seen("r.lin", 2, "r"),
        _seen("head", 1, ""),
    )
    assert cut_at(tree, 1).units == ("head",)
    assert cut_at(tree, 2).units == ("r.lin", "head")
    assert cut_at(_tree(_seen("", 0, "", recursive=True)), 0).units == ()


def test_objects_with_several_roots_are_cut_at_depth_zero():
    """A pipeline of two models has both in the cut at depth 0."""
    assert cut_at(_tree(_seen("a", 0), _seen("b", 0, children=True), _seen("b.0", 1, "b")), 0).units == ("a", "b")


def test_a_cut_of_named_units_is_checked():
    """Aliases are known; unknown, nested, recursive and missing names are errors that help."""
    tree = _tree(
        _seen("", 0, children=True),
        _seen("a", 1, "", aliases=("twin",), children=True),
        _seen("a.0", 2, "a"),
        _seen("r", 1, "", recursive=True),
    )
    assert cut_of(tree, ["twin"]).units == ("a",)
    for paths, text in [
        (["nope"], "no module 'nope' ran on the dataset; some that did: '', 'twin', 'a'"),
        (["a.0", ""], "'a.0' runs inside ''"),
        (["r"], "calls itself"),
        ([], "give a list of paths"),
        ("a", "give a list of paths"),
    ]:
        with pytest.raises(UsageError, match=text):
            cut_of(tree, paths)
    with pytest.raises(UsageError, match="depth -1"):
        cut_at(tree, -1)
