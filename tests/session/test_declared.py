"""`dynamic_shapes=`: axes of the root's inputs, declared in torch.export's own form."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch.export import Dim

import tt_core as tt
from tt_core.session.declared import declare
from tt_core.testing.fakes import FakeBackend, FakeLayer
from tt_core.values import Axis

BATCH = Dim("batch", min=2, max=16)


class Masked(nn.Module):
    """Two tensors, one of them inside a dict, and a flag."""

    def __init__(self, bench=None):
        super().__init__()
        self.layer = FakeLayer(bench)

    def forward(self, x, extra=None, *rest, flag=True):
        y = self.layer(x)
        return y if extra is None else y + extra["mask"]


def test_a_declared_axis_widens_what_the_root_is_built_for(stack, data, auto, bench):
    """One sample of four rows: built for 2 to 16, and calls within them are served."""
    seen = []
    fast = FakeBackend(bench, during=lambda unit, calls: seen.append((unit.path, calls.shapes.leaves)))
    result = auto(stack, [data[0]], fast, dynamic_shapes={"x": {0: BATCH}}, max_depth=0)
    assert seen == [("", ((Axis(lo=2, hi=16, symbol="d_batch"), 4),))]
    tt.stats(stack, hits=True)
    with torch.no_grad():
        stack(torch.zeros(16, 4))
        with pytest.warns(tt.FallbackWarning, match="2..16"):
            stack(torch.zeros(17, 4))
    found = tt.stats(stack)[""]
    assert (found.hits, found.fell) == (1, 1)
    assert result.plan.choices[0].covers.leaves == ((Axis(lo=2, hi=16, symbol="d_batch"), 4),)


def test_without_a_declaration_one_shape_is_said_loudly(stack, data, auto, tune, bench):
    """One shape seen: the note says that others run eager and how to give more; a declaration takes it away."""
    for call in (auto, tune):
        plain = call(stack, [data[0]], FakeBackend(bench))
        assert any("OTHER SHAPES RUN EAGER" in note and "dynamic_shapes=" in note for note in plain.notes)
        declared = call(stack, [data[0]], FakeBackend(bench), dynamic_shapes={"x": {0: BATCH}})
        assert not any("OTHER SHAPES" in note for note in declared.notes)
        assert any("declared sizes that no sample has are not checked: x, axis 0: 2 to 16" in n for n in declared.notes)
    assert "OTHER SHAPES RUN EAGER" in " ".join(str(plain).split())


def test_inner_units_keep_what_was_seen(stack, data, auto, bench):
    """Declared are the root's inputs: what flows inside is only known from the samples."""
    seen = []
    fast = FakeBackend(bench, during=lambda unit, calls: seen.append((unit.path, calls.shapes.leaves)))
    auto(stack, [data[0]], fast, dynamic_shapes={"x": {0: BATCH}}, min_depth=1, max_depth=1)
    assert seen[0] == ("stem", ((2, 4),))


def test_samples_outside_are_an_error_before_any_work(stack, data, auto, bench, same):
    """The message has sample, axis and bounds; nothing was built."""
    check, fast = same(stack), FakeBackend(bench)
    with pytest.raises(tt.UsageError, match="sample 1 has size 32 at x, axis 0, declared were 2 to 16"):
        auto(stack, [data[0], torch.zeros(32, 4)], fast, dynamic_shapes={"x": {0: BATCH}})
    assert fast.log == []
    check()


def test_samples_outside_are_an_error_with_an_inference_function(stack, auto, bench):
    """The root's calls are known once they were recorded: still an error."""
    with pytest.raises(tt.UsageError, match="a recorded call has size 32 at x, axis 0"):
        auto(
            stack,
            [("label", torch.zeros(32, 4))],
            FakeBackend(bench),
            inference_function=lambda model, sample: model(sample[1]),
            dynamic_shapes={"x": {0: BATCH}},
        )


@pytest.mark.parametrize(
    ("given", "leaves"),
    [
        ({"x": {0: BATCH}}, ((Axis(lo=2, hi=16, symbol="d_batch"), 4), (4, 4))),
        ({"x": (BATCH, None)}, ((Axis(lo=2, hi=16, symbol="d_batch"), 4), (4, 4))),
        (({0: BATCH}, None), ((Axis(lo=2, hi=16, symbol="d_batch"), 4), (4, 4))),
        (
            {"x": {0: BATCH}, "extra": {"mask": {0: BATCH}}},
            ((Axis(lo=2, hi=16, symbol="d_batch"), 4), (Axis(lo=2, hi=16, symbol="d_batch"), 4)),
        ),
        ({"x": {0: Dim("rows")}}, ((Axis(lo=1, hi=2**31 - 1, symbol="d_rows"), 4), (4, 4))),
        ({"x": {0: Dim.DYNAMIC(min=2, max=8)}}, ((Axis(lo=2, hi=8, symbol="d_0_0"), 4), (4, 4))),
        ({"x": {0: Dim.AUTO}}, ((Axis(lo=1, hi=2**31 - 1, symbol="d_0_0"), 4), (4, 4))),
        ({"x": {0: 4, 1: Dim.STATIC}, "extra": None, "flag": None}, ((4, 4), (4, 4))),
        ({"extra": {"mask": [BATCH, None]}}, ((4, 4), (Axis(lo=2, hi=16, symbol="d_batch"), 4))),
    ],
    ids=["dict", "tuple", "by position", "nested", "unbounded", "hint", "auto", "static", "list"],
)
def test_the_forms_of_torch_export(make, tune, bench, given, leaves):
    """By name or position, per axis, nested as the arguments are; Dims, hints, numbers, None."""
    seen = []
    fast = FakeBackend(bench, during=lambda unit, calls: seen.append(calls.shapes.leaves))
    call = tt.Call(torch.zeros(4, 4), {"mask": torch.zeros(4, 4)})
    tune(make(Masked), [call], fast, dynamic_shapes=given)
    assert seen == [leaves]


def test_axes_that_moved_together_are_declared_together(make, tune, bench):
    """The mask's rows were always those of `x`: a declaration of one is one of both."""
    seen = []
    fast = FakeBackend(bench, during=lambda unit, calls: seen.append(calls.shapes.leaves))
    calls = [tt.Call(torch.zeros(rows, 4), {"mask": torch.zeros(rows, 4)}) for rows in (2, 5)]
    tune(make(Masked), calls, fast, dynamic_shapes={"x": {0: BATCH}})
    axis = Axis(lo=2, hi=16, symbol="d_batch")
    assert seen == [((axis, 4), (axis, 4))]


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        ({"y": {0: BATCH}}, tt.UsageError, "forward has no parameter 'y'; it has x, extra, rest, flag"),
        ({"x": {2: BATCH}}, tt.UsageError, "x has 2 axes, there is no axis 2"),
        ({"x": (BATCH,)}, tt.UsageError, "x is a tensor of 2 axes"),
        ({"x": {0: 2 * BATCH}}, tt.UsageError, r"'2\*batch' is derived from another Dim"),
        ({"x": {0: "batch"}}, tt.KindError, "'batch' is neither a torch.export.Dim nor a size nor None"),
        ({"x": {0: 5}}, tt.UsageError, "sample 0 has size 4 at x, axis 0, declared were 5 to 5"),
        ({"x": {0: BATCH, 1: BATCH}}, None, ""),
        ({"x": {0: BATCH}, "extra": {"mask": {1: Dim("four", max=3)}}}, tt.UsageError, "declared were 1 to 3"),
        ({"extra": {"bias": {0: BATCH}}}, tt.UsageError, "extra has no 'bias'; it has 'mask'"),
        ({"extra": ({0: BATCH},)}, tt.UsageError, "does not have the structure of a dict"),
        ({"flag": {0: BATCH}}, tt.UsageError, "does not have the structure of a bool"),
        ([None] * 5, tt.UsageError, "dynamic_shapes has 5 entries, forward 4 parameters"),
        ("batch", tt.KindError, "a dict by parameter name is needed"),
    ],
)
def test_what_does_not_fit_is_an_error(make, tune, bench, given, error, says):
    """Unknown names, axes and structures, before anything is built."""
    fast = FakeBackend(bench)
    run = lambda: tune(  # noqa: E731
        make(Masked), [tt.Call(torch.zeros(4, 4), {"mask": torch.zeros(4, 4)})], fast, dynamic_shapes=given
    )
    if error is None:
        assert run().changed
    else:
        with pytest.raises(error, match=says):
            run()
        assert fast.log == []


def test_axes_of_one_dim_must_be_equal(make, tune, bench):
    """Two axes declared by one Dim differ in a sample: the message has both."""
    with pytest.raises(tt.UsageError, match="sample 0 has size 2 at extra\\['mask'\\], axis 0 and 4 at x, axis 0"):
        tune(
            make(Masked),
            [tt.Call(torch.zeros(4, 4), {"mask": torch.zeros(2, 4)})],
            dynamic_shapes={"x": {0: BATCH}, "extra": {"mask": {0: BATCH}}},
        )


def test_a_pipeline_has_no_inputs_to_declare(bench):
    """Declared are the inputs of a module's forward."""
    with pytest.raises(tt.UsageError, match="is no module"):
        declare({"x": {0: BATCH}}, [FakeLayer(bench)])
    assert declare(None, [FakeLayer(bench)]) is None


def test_keyword_arguments_of_any_name(bench, make, tune):
    """Behind `**kwargs` the declaration names the keywords themselves, as for torch.export."""

    class Free(nn.Module):
        def __init__(self, bench):
            super().__init__()
            self.layer = FakeLayer(bench)

        def forward(self, *args, **kwargs):
            return self.layer(args[0]) + kwargs["mask"]

    seen = []
    fast = FakeBackend(bench, during=lambda unit, calls: seen.append(calls.shapes.leaves))
    with warnings.catch_warnings(action="error"):
        tune(
            make(Free),
            [tt.Call(torch.zeros(4, 4), mask=torch.zeros(4, 4))],
            fast,
            dynamic_shapes={"args": ({0: BATCH},), "mask": {0: BATCH}},
        )
    axis = Axis(lo=2, hi=16, symbol="d_batch")
    assert seen == [((axis, 4), (axis, 4))]
