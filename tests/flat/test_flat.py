"""A unit as a function from tensors to tensors: binding, results, export."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

import pytest
import torch
from flat_units import Fn, recorded
from torch import nn

from tt_core.errors import BuildRefusedError
from tt_core.flat import Exported, Flat, flatten_unit
from tt_core.values import Axis, Call, Facts, Shapes

T = torch.Tensor


def flat_of(module: nn.Module, *calls: Call) -> Flat:
    return flatten_unit(*recorded(module, *calls))


def exported(module: nn.Module, *calls: Call) -> tuple[Exported, Shapes]:
    unit, known = recorded(module, *calls)
    return flatten_unit(unit, known).export(known.samples[0], known.shapes), known.shapes


class Wide(nn.Module):
    """Every kind of parameter."""

    def forward(
        self, x: T, /, y: T, scale: float = 2.0, *rest: T, flag: bool = True, mask: T | None = None, **more: Any
    ) -> T:
        out = x * scale + (y if flag else -y)
        for tensor in (*rest, *more.values()):
            out = out + tensor
        return out if mask is None else out * mask


def test_pack_binds_as_python_does() -> None:
    """Every spelling of a call gives the same tensors in key order."""
    a, b, c, d = (torch.full((2,), float(i)) for i in range(4))
    flat = flat_of(Wide(), Call(a, b, 3.0, c, mask=d))
    assert flat.inputs == ("x", "y", "rest[0]", "mask")
    assert all(p is q for p, q in zip(flat.pack(a, b, 3.0, c, mask=d), (a, b, c, d), strict=True))
    flat = flat_of(Wide(), Call(a, b, mask=d, extra=c))
    assert flat.inputs == ("x", "y", "mask", "more['extra']")
    for packed in (
        flat.pack(a, b, extra=c, mask=d),
        flat.pack(a, mask=d, extra=c, y=b),
        flat.pack(a, b, 2.0, flag=True, mask=d, extra=c),
    ):
        assert all(p is q for p, q in zip(packed, (a, b, d, c), strict=True))


def test_pack_refuses_what_the_signature_refuses() -> None:
    """A call that the unit would not take raises the error that Python raises for it."""
    flat = flat_of(Wide(), Call(torch.ones(2), torch.ones(2)))
    with pytest.raises(TypeError):
        flat.pack(torch.ones(2))
    with pytest.raises(TypeError):
        flat.pack(x=torch.ones(2), y=torch.ones(2))


def test_module_gives_the_units_answer() -> None:
    """The flat module with constants bound computes what the unit computes."""
    a, b, c, d = (torch.rand(2) for _ in range(4))
    module = Wide()
    call = Call(a, b, 0.5, c, flag=False, mask=d, extra=a)
    flat = flat_of(module, call)
    (result,) = flat.module(*flat.pack(*call.args, **call.kwargs))
    assert torch.equal(result, module(*call.args, **call.kwargs))


class Defaults(nn.Module):
    """Tells an argument that was given from one that was not."""

    def forward(self, x: T, **kwargs: Any) -> T:
        return x * (3 if "hint" in kwargs else 2)


def test_only_given_arguments_are_passed() -> None:
    """Forward is called with what the recorded call spelled out, not with all defaults spelled out."""
    x = torch.ones(2)
    assert torch.equal(flat_of(Defaults(), Call(x)).module(x)[0], x * 2)
    assert torch.equal(flat_of(Defaults(), Call(x, hint=None)).module(x)[0], x * 3)


Point = collections.namedtuple("Point", ["a", "b"])  # noqa: PYI024  an untyped one on purpose


@dataclasses.dataclass
class Pair:
    left: T
    right: Any
    note: str = "n"


def test_nested_arguments() -> None:
    """Tensors inside dictionaries, lists, named tuples and dataclasses are found."""
    tensors = [torch.rand(2) for _ in range(5)]
    batch = {"m": tensors[0], 3: [tensors[1], None]}
    args = (batch, Point(tensors[2], 1), Pair(tensors[3], tensors[4]))
    flat = flat_of(
        Fn(lambda batch, point, pair: batch["m"] + batch[3][0] + point.a + pair.left * pair.right), Call(*args)
    )
    packed = flat.pack(*args)
    assert all(p is q for p, q in zip(packed, tensors, strict=True))
    assert torch.equal(flat.module(*packed)[0], tensors[0] + tensors[1] + tensors[2] + tensors[3] * tensors[4])


@pytest.mark.parametrize(
    "make",
    [
        lambda a, b: a,
        lambda a, b: (a, b),
        lambda a, b: [a, None, b, "tag", 3, True, 2.5],
        lambda a, b: {"z": a, "a": {"n": [b, ()]}},
        Point,
        lambda a, b: Pair(a, [b], "seen"),
        lambda a, b: collections.OrderedDict(q=a, p=(b, torch.float32, 1j)),
        lambda a, b: (a, [], {}, ((),), b),
    ],
)
def test_result_containers(make: Any) -> None:
    """The result has the recorded container types, orders and values, and fresh containers each time."""
    flat = flat_of(Fn(lambda x: make(x * 2, x + 1)), Call(torch.rand(2)))
    x = torch.rand(2)
    tensors = flat.module(x)
    result, again, expected = flat.unpack(tensors, (x,)), flat.unpack(tensors, (x,)), make(x * 2, x + 1)
    assert type(result) is type(expected)
    assert repr(result) == repr(expected)
    if isinstance(result, (list, dict)):
        assert result is not again


def test_model_output() -> None:
    """transformers' outputs come back equal to ones that were made by their own class, absent fields included."""
    from transformers.modeling_outputs import BaseModelOutputWithPooling as Output

    def forward(x: T) -> Output:
        return Output(last_hidden_state=x * 2, pooler_output=x + 1)

    flat = flat_of(Fn(forward), Call(torch.rand(2)))
    x = torch.rand(2)
    result, expected = flat.unpack(flat.module(x), (x,)), forward(x)
    assert type(result) is Output
    assert list(result) == list(expected)
    assert vars(result).keys() == vars(expected).keys()
    assert result.hidden_states is None
    assert result[0] is result.last_hidden_state is result["last_hidden_state"]
    assert torch.equal(result.to_tuple()[1], x + 1)


def test_model_output_with_more_inside() -> None:
    """An output class that holds a tuple of tensors is rebuilt too."""
    from transformers.modeling_outputs import BaseModelOutput as Output

    def forward(x: T) -> Output:
        return Output(last_hidden_state=x * 2, hidden_states=(x + 1, x + 2))

    flat = flat_of(Fn(forward), Call(torch.rand(2)))
    x = torch.rand(2)
    result = flat.unpack(flat.module(x), (x,))
    assert type(result) is Output
    assert torch.equal(result.hidden_states[1], x + 2)


def test_distinct_results() -> None:
    """A tensor that is returned twice is one output; an input that is returned is none."""

    def forward(x: T, y: T) -> Any:
        a = x + y
        return a, y, {"again": a, "other": a * 2}, y

    flat = flat_of(Fn(forward), Call(torch.rand(2), torch.rand(2)))
    assert flat.outputs == ("[0]", "[2]['other']")
    assert flat.returned == (1,)
    x, y = torch.rand(2), torch.rand(2)
    tensors = flat.module(x, y)
    assert len(tensors) == 2
    first, second, rest, fourth = flat.unpack(tensors, (x, y))
    assert first is rest["again"]
    assert second is fourth is y


def test_one_tensor_given_twice() -> None:
    """Two arguments that happened to be one tensor stay two inputs."""
    x = torch.rand(2)
    flat = flat_of(Fn(lambda a, b: (b, a * 2)), Call(x, x))
    assert flat.returned == (1,)
    a, b = torch.rand(2), torch.rand(2)
    assert flat.unpack(flat.module(a, b), (a, b))[0] is b


class Holder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(4))

    def forward(self, x: T) -> Any:
        return x + self.weight, self.weight[:2]


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (Fn(lambda x: (x * 2, x[1:])), "result [1] shares memory with an input"),
        (Fn(lambda x: x.view(2, 2)), "the result shares memory with an input"),
        (Holder(), "result [1] shares memory with a parameter or buffer"),
        (Fn(lambda x: (x * 2, iter(()))), "result [1] is a tuple_iterator, neither a tensor nor a plain value"),
    ],
)
def test_refused_results(module: nn.Module, reason: str) -> None:
    """Views of inputs or state and unknown objects are refused by name."""
    with pytest.raises(BuildRefusedError) as caught:
        flat_of(module, Call(torch.rand(4)))
    assert str(caught.value) == reason


@pytest.mark.parametrize(
    ("fn", "words"),
    [
        (lambda x: (x * 2, x.shape[0]), "result [1] is 2 in one recorded call and 3 in another"),
        (lambda x: (x * 2, None if x.shape[0] == 2 else x + 1), "result [1] is another tensor in some recorded calls"),
        (lambda x: [x * 2] * x.shape[0], "the structure of its result differs"),
        (lambda x: (x * 2, x if x.shape[0] == 2 else x + 1), "result [1] is another tensor in some recorded calls"),
    ],
)
def test_results_that_differ(fn: Any, words: str) -> None:
    """What would be bound must be the same in all recorded calls."""
    with pytest.raises(BuildRefusedError, match="result") as caught:
        flat_of(Fn(fn), Call(torch.rand(2)), Call(torch.rand(3)))
    assert words in str(caught.value)


def test_nan_equals_itself() -> None:
    """A bound NaN is the same NaN in each call."""
    flat = flat_of(Fn(lambda x: (x * 2, float("nan"))), Call(torch.rand(2)), Call(torch.rand(3)))
    assert repr(flat.unpack((torch.ones(1),), ())[1]) == "nan"


def test_writers_are_refused() -> None:
    """A unit that writes to its state is refused before it runs."""
    unit, calls = recorded(nn.Linear(2, 2), Call(torch.rand(1, 2)), facts=Facts(writes_state=("count",)))
    with pytest.raises(BuildRefusedError, match=r"writes to its state \(count\)"):
        flatten_unit(unit, calls)


def test_samples_are_let_alone() -> None:
    """Recorded tensors are never handed out: forward may write to what it gets."""
    x = torch.zeros(2)
    unit, calls = recorded(Fn(lambda x: x.add_(1) * 2), Call(x))
    flat = flatten_unit(unit, calls)
    (example,) = flat.example(calls.samples[0])
    assert example is not x
    assert torch.equal(x, torch.zeros(2))


def test_the_module_is_let_alone() -> None:
    """Wrapping keeps the module's own training flags, and does not register anything on it."""
    module = nn.Sequential(nn.Linear(2, 2), nn.Dropout())
    module.eval()
    module[1].train()
    before = dict(vars(module))
    flat = flat_of(module, Call(torch.rand(1, 2)))
    assert flat.module.unit is module
    assert not flat.module.training
    assert module[1].training
    assert vars(module) == before


def test_example_of_inference_tensors() -> None:
    """Samples that are inference tensors give ordinary examples."""
    with torch.inference_mode():
        x = torch.rand(2, 2)
    unit, calls = recorded(nn.Linear(2, 2), Call(x))
    (example,) = flatten_unit(unit, calls).example(calls.samples[0])
    assert not example.is_inference()


def test_dynamic_shapes() -> None:
    """Axes of one symbol share a Dim; lower ends start at 2; an axis with one size left does not move."""
    flat = flat_of(Fn(lambda x, y: x), Call(torch.rand(2), torch.rand(2)))
    shapes = Shapes(
        leaves=(
            (Axis(lo=1, hi=8, symbol="a"), 3, Axis(lo=4, hi=6, symbol="b")),
            (Axis(lo=1, hi=8, symbol="a"), Axis(lo=1, hi=2, symbol="c")),
            (5,),
        )
    )
    ((first, second, third),) = flat.dynamic_shapes(shapes)
    assert set(first) == {0, 2}
    assert first[0] is second[0]
    assert (first[0].min, first[0].max, first[2].min, first[2].max) == (2, 8, 4, 6)
    assert set(second) == {0}
    assert third is None
    assert flat.dynamic_shapes(Shapes(leaves=((1, 2), (3,)))) is None


def test_dynamic_shapes_export() -> None:
    """`torch.export` takes module, example and dynamic shapes as they are."""
    unit, calls = recorded(Fn(lambda x, y: x + y), *(Call(torch.rand(n, 2), torch.rand(n, 2)) for n in (4, 9)))
    flat = flatten_unit(unit, calls)
    program = torch.export.export(
        flat.module, flat.example(calls.samples[0]), dynamic_shapes=flat.dynamic_shapes(calls.shapes), strict=False
    )
    x = torch.rand(7, 2)
    assert torch.equal(program.module()(x, x)[0], x + x)


def test_export_reads_specialisations() -> None:
    """What the trace took for fixed, equal or in range is told."""
    one, shapes = exported(
        Fn(lambda x, y, z: (x + y, z * 2 if z.shape[0] > 4 else z + 1)),
        *(Call(torch.rand(n, 3), torch.rand(n, 3), torch.rand(m)) for n, m in ((6, 8), (1, 3))),
    )
    covers = one.covers(shapes)
    assert covers.admit(((6, 3), (6, 3), (8,)))
    assert covers.admit(((2, 3), (2, 3), (5,)))
    for sizes in (((1, 3), (1, 3), (8,)), ((6, 3), (6, 3), (4,)), ((6, 3), (5, 3), (8,)), ((7, 3), (7, 3), (8,))):
        assert not covers.admit(sizes)
        assert not one.fits(sizes)


def test_export_finds_equalities() -> None:
    """Axes that the program adds are equal, also where the calls' symbols do not say so."""
    unit, calls = recorded(Fn(lambda x, y: x + y), Call(torch.rand(6), torch.rand(6)))
    shapes = Shapes(leaves=((Axis(lo=2, hi=9, symbol="a"),), (Axis(lo=3, hi=8, symbol="b"),)))
    found = flatten_unit(unit, calls).export(calls.samples[0], shapes)
    (x,), (y,) = found.covers(shapes).leaves
    assert x.symbol == y.symbol
    assert found.fits(((5,), (5,)))
    assert not found.fits(((5,), (4,)))


def test_export_keeps_guards() -> None:
    """A condition that no range can say is in `fits`."""
    one, shapes = exported(
        Fn(lambda x: x * 2 if x.shape[0] % 2 == 0 else x + 1), *(Call(torch.rand(n)) for n in (6, 3))
    )
    assert [n for n in range(1, 9) if one.fits(((n,),))] == [4, 6]
    assert one.covers(shapes).admit(((5,),))


def test_export_result_sizes() -> None:
    """Sizes of results are computed from sizes of inputs."""
    one, _ = exported(
        Fn(lambda x, y: (torch.cat([x, y]), nn.functional.avg_pool1d(x.t(), 3, 2), (x * 2).reshape(-1))),
        *(Call(torch.rand(n, 4), torch.rand(m, 4)) for n, m in ((9, 5), (21, 8))),
    )
    for n, m in ((9, 5), (13, 7), (21, 6)):  # torch 2.11 takes the parity of a pooled size for a condition
        x, y = torch.rand(n, 4), torch.rand(m, 4)
        expected = (torch.cat([x, y]), nn.functional.avg_pool1d(x.t(), 3, 2), x.reshape(-1))
        assert one.fits((x.shape, y.shape))
        assert one.result_sizes((x.shape, y.shape)) == tuple(tuple(t.shape) for t in expected)


def test_export_uses_the_original_forward() -> None:
    """An instance's patched `forward` is not what is exported; its weights are seen."""
    module = nn.Linear(2, 2)
    unit, calls = recorded(module, Call(torch.rand(1, 2)))
    module.__dict__["forward"] = lambda x: x * 0
    one = flatten_unit(unit, calls).export(calls.samples[0], calls.shapes)
    x = torch.rand(1, 2)
    expected = nn.functional.linear(x, module.weight, module.bias)
    assert torch.equal(one.program.module()(x)[0], expected)
    assert "unit.weight" in one.program.state_dict


@pytest.mark.parametrize(
    ("fn", "words"),
    [
        (lambda x: x * 2 if x.sum() > 0 else x * 3, "torch.export cannot trace it: Could not guard on data-dependent"),
        (lambda x: (x * 2, x.shape[0] > 0 and x.shape[0]), "depends on the sizes or values"),
        (lambda x: (x * 2, x.sum().item() * 0), "depends on the sizes or values"),
        (torch.nonzero, "the size of a result depends on the values"),
        (lambda x: x.mul_(2) + 1, "it writes to its inputs (args[0])"),
    ],
)
def test_refused_exports(fn: Any, words: str, capfd: pytest.CaptureFixture[str]) -> None:
    """What cannot be exported rightly is refused in one line, and nothing is printed."""
    unit, calls = recorded(Fn(fn), Call(torch.ones(4)))
    shapes = Shapes(leaves=((Axis(lo=2, hi=9, symbol="a"),),))
    flat = flatten_unit(unit, calls)
    with pytest.raises(BuildRefusedError) as caught:
        flat.export(calls.samples[0], shapes)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "".join(capfd.readouterr()) == ""


def both(fn: Any, *calls: Call) -> tuple[Exported, Exported]:
    unit, known = recorded(Fn(fn), *calls)
    flat = flatten_unit(unit, known)
    general, special = (flat.export(sample, known.shapes) for sample in known.samples)
    return general, special


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x.relu(),
        lambda x: (x[:, None].expand(x.shape[0], 2, x.shape[1]) + 1).reshape(-1, x.shape[1]),
        lambda x: torch.cat([x, torch.ones(x.shape[0], 1)], 1),
    ],
)
def test_a_size_of_one_is_the_same_program(fn: Any) -> None:
    """The trace for a size of 1 is told to be the general program where every step is."""
    general, special = both(fn, Call(torch.rand(4, 3)), Call(torch.rand(1, 3)))
    assert not general.fits(((1, 3),))
    assert special.fits(((1, 3),))
    assert general.serves(special)
    x = torch.rand(1, 3)
    assert special.result_sizes((x.shape,))[0] == tuple(fn(x).shape)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x * 2 if x.shape[0] > 1 else x * 3,
        lambda x: x.relu() if x.shape[0] > 1 else x.exp(),
        lambda x: x.squeeze(0) + 1,
        lambda x: x + 1 if x.shape[0] > 1 else x.sum(1, keepdim=True).expand(1, 3) + 1,
        lambda x: x.sum(0) if x.shape[0] > 1 else x.sum(1),
    ],
)
def test_a_branch_on_one_is_another_program(fn: Any) -> None:
    """A program that does something else for a size of 1 is not served by the general one."""
    general, special = both(fn, Call(torch.rand(4, 3)), Call(torch.rand(1, 3)))
    assert not general.serves(special)
