"""The tools of exporting backends: refusals, traces, silence, forms on disk, prints."""

from __future__ import annotations

import functools
import json
import logging
import threading
import warnings
from typing import Any

import pytest
import torch
from flat_units import Fn, recorded
from torch import nn

import tt_core as tt
from tt_core import flat
from tt_core.errors import BuildRefusedError
from tt_core.values import Axis, Call, Calls, Facts, Shapes, Unit, evolve

T = torch.Tensor
ONES, ZEROS = torch.ones(4), torch.zeros(4)


def refused(unit: Unit, calls: Calls) -> None:
    """Asks both refusals."""
    flat.refuse_calls(calls)
    flat.refuse_graph(tt.flatten_unit(unit, calls).export(calls.samples[0], calls.shapes).program)


def refusal(module: nn.Module, *calls: Call, facts: Facts | None = None) -> str:
    unit, known = recorded(module, *calls, facts=facts)
    with pytest.raises(BuildRefusedError) as caught:
        refused(unit, known)
    return str(caught.value)


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (Facts(random=True), "it uses random numbers"),
        (Facts(writes_inputs=True), "it writes to its inputs"),
        (Facts(writes_state=("a", "b")), "it writes to its state (a, b)"),
        (Facts(tensor_kinds=frozenset({"sparse", "nested"})), "it works on nested, sparse tensors"),
    ],
)
def test_refused_by_facts(facts: Facts, words: str) -> None:
    """What eager runs showed is believed."""
    assert refusal(nn.Linear(2, 2), Call(torch.rand(1, 2)), facts=facts) == words


def test_refused_by_key() -> None:
    """Autocast and complex tensors are refused; training mode alone is not."""
    with torch.autocast("cpu", torch.bfloat16):
        assert refusal(nn.Linear(2, 2), Call(torch.rand(1, 2))) == "it runs under autocast"
    assert (
        refusal(Fn(lambda x: x * 2), Call(torch.ones(2, dtype=torch.complex64))) == "it takes torch.complex64 tensors"
    )
    unit, calls = recorded(nn.Linear(2, 2).train(), Call(torch.rand(1, 2)))
    assert calls.key.ambient.training
    refused(unit, calls)


@pytest.mark.parametrize(
    ("fn", "words"),
    [
        (lambda x: x + torch.rand(3), "it uses random numbers (aten.rand"),
        (lambda x: nn.functional.dropout(x, 0.5, training=True), "it uses random numbers (aten.dropout"),
        (lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)), "it has control flow inside (cond)"),
    ],
)
def test_refused_by_graph(fn: Any, words: str) -> None:
    """Random numbers and control flow inside a graph are named."""
    assert refusal(Fn(fn), Call(torch.rand(3))).startswith(words)


def test_a_switched_off_dropout_is_none() -> None:
    """Attention and dropout that drop nothing are no random numbers."""

    def fn(x: T) -> T:
        return nn.functional.dropout(nn.functional.scaled_dot_product_attention(x, x, x), 0.5, training=False)

    unit, calls = recorded(Fn(fn), Call(torch.rand(1, 2, 4)))
    flat.refuse_graph(tt.flatten_unit(unit, calls).export(calls.samples[0], calls.shapes).program)


def traced(fn: Any, *sizes: int, **options: Any) -> tuple[list[list[flat.Exported]], Shapes]:
    unit, calls = recorded(Fn(fn), *(Call(torch.rand(n, 3)) for n in sizes))
    return flat.traces(tt.flatten_unit(unit, calls), calls, **options), calls.shapes


def test_traces() -> None:
    """One program serves all sizes where it can, a batch of one as a second trace; an empty batch is left out."""
    groups, shapes = traced(lambda x: x.relu(), 4, 1, 0, 9)
    assert [len(group) for group in groups] == [2]
    assert flat.hull([one.covers(shapes) for one in groups[0]]).leaves == ((Axis(lo=1, hi=9, symbol="s0"), 3),)


def test_traces_of_a_branch() -> None:
    """A branch on one is a program of its own, and so is every trace that is wanted alone."""
    groups, _ = traced(lambda x: x * 2 if x.shape[0] > 1 else x * 3, 4, 1)
    assert [len(group) for group in groups] == [1, 1]
    groups, _ = traced(lambda x: x.relu(), 4, 1, alone=lambda program: True)
    assert [len(group) for group in groups] == [1, 1]


def test_too_many_traces() -> None:
    """More programs than a built may hold, and nothing but empty inputs, are refused."""

    def steps(x: T) -> T:
        for _ in range(x.shape[0] % 5):
            x = x + 1
        return x * 2

    with pytest.raises(BuildRefusedError, match="more than 3 programs"):
        traced(steps, 10, 11, 12, 13)
    unit, calls = recorded(Fn(lambda x: x * 2), Call(torch.rand(0, 3)))
    moving = evolve(calls, shapes=Shapes(leaves=((Axis(lo=0, hi=4, symbol="a"), 3),)))
    nothing = tt.flatten_unit(unit, calls)
    with pytest.raises(BuildRefusedError, match="all recorded inputs are empty"):
        flat.traces(nothing, moving)


def test_hull_keeps_equalities() -> None:
    """Axes equal in every part stay equal; axes equal in one part only do not; a part alone is itself."""
    one = Shapes(
        leaves=((Axis(lo=2, hi=8, symbol="a"), 5), (Axis(lo=2, hi=8, symbol="a"), Axis(lo=2, hi=8, symbol="a")))
    )
    two = Shapes(leaves=((1, 5), (1, 4)))
    found = flat.hull([one, two])
    (first, five), (second, third) = found.leaves
    assert (first, five) == (second, 5)
    assert (first.lo, first.hi, third.lo, third.hi) == (1, 8, 2, 8)
    assert first.symbol != third.symbol
    assert found.admit(((1, 5), (1, 4)))
    assert not found.admit(((3, 5), (4, 4)))
    assert flat.hull([one]) is one


def test_quiet(capfd: pytest.CaptureFixture[str]) -> None:
    """Prints, warnings and log lines of this thread are dropped, those of others are not, and levels come back."""
    own = logging.getLogger("tt_core_tests.exporter")
    own.setLevel(logging.INFO)
    with flat.quiet("tt_core_tests.exporter"):
        print("dropped")
        warnings.warn("dropped", UserWarning, stacklevel=1)
        assert own.level == logging.CRITICAL
        other = threading.Thread(target=lambda: print("kept"))
        other.start()
        other.join()
    print("after")
    assert own.level == logging.INFO
    assert capfd.readouterr() == ("kept\nafter\n", "")


@pytest.mark.parametrize("value", [None, True, 3, -0.1, float("inf"), "text", torch.bfloat16])
def test_constants(value: Any) -> None:
    """A constant comes back from JSON as itself, type included."""
    again = flat.read_constant(json.loads(json.dumps(flat.constant_form(value))))
    assert type(again) is type(value)
    assert again == value


def test_what_has_no_form() -> None:
    """Other kinds of constants, and names that are no dtypes, are refused."""
    with pytest.raises(BuildRefusedError, match="type complex"):
        flat.constant_form(1j)
    for name in ("nn", "load", "nothing"):
        with pytest.raises(BuildRefusedError, match="is no dtype"):
            flat.read_dtype(name)
    with pytest.raises((KeyError, TypeError, ValueError)):
        flat.read_constant(["eval", "1"])


def test_sizes() -> None:
    """Ranges come back from JSON; each combination of sizes is listed, but no more than asked for."""
    shapes = Shapes(
        leaves=((Axis(lo=1, hi=3, symbol="a"), 4), (Axis(lo=1, hi=3, symbol="a"), Axis(lo=0, hi=1, symbol="b")))
    )
    assert flat.read_sizes(json.loads(json.dumps(flat.sizes_form(shapes)))) == shapes
    sizes = list(flat.every_size(shapes, 6) or ())
    assert len(sizes) == len(set(sizes)) == 6
    assert all(shapes.admit(one) for one in sizes)
    assert flat.every_size(shapes, 5) is None


@pytest.mark.parametrize("sizes", [(), (1,), (7,), (2, 3, 5), (400,), (20, 30)])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_extremes(sizes: tuple[int, ...], dtype: torch.dtype) -> None:
    """The least and the greatest element, few and many, wherever they stand and whatever the strides are."""
    values = torch.randint(20, 100, sizes).to(dtype)
    values.view(-1)[-1], values.view(-1)[0] = 3, 200
    expected = (3, 200) if values.numel() > 1 else (200, 200)
    assert flat.extremes(values) == flat.extremes(values.t() if values.ndim == 2 else values) == expected
    least, greatest = flat.extremes(values)
    assert type(least) is type(greatest) is int


def test_extremes_of_wide_numbers() -> None:
    """Numbers that no float holds are told from their neighbours."""
    for count in (2, 500):
        values = torch.zeros(count, dtype=torch.int64)
        values[0], values[1] = -(2**62) - 1, 2**62 + 1
        assert flat.extremes(values) == (-(2**62) - 1, 2**62 + 1)


@pytest.mark.parametrize("sizes", [(0,), (3, 0)])
def test_extremes_of_nothing(sizes: tuple[int, ...]) -> None:
    """What is empty has none."""
    with pytest.raises(ValueError, match="empty"):
        flat.extremes(torch.zeros(sizes, dtype=torch.int64))


def test_synthetic() -> None:
    """A call of zeros has the key of the recorded one, its constants in their places."""
    module = Fn(lambda x, rest, scale: x * rest["y"] * scale)
    unit, calls = recorded(module, Call(torch.rand(2), {"y": torch.rand(2), "flag": True}, 0.5))
    constants = tt.flatten_unit(unit, calls).arguments.constants
    made = flat.synthetic(unit.forward, calls.key, calls.shapes, ((2,), (2,)), constants)
    x, rest, scale = made.samples[0].call.args
    assert (float(x.sum()), float(rest["y"].sum()), rest["flag"], scale) == (0.0, 0.0, True, 0.5)
    assert tt.flatten_unit(unit, made).inputs == tt.flatten_unit(unit, calls).inputs


def wrapped(fn: Any) -> Any:
    """A decorator that adds an argument, as transformers has them."""

    @functools.wraps(fn)
    def outer(self: Any, *args: Any, **kwargs: Any) -> Any:
        return fn(self, *args, flag=True, **kwargs)

    return outer


class Decorated(nn.Module):
    @wrapped
    def forward(self, x: T, /, y: T, scale: float = 2.0, flag: bool | None = None, *rest: T, **more: T) -> T:
        assert flag
        return x * y * scale + sum(rest) + sum(more.values())


@pytest.mark.parametrize("call", [Call(ONES, ONES), Call(ONES, y=ONES, scale=3.0, z=ONES)])
def test_synthetic_spells_sparingly(call: Call) -> None:
    """What has its default value is not spelled out, and the rest by keyword: a decorator that adds arguments goes on working."""
    unit, calls = recorded(Decorated(), call)
    recorded_flat = tt.flatten_unit(unit, calls)
    sizes = recorded_flat.sizes(calls.samples[0])
    made = flat.synthetic(unit.forward, calls.key, calls.shapes, sizes, recorded_flat.arguments.constants)
    again = tt.flatten_unit(unit, made)
    assert again.inputs == recorded_flat.inputs
    assert torch.equal(
        again.module(*recorded_flat.example(calls.samples[0]))[0], unit.forward(*call.args, **call.kwargs)
    )


def test_synthetic_with_more_positions() -> None:
    """Arguments of `*rest` keep their places."""
    unit, calls = recorded(Fn(lambda x, y, z: x - y * z), Call(ONES, ZEROS, ONES))
    made = flat.synthetic(unit.forward, calls.key, calls.shapes, ((4,),) * 3, ())
    assert len(made.samples[0].call.args) == 3


def exported(module: nn.Module) -> Any:
    unit, calls = recorded(module, Call(torch.ones(2, 4)))
    return tt.flatten_unit(unit, calls).export(calls.samples[0], calls.shapes).program


def test_program_prints() -> None:
    """Programs that differ in weights only have one print; another operator, number or constant tensor is another."""
    first = flat.program_print(exported(nn.Linear(4, 4)))
    assert first == flat.program_print(exported(nn.Linear(4, 4)))
    others = [nn.Linear(4, 5), nn.Linear(4, 4, bias=False), nn.Sequential(nn.Linear(4, 4), nn.ReLU())]
    others += [Fn(lambda x: x * 2), Fn(lambda x: x * 3)]
    others += [Fn(lambda x: x + ONES), Fn(lambda x: x + ZEROS)]
    assert len({first, *(flat.program_print(exported(one)) for one in others)}) == len(others) + 1


def test_weights_prints() -> None:
    """Equal values have one print, whatever their strides; a bit, a name, a dtype or a size makes another."""
    x = torch.rand(4, 6)
    same = flat.weights_print([("w", x)])
    assert flat.weights_print([("w", x.t().contiguous().t())]) == same
    other = x.clone()
    other[0, 0] = other[0, 0].nextafter(torch.tensor(9.0))
    prints = [[("w", other)], [("v", x)], [("w", x.reshape(6, 4))], [("w", x.bfloat16())], [("w", x.double())], []]
    assert len({same, *map(flat.weights_print, prints)}) == len(prints) + 1
    assert flat.weights_print([("e", torch.zeros(0)), ("s", torch.tensor(True))])


def test_versions() -> None:
    """A write to a parameter or buffer is seen; inference tensors have no versions, and are let be."""
    module = nn.BatchNorm1d(4)
    known = flat.Versions.of(module)
    assert known.unchanged
    assert set(known.tensors) == {"weight", "bias", "running_mean", "running_var", "num_batches_tracked"}
    with torch.no_grad():
        module.weight.mul_(1.0)
    assert not known.unchanged
    with torch.inference_mode():
        frozen = nn.Linear(2, 2)
    assert flat.version_of(frozen.weight) is None
    assert flat.Versions.of(frozen).unchanged


@pytest.mark.parametrize("form", [["int", "7"], ["bool", 1], ["str", 3]])
def test_a_constant_of_another_type_is_damage(form: Any) -> None:
    """What stands for a constant is of its type: nothing is made to fit."""
    with pytest.raises(TypeError, match="is not the type"):
        flat.read_constant(form)


def test_ranges_that_say_what_conditions_say() -> None:
    """Ranges may stand for conditions where both choose the same program for each size, and only if all can be tried."""
    covers = Shapes(leaves=((Axis(lo=1, hi=4, symbol="n"),),))
    one, more = Shapes(leaves=((1,),)), Shapes(leaves=((Axis(lo=2, hi=4, symbol="n"),),))

    def at_least(least: int) -> Any:
        return lambda sizes: sizes[0][0] >= least

    assert flat.ranges_say(covers, [(at_least(2), [more]), (at_least(1), [one])], 4)
    assert not flat.ranges_say(covers, [(at_least(3), [more]), (at_least(1), [one])], 4)
    assert not flat.ranges_say(covers, [(at_least(2), [more]), (at_least(1), [one])], 3)


@pytest.mark.parametrize(
    ("dumped", "covers", "says"),
    [
        ({"format": 1}, None, "sizes that it covered were not kept"),
        ({"format": 2}, Shapes(leaves=()), "format 2 is not the one of this version: 1"),
        ({}, Shapes(leaves=()), "format None"),
        ({"format": 1}, Shapes(leaves=()), r"damaged \(KeyError\)"),
    ],
)
def test_what_cannot_be_restored(dumped: Any, covers: Shapes | None, says: str) -> None:
    """Each thing that is wrong with what was dumped is a refusal with its sentence."""
    with pytest.raises(BuildRefusedError, match=says), flat.restoring(dumped, 1, covers):
        dumped["sizes"]


def test_a_refusal_while_restoring_keeps_its_words() -> None:
    """A reason of the backend's own is not called damage."""
    with pytest.raises(BuildRefusedError, match=r"^tune again$"), flat.restoring({"format": 1}, 1, Shapes(leaves=())):
        raise BuildRefusedError("tune again")
