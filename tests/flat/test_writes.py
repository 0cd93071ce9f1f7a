"""Whether a graph writes to what it was given: proven only where no torch has to be asked."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tt_core.flat.writes import may_write_outside


class Writes(nn.Module):
    """A function of a tensor, with a weight and a buffer."""

    def __init__(self, fn):
        super().__init__()
        self.fn = fn
        self.conv, self.drop = nn.Conv1d(3, 3, 1), nn.Dropout()
        self.register_buffer("count", torch.zeros(3))

    def forward(self, x):
        return self.fn(self, x)


def asked(fn):
    module = Writes(fn).eval()
    with torch.no_grad():
        return may_write_outside(torch.export.export(module, (torch.rand(2, 3, 4),), strict=False).graph)


@pytest.mark.parametrize(
    "fn",
    [
        lambda _, x: x * 2,
        lambda _, x: (x + 1).add_(2),
        lambda _, x: (x + 1).view(-1).add_(2),
        lambda m, x: nn.functional.relu_(m.conv(x)),
        lambda _, x: torch.zeros(2, 3, 4).copy_(x),
        lambda _, x: x.clone().transpose(0, 1).mul_(2),
        lambda _, x: torch._foreach_add_([x + 1, x * 2], 1),
    ],
)
def test_writes_to_memory_of_its_own_are_none(fn):
    """What was computed here may be written to, also through a view."""
    assert not asked(fn)


@pytest.mark.parametrize(
    "fn",
    [
        lambda _, x: x.add_(1),
        lambda _, x: x.view(-1)[1:].mul_(2),
        lambda m, x: m.count.add_(1) + x.sum(),
        lambda m, x: m.drop(x).add_(1),  # in eval it returns its argument, and no schema says so
        lambda _, x: x.reshape(2, 12).add_(1),
        lambda _, x: x.contiguous().add_(1),
        lambda _, x: x.to(torch.float32).add_(1),
        lambda _, x: torch.split(x, 1)[0].add_(1),
        lambda _, x: x[0].T.add_(1),
    ],
)
def test_what_may_be_an_argument_is_asked_about(fn):
    """An input, a buffer, a view of one, or what may have been handed through."""
    assert asked(fn)
