"""What is kept of graphs: their sizes; they are captured anew where they are loaded."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
import tt_xpugraph
from torch import nn

import tt_core as tt

LIMITS = tt.Limits(seconds=60)


class Net(nn.Module):
    """An index, a mask, a transposed input, and constants of every kind that is kept."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 4)

    def forward(
        self,
        index: torch.Tensor,
        mask: torch.Tensor,
        x: torch.Tensor,
        *,
        scale: float = 0.5,
        times: int = 2,
        how: str = "sum",
        dtype: torch.dtype | None = None,
        flag: bool = True,
    ) -> Any:
        y = torch.where(mask[:, None], self.table(index), 0.0) * scale * times + 1 / x
        y = y.sum(-1) if how == "sum" else y
        return {"y": y if dtype is None else y.to(dtype), "flag": flag}


def given(rows: int) -> tt.Call:
    index = torch.randint(0, 5, (rows,))
    return tt.Call(index, torch.rand(rows) > 0.5, torch.rand(4, rows).t() + 1, scale=0.25, dtype=torch.float64)


@pytest.fixture
def net() -> Net:
    return Net().eval()


@pytest.fixture
def built(make, fake, net) -> tuple[Any, Any, Any]:
    """The unit, its calls, and what was built for them."""
    unit, calls = make(net, given(3), given(7))
    with torch.no_grad():
        options = {"graphs": 3}
        made = tt_xpugraph.tt_build(unit=unit, calls=calls, device=fake.at, options=options, inner=None, limits=LIMITS)
    return unit, calls, made


def restored(fake: Any, unit: Any, calls: Any, dumped: Any, inner: Any = None) -> tt.Built:
    with torch.no_grad():
        return tt_xpugraph.tt_restore(
            unit=unit, key=calls.key, covers=calls.shapes, dumped=dumped, device=fake.at, inner=inner
        )


def same(built: Any, module: nn.Module, call: tt.Call) -> None:
    with torch.no_grad():
        want, got = module(*call.args, **call.kwargs), built.call(*call.args, **call.kwargs)
    torch.testing.assert_close(got, want, rtol=0, atol=0)


def test_what_is_dumped_is_data(built):
    """Sizes, strides, constants and options, the sizes captured in service too; as they are after a trip through JSON."""
    _, _, made = built
    call = given(5)
    with torch.no_grad():
        made.call(*call.args, **call.kwargs)
    dumped = tt_xpugraph.tt_dump(built=made)
    assert json.loads(json.dumps(dumped, allow_nan=False)) == dumped
    assert dumped["options"] == {"outputs": "owned", "graphs": 3}
    assert [row[0][0] for row in dumped["graphs"]] == [[7], [3], [5]]
    assert dumped["graphs"][0][2] == [[7, 4], [1, 7]]
    assert dumped["constants"] == [
        ["float", (0.25).hex()],
        ["int", 2],
        ["str", "sum"],
        ["dtype", "float64"],
        ["bool", True],
    ]


def test_restored_graphs_are_warm(fake, net, built):
    """Every dumped size is captured before the first call, results are eager's, and it can be dumped again."""
    unit, calls, made = built
    dumped = json.loads(json.dumps(tt_xpugraph.tt_dump(built=made)))
    made.close()
    captures = fake.captures
    again = restored(fake, unit, calls, dumped)
    assert fake.captures == captures + 2
    assert again.weights is tt.Weights.STORAGE
    assert again.covers == calls.shapes
    for rows in (3, 7, 3):
        same(again, net, given(rows))
    assert fake.captures == captures + 2
    assert tt_xpugraph.tt_dump(built=again) == dumped
    again.close()
    assert set(fake.pools.values()) == {0}


def test_a_chain_is_restored_over_what_is_inside(fake, net, built):
    """The layer captures the restored inner built."""
    unit, calls, made = built
    ran: list[int] = []

    def inner(*args: Any, **kwargs: Any) -> Any:
        ran.append(len(args[0]))
        return net(*args, **kwargs)

    again = restored(fake, unit, calls, tt_xpugraph.tt_dump(built=made), tt.Built(call=inner))
    captured = len(ran)
    assert captured > 0
    same(again, net, given(3))
    assert len(ran) == captured
    assert again.inner is not None


def test_a_plan_of_other_sizes_is_refused(fake, built):
    """What was dumped must lie inside what it covers; damage is one sentence, and nothing is captured."""
    unit, calls, made = built
    good = json.loads(json.dumps(tt_xpugraph.tt_dump(built=made)))
    row = good["graphs"][0]
    bad = [
        ({"format": 2}, "format 2"),
        ({"graphs": []}, "no sizes"),
        ({"graphs": [[[[8], [1]], [[8], [1]], [[8, 4], [1, 8]]]]}, "not those that it covers"),
        ({"graphs": [row[:2]]}, "damaged|not those"),
        ({"graphs": [[[[7], [-1]], *row[1:]]]}, "damaged"),
        ({"graphs": [[[[7], []], *row[1:]]]}, "damaged"),
        ({"graphs": 3}, "damaged"),
        ({"constants": [["eval", "1"]]}, "damaged"),
        ({"constants": [["dtype", "nn"], *good["constants"][1:]]}, "damaged"),
        ({"constants": [["int", "x"], *good["constants"][1:]]}, "damaged"),
        ({"options": {"speed": 1}}, "unknown option"),
        ({"options": None}, "damaged"),
    ]
    captures = fake.captures
    for change, reason in bad:
        with pytest.raises(tt.BuildRefusedError, match=reason):
            restored(fake, unit, calls, good | change)
    missing = {name: value for name, value in good.items() if name != "graphs"}
    with pytest.raises(tt.BuildRefusedError, match="damaged"):
        restored(fake, unit, calls, missing)
    assert fake.captures == captures


def test_a_closed_built_has_nothing_to_dump(built):
    """And neither has a constant that JSON has no form for."""
    _, _, made = built
    made.close()
    with pytest.raises(tt.BuildRefusedError, match="closed"):
        tt_xpugraph.tt_dump(built=made)
    with pytest.raises(tt.BuildRefusedError, match="of type complex"):
        tt.flat.constant_form(1j)


class Picky(nn.Module):
    """Refuses what was made up."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool((x == 1).all()):
            raise ValueError("ones")
        return x + 1


def test_made_up_inputs_that_do_not_run(make, fake, monkeypatch):
    """The reason says that only a new tuning helps; a hook inside that appeared since is seen."""
    unit, calls = make(Picky().eval(), tt.Call(torch.randn(3)))
    dumped = {"format": 1, "options": {}, "constants": [], "graphs": [[[[3], [1]]]]}
    with pytest.raises(tt.BuildRefusedError, match="does not run on made-up inputs"):
        restored(fake, unit, calls, dumped)
    module = nn.Sequential(nn.ReLU())
    unit, calls = make(module, tt.Call(torch.randn(3)))
    with pytest.raises(tt.BuildRefusedError, match="the sizes that it covered"):
        tt_xpugraph.tt_restore(unit=unit, key=calls.key, covers=None, dumped=dumped, device=fake.at, inner=None)
    module[0].register_forward_hook(lambda *_: None)
    with pytest.raises(tt.BuildRefusedError, match="hooks inside"):
        restored(fake, unit, calls, dumped)
