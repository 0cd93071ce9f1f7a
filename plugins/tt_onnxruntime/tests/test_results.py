"""What this backend accepts it answers as eager does: spellings, kinds of tensors, sizes, containers."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import nn
from tt_onnxruntime.probe import failures

import tt_core as tt

T = torch.Tensor


class Swap(nn.Module):
    """Arguments whose order matters, a number between the tensors, and an unused one."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: T, scale: float, y: T, unused: T | None = None, *, mask: T | None = None) -> T:
        out = self.linear(x) * scale - y * 2
        return out if mask is None else out.masked_fill(mask, -1.0)


class Fn(nn.Module):
    """A function as a module."""

    def __init__(self, fn: Any) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, *args: Any) -> Any:
        return self.fn(*args)


def test_spellings(made: Any, close: Any) -> None:
    """Keywords in any order reach their own ports; a number between tensors is bound; an unused tensor has its port."""
    x, y, mask = torch.randn(3, 4), torch.randn(3, 4), torch.rand(3, 4) > 0.5
    spare = torch.randn(2)
    built = (unit := made(Swap(), tt.Call(mask=mask, unused=spare, y=y, x=x, scale=3.0))).build()
    expected = unit.eager(x, 3.0, y, mask=mask)
    close(built.call(y=y, scale=3.0, mask=mask, x=x, unused=spare), expected)
    close(built.call(x, 3.0, y, spare, mask=mask), expected)


def test_integers_and_bools(made: Any) -> None:
    """bool, uint8, int32 and int64 are exact, wrap like torch's, and int64 has all of its 64 bits."""

    def forward(a: T, b: T, i: T, j: T) -> tuple[T, ...]:
        return a & ~a, b * 3 + 200, i * 3 - 7, j * 2 + 1, j // 3, j % 5, j.cumsum(0), j > 2**40, i.sum()

    args = (
        torch.tensor([True, False, True]),
        torch.tensor([200, 3, 255], dtype=torch.uint8),
        torch.tensor([2**31 - 1, 5, -(2**31)], dtype=torch.int32),
        torch.tensor([2**53 + 1, -7, 2**40 + 1]),
    )
    unit = made(Fn(forward), tt.Call(*(torch.zeros_like(arg) for arg in args)))
    for actual, expected in zip(unit.build().call(*args), unit.eager(*args), strict=True):
        assert actual.dtype == expected.dtype
        assert torch.equal(actual, expected)


def test_tables(made: Any) -> None:
    """An index that eager refuses is not answered with numbers: negative ones are handed back, too large ones raise."""
    unit = made(nn.Embedding(10, 4), tt.Call(torch.tensor([1, 9])))
    built = unit.build()
    assert torch.equal(built.call(torch.tensor([3, 0])), unit.eager(torch.tensor([3, 0])))
    with pytest.raises(tt.DeclinedError, match="negative"):
        built.call(torch.tensor([3, -1]))
    with pytest.raises(failures(), match="out of data bounds"):  # the dispatcher then asks eager
        built.call(torch.tensor([3, 10]))
    assert torch.equal(built.call(torch.tensor([9, 9])), unit.eager(torch.tensor([9, 9])))


def test_strides_and_empty_batches(made: Any, close: Any) -> None:
    """Transposed, sliced, expanded, offset and negated inputs are read as what they are; a batch of nothing is not covered."""
    unit = made(nn.Linear(32, 32), *(tt.Call(torch.randn(n, 32)) for n in (9, 6, 1, 0)))
    built = unit.build()
    wide = torch.randn(6, 64)
    for x in (
        torch.randn(32, 6).t(),
        wide[:, ::2],
        wide[:, 3:35],
        torch.randn(1, 32).expand(6, 32),
        torch.randn(7, 32)[1:],
        torch._neg_view(torch.randn(6, 32)),
        torch.randn(1, 32),
    ):
        assert unit.covers(tuple(x.shape))
        close(built.call(x), unit.eager(x))
    assert built.covers == tt.Shapes(leaves=((tt.Axis(lo=1, hi=9, symbol="s0"), 32),))
    with pytest.raises(tt.DeclinedError, match="no program for the sizes"):
        built.call(torch.randn(0, 32))


def test_channels_last(made: Any, close: Any) -> None:
    """An image in channels_last gives what it gives in rows."""
    net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(512, 5))
    x = torch.randn(2, 3, 8, 8)
    unit = made(net, tt.Call(x))
    built = unit.build()
    close(built.call(x.to(memory_format=torch.channels_last)), unit.eager(x))


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
    """A forward that branches on a size has a program for each side; what was recorded for neither is handed back."""
    unit = made(Fn(lambda x: x * 2 if x.shape[0] > 1 else x * 3), *(tt.Call(torch.randn(n, 4)) for n in (4, 1)))
    built = unit.build()
    assert built.notes[1] == "2 programs, chosen by size"
    for n in (1, 2, 4):
        x = torch.randn(n, 4)
        close(built.call(x), unit.eager(x))
    unit = made(Fn(lambda x: x * 2 if x.shape[0] % 2 == 0 else x * 3), *(tt.Call(torch.randn(n, 4)) for n in (8, 4)))
    built = unit.build()
    close(built.call(torch.ones(6, 4)), torch.full((6, 4), 2.0))
    with pytest.raises(tt.DeclinedError):
        built.call(torch.ones(5, 4))


@dataclasses.dataclass
class Pair:
    left: T
    right: list[T]
    note: str = "n"


def test_containers(made: Any, close: Any) -> None:
    """Dataclasses, bound values, a tensor twice, an input returned, a copy of one, constants, no axes: all as in eager."""

    def forward(batch: dict[str, T], rest: list[Any]) -> Any:
        y = batch["a"] - batch["b"] * rest[1][0]
        return Pair(y, [y.sum(), y], "seen"), batch["a"], batch["a"].clone(), torch.arange(3), None, 7

    a, b, c = torch.randn(3), torch.randn(3), torch.tensor(2.0)
    unit = made(Fn(forward), tt.Call({"b": b, "a": a}, [None, (c,)]))
    built = unit.build()
    a = torch.randn(3)
    pair, same, copy, numbers, *others = built.call({"b": b, "a": a}, [None, (c,)])
    assert type(pair) is Pair
    assert pair.note == "seen"
    assert pair.right[1] is pair.left
    close(pair.left, a - b * c)
    close(pair.right[0], (a - b * c).sum())
    assert same is a
    assert copy.data_ptr() != a.data_ptr()
    assert torch.equal(copy, a)
    assert torch.equal(numbers, torch.arange(3))
    assert others == [None, 7]
    numbers.fill_(9)
    assert torch.equal(built.call({"b": b, "a": a}, [None, (c,)])[3], torch.arange(3))


def test_half_precision(made: Any, close: Any) -> None:
    """float16 goes in and out as float16; an argument that is always empty is one."""
    unit = made(
        Fn(lambda x, past: torch.cat([past, x]).relu() * 3), tt.Call(torch.randn(4).half(), torch.zeros(0).half())
    )
    x = torch.randn(4).half()
    actual = unit.build().call(x, torch.zeros(0).half())
    assert actual.dtype == torch.float16
    close(actual, x.relu() * 3, rtol=2e-3)


def test_double_precision(made: Any) -> None:
    """float64 is computed in float64."""
    unit = made(
        Fn(lambda x, y: torch.tanh(x @ y) * 3 + 0.5), tt.Call(torch.randn(4, 4).double(), torch.randn(4, 4).double())
    )
    x, y = torch.randn(4, 4).double(), torch.randn(4, 4).double()
    actual = unit.build().call(x, y)
    assert actual.dtype == torch.float64
    torch.testing.assert_close(actual, unit.eager(x, y), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("fn", [lambda x: nn.functional.max_pool1d(x, 2), lambda x: x.argmax(-1)])
def test_nan_is_passed_over(made: Any, fn: Any) -> None:
    """Known: maximum pooling and argmax pass over NaN, where torch returns it. The page of this plugin says so."""
    unit = made(Fn(fn), tt.Call(torch.randn(1, 1, 4)))
    x = torch.tensor([[[1.0, float("nan"), 3.0, 2.0]]])
    actual, expected = unit.build().call(x), unit.eager(x)
    assert not torch.equal(actual.nan_to_num(99), expected.nan_to_num(99))
