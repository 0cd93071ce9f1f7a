"""What this backend accepts it answers as eager does: spellings, kinds of tensors, sizes, containers."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

import pytest
import torch
from torch import nn

import tt_core as tt

T = torch.Tensor


class Swap(nn.Module):
    """Three arguments whose order matters, a number among them."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: T, scale: float, y: T, *, mask: T | None = None) -> T:
        out = self.linear(x) * scale - y * 2
        return out if mask is None else out.masked_fill(mask, -1.0)


class Fn(nn.Module):
    """A function as a module."""

    def __init__(self, fn: Any) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, *args: Any) -> Any:
        return self.fn(*args)


def test_keyword_order(made: Any, close: Any) -> None:
    """Arguments spelled by keyword in another order than the signature's reach their own ports."""
    x, y, mask = torch.randn(3, 4), torch.randn(3, 4), torch.rand(3, 4) > 0.5
    unit = made(Swap(), tt.Call(mask=mask, y=y, x=x, scale=3.0))
    built = unit.build()
    expected = unit.eager(x, 3.0, y, mask=mask)
    for actual in (
        built.call(y=y, scale=3.0, mask=mask, x=x),
        built.call(x, 3.0, y, mask=mask),
        built.call(x, 3.0, mask=mask, y=y),
    ):
        close(actual, expected)


def test_scalar_between_tensors(made: Any, close: Any) -> None:
    """A number between two tensors is bound, and is no port."""
    x, y = torch.randn(2, 4), torch.randn(2, 4)
    unit = made(Swap(), tt.Call(x, 0.5, y))
    close(unit.build().call(x, 0.5, y), unit.eager(x, 0.5, y))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", [3, 300])
def test_float_types(made: Any, close: Any, dtype: torch.dtype, rows: int) -> None:
    """A unit in bf16, f16 or f32 takes and gives that type, small tensors and shared ones alike."""
    module = nn.Linear(64, 64).to(dtype)
    x = torch.randn(rows, 64).to(dtype)
    unit = made(module, tt.Call(x))
    actual, expected = unit.build().call(x), unit.eager(x)
    assert actual.dtype == dtype
    close(
        actual.float(), expected.float(), rtol={torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 3e-3}[dtype]
    )


def test_f32_stays_f32(made: Any) -> None:
    """A float32 unit is as exact as eager against float64: no bf16 inside, whatever the device prefers."""
    torch.manual_seed(0)
    module, x = nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 256)), torch.randn(32, 256)
    unit = made(module, tt.Call(x))
    actual, expected = unit.build().call(x), unit.eager(x)
    truth = module.double()(x.double()).detach()
    error = (actual.double() - truth).norm() / truth.norm()
    assert error < 5 * (expected.double() - truth).norm() / truth.norm() + 1e-6


def test_bool_and_integers(made: Any) -> None:
    """bool, int32 and int64 go in and out exactly."""
    unit = made(
        Fn(lambda a, b, i, j: (a & ~b, a.sum(), i + 1, j * 2 - i, i > 1)),
        tt.Call(torch.tensor([True, False]), torch.tensor([True, True]), torch.tensor([1, 2]), torch.tensor([5, -6])),
    )
    built = unit.build()
    args = (torch.tensor([True, True]), torch.tensor([False, True]), torch.tensor([7, -2]), torch.tensor([2**20, 3]))
    for actual, expected in zip(built.call(*args), unit.eager(*args), strict=True):
        assert actual.dtype == expected.dtype
        assert torch.equal(actual, expected)


def test_integers_beyond_32_bits(made: Any) -> None:
    """OpenVINO computes int64 in 32 bits: a call whose values would leave them is handed back to the original."""
    unit = made(Fn(lambda i: (i * 3 + 1, i > 2**20)), tt.Call(torch.arange(4)))
    built = unit.build()
    for values in (torch.arange(4) + 2**31, torch.arange(4) - 2**40, torch.arange(4) + 2**30):
        with pytest.raises(tt.DeclinedError, match="an integer is beyond"):
            built.call(values)
    for values in (torch.arange(4) + 2**27, torch.arange(4)):
        for actual, expected in zip(built.call(values), unit.eager(values), strict=True):
            assert torch.equal(actual, expected)


def test_index_out_of_table(made: Any) -> None:
    """An index that eager refuses is not answered with numbers: eager is asked, and raises."""
    unit = made(nn.Embedding(10, 4), tt.Call(torch.tensor([1, 9])))
    built = unit.build()
    assert torch.equal(built.call(torch.tensor([3, 0])), unit.eager(torch.tensor([3, 0])))
    for wrong in (10, -1):
        with pytest.raises(tt.DeclinedError, match="no index of its table"):
            built.call(torch.tensor([3, wrong]))


@pytest.mark.parametrize("rows", [6, 600])
def test_strides(made: Any, close: Any, rows: int) -> None:
    """Transposed, sliced, expanded and offset inputs are read as what they are."""
    unit = made(nn.Linear(32, 32), tt.Call(torch.randn(rows, 32)))
    built = unit.build()
    wide = torch.randn(rows, 64)
    for x in (
        torch.randn(32, rows).t(),
        wide[:, ::2],
        wide[:, 3:35],
        torch.randn(1, 32).expand(rows, 32),
        torch.randn(rows + 1, 32)[1:],
    ):
        close(built.call(x), unit.eager(x))


def test_channels_last(made: Any, close: Any) -> None:
    """An image in channels_last gives what it gives in rows, whichever was recorded."""
    x = torch.randn(2, 3, 16, 16)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, 5)
    )
    for recorded in (x, x.to(memory_format=torch.channels_last)):
        unit = made(net, tt.Call(recorded))
        built = unit.build()
        close(built.call(x), unit.eager(x))
        close(built.call(x.to(memory_format=torch.channels_last)), unit.eager(x))


def test_zero_dimensional(made: Any, close: Any) -> None:
    """Tensors without axes go in and out."""
    unit = made(Fn(lambda a, b: (a * b, (a + b).reshape(1))), tt.Call(torch.tensor(2.0), torch.tensor(3.0)))
    for actual, expected in zip(
        unit.build().call(torch.tensor(5.0), torch.tensor(7.0)),
        unit.eager(torch.tensor(5.0), torch.tensor(7.0)),
        strict=True,
    ):
        close(actual, expected)
        assert actual.shape == expected.shape


def test_dynamic_sequence(made: Any, close: Any) -> None:
    """A moving axis is one program for every size of its range, with results of the right sizes; 1 has its own."""
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    unit = made(layer, tt.Call(torch.randn(2, 24, 16)), tt.Call(torch.randn(2, 1, 16)))
    built = unit.build()
    for size in (1, 2, 3, 11, 24, 5):
        x = torch.randn(2, size, 16)
        assert unit.covers(tuple(x.shape))
        close(built.call(x), unit.eager(x), rtol=1e-4)
    assert not unit.covers((2, 25, 16))


class Attention(nn.Module):
    """Self-attention alone."""

    def forward(self, x: T) -> T:
        heads = x.unflatten(-1, (2, 8)).transpose(1, 2)
        return nn.functional.scaled_dot_product_attention(heads, heads, heads)


@pytest.mark.parametrize("first", [1, 2, 40])
def test_attention_after_one_query(made: Any, close: Any, first: int) -> None:
    """Attention is right whichever length ran first: in OpenVINO 2026.4 one query first spoils 16 and more."""
    unit = made(Attention(), tt.Call(torch.randn(2, 40, 16)), tt.Call(torch.randn(2, 1, 16)))
    built = unit.build()
    for size in (first, 1, 40, 16, 33, 1, 17):
        x = torch.randn(2, size, 16)
        close(built.call(x), unit.eager(x))


def test_computed_result_sizes(made: Any, close: Any) -> None:
    """Sizes of results are computed from the inputs', strides and paddings included."""
    module = Fn(lambda x, y: (torch.cat([x, y], 1), nn.functional.avg_pool1d(x, 3, 2, padding=1), (x * 2).reshape(-1)))
    pairs = [(torch.randn(2, a, 8), torch.randn(2, b, 8)) for a, b in ((9, 4), (4, 12))]
    unit = made(module, *(tt.Call(*pair) for pair in pairs))
    built = unit.build()
    for x, y in [*pairs, (torch.randn(2, 7, 8), torch.randn(2, 5, 8))]:
        for actual, expected in zip(built.call(x, y), unit.eager(x, y), strict=True):
            close(actual, expected)


def test_equal_axes(made: Any, close: Any) -> None:
    """Axes that were always equal must be equal: a broadcast that eager allows is not covered."""
    unit = made(Fn(lambda x, y: x + y), *(tt.Call(torch.randn(n, 4), torch.randn(n, 4)) for n in (8, 2)))
    built = unit.build()
    x, y = torch.randn(5, 4), torch.randn(5, 4)
    assert unit.covers((5, 4), (5, 4))
    close(built.call(x, y), x + y)
    assert not unit.covers((5, 4), (2, 4))
    assert not unit.covers((1, 4), (5, 4))


def test_a_branch_on_sizes(made: Any, close: Any) -> None:
    """A forward that branches on a size is right on both sides: each has its program, or the call is handed back."""
    unit = made(Fn(lambda x: x * 2 if x.shape[0] % 2 == 0 else x * 3), *(tt.Call(torch.randn(n, 4)) for n in (12, 3)))
    built = unit.build()
    served = []
    for n in range(3, 13):
        x = torch.randn(n, 4)
        with contextlib.suppress(tt.DeclinedError):
            close(built.call(x), unit.eager(x))
            served.append(n)
    assert served == list(range(3, 13))


def test_empty_batch(made: Any, close: Any) -> None:
    """A batch of nothing is not covered, recorded or not, and handed back where it is called all the same."""
    unit = made(nn.Linear(4, 6), *(tt.Call(torch.randn(n, 4)) for n in (8, 0)))
    built = unit.build()
    assert unit.covers((2, 4))
    assert not unit.covers((0, 4))
    with pytest.raises(tt.DeclinedError, match=r"no program for the sizes \(0, 4\)"):
        built.call(torch.randn(0, 4))
    x = torch.randn(3, 4)
    close(built.call(x), unit.eager(x))


def test_empty_part(made: Any, close: Any) -> None:
    """An argument that is always empty does not keep the rest from being computed."""
    unit = made(Fn(lambda x, past: torch.cat([past, x], 1).relu()), tt.Call(torch.randn(2, 3, 4), torch.randn(2, 0, 4)))
    x = torch.randn(2, 3, 4)
    close(unit.build().call(x, torch.randn(2, 0, 4)), x.relu())


def test_same_tensor_twice(made: Any, close: Any) -> None:
    """A tensor that is returned twice is one tensor again."""

    def forward(x: T) -> tuple[T, T, T]:
        y = x * 2
        return y, x + 1, y

    unit = made(Fn(forward), tt.Call(torch.randn(3, 4)))
    x = torch.randn(3, 4)
    first, second, third = unit.build().call(x)
    assert first is third
    close(first, x * 2)
    close(second, x + 1)


def test_input_returned(made: Any, close: Any) -> None:
    """An input that is returned unchanged comes back as the caller's own tensor."""
    unit = made(Fn(lambda x, y: {"y": y, "sum": x + y}), tt.Call(torch.randn(3), torch.randn(3)))
    built = unit.build()
    x, y = torch.randn(3), torch.randn(3)
    result = built.call(x, y)
    assert list(result) == ["y", "sum"]
    assert result["y"] is y
    assert built.needs_strides
    close(result["sum"], x + y)


def test_constant_results(made: Any, close: Any) -> None:
    """Results that no input enters, and results that are no tensors, are there."""
    unit = made(Fn(lambda x: (x * 2, torch.arange(3), None, "tag", 7)), tt.Call(torch.randn(3)))
    x = torch.randn(3)
    doubled, numbers, *others = unit.build().call(x)
    close(doubled, x * 2)
    assert torch.equal(numbers, torch.arange(3))
    assert others == [None, "tag", 7]


@dataclasses.dataclass
class Pair:
    left: T
    right: list[T]
    note: str = "n"


def test_dataclass_result(made: Any, close: Any) -> None:
    """A dataclass comes back as that dataclass."""
    unit = made(Fn(lambda x: Pair(x * 2, [x + 1], "seen")), tt.Call(torch.randn(3)))
    x = torch.randn(3)
    result = unit.build().call(x)
    assert type(result) is Pair
    assert result.note == "seen"
    close(result.left, x * 2)
    close(result.right[0], x + 1)


def test_nested_arguments(made: Any, close: Any) -> None:
    """Dictionaries and lists of tensors are taken apart."""
    unit = made(
        Fn(lambda batch, rest: batch["a"] - batch["b"] * rest[1][0]),
        tt.Call({"b": torch.randn(3), "a": torch.randn(3)}, [None, (torch.randn(3),)]),
    )
    a, b, c = torch.randn(3), torch.randn(3), torch.randn(3)
    close(unit.build().call({"b": b, "a": a}, [None, (c,)]), a - b * c)


def test_inputs_are_not_written(made: Any) -> None:
    """Shared memory is only read, also where a graph could work in place."""
    unit = made(Fn(lambda x: torch.relu(x).mul(2).add(1)), tt.Call(torch.randn(200, 200)))
    x = torch.randn(200, 200)
    before = x.clone()
    unit.build().call(x)
    assert torch.equal(x, before)
