"""Whole models: a BERT with a mask, a convolutional network, a transformer encoder, an LSTM, in moving sizes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import tt_onnxruntime
from torch import nn

import tt_core as tt


@pytest.mark.real
def test_bert_of_fourteen_lengths_is_one_build(
    made: Any, close: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Fourteen lengths are one export and one program, right between the recorded ones too; the result a `ModelOutput`."""
    from transformers import BertConfig, BertModel

    config = BertConfig(vocab_size=90, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64)
    exports: list[Any] = []
    original = torch.onnx.export
    monkeypatch.setattr(torch.onnx, "export", lambda *a, **k: exports.append(a) or original(*a, **k))

    def call(batch: int, length: int) -> dict[str, torch.Tensor]:
        mask = torch.ones(batch, length, dtype=torch.int64)
        mask[0, length // 2 + 1 :] = 0
        return {"attention_mask": mask, "input_ids": torch.randint(0, 90, (batch, length))}

    lengths = range(4, 32, 2)
    unit = made(BertModel(config).eval(), *(tt.Call(**call(2 + i % 3, n)) for i, n in enumerate(lengths)))
    built = unit.build()
    assert len(lengths) == 14
    assert len(exports) == 1
    assert len(built.notes) == 1
    for batch, length in ((2, 4), (4, 30), (3, 9)):
        kwargs = call(batch, length)
        actual, expected = built.call(**kwargs), unit.eager(**kwargs)
        assert unit.covers((batch, length), (batch, length))
        assert type(actual) is type(expected)
        assert list(actual) == list(expected)
        for name in expected:
            close(actual[name], expected[name])
    assert actual.hidden_states is None
    assert actual[0] is actual.last_hidden_state
    dumped = json.loads(json.dumps(tt_onnxruntime.tt_dump(built=built, folder=tmp_path)))
    again = tt_onnxruntime.tt_restore(
        unit=unit.unit,
        key=unit.calls.key,
        covers=built.covers,
        dumped=dumped,
        folder=tmp_path,
        device=torch.device("cpu"),
    )
    assert torch.equal(again.call(**kwargs)[0], actual[0])
    again.close()


@pytest.mark.real
def test_convolutions(made: Any, close: Any) -> None:
    """A network whose BatchNorm is folded into the convolution is right in moving batches, one among them, in any layout."""
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, 5)
    )
    for _ in range(3):
        net.train()(torch.randn(4, 3, 16, 16) * 2 + 1)
    unit = made(net, *(tt.Call(torch.randn(n, 3, 16, 16)) for n in (4, 1)))
    built = unit.build()
    for n in (1, 2, 4):
        x = torch.randn(n, 3, 16, 16)
        close(built.call(x), unit.eager(x))
        close(built.call(x.to(memory_format=torch.channels_last)), unit.eager(x))


@pytest.mark.real
def test_lstm(made: Any, close: Any) -> None:
    """A two-layer LSTM returns outputs and both states."""
    unit = made(nn.LSTM(8, 16, num_layers=2, batch_first=True), tt.Call(torch.randn(2, 12, 8)))
    x = torch.randn(2, 12, 8)
    outputs, (hidden, cell) = unit.build().call(x)
    expected, (expected_hidden, expected_cell) = unit.eager(x)
    for actual, wanted in ((outputs, expected), (hidden, expected_hidden), (cell, expected_cell)):
        close(actual, wanted)


@pytest.mark.real
def test_the_core_tunes_with_it() -> None:
    """`tt.tune` installs it: hits are counted, a length beyond the recorded and another dtype are counted falls."""
    module = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8)).eval()
    samples = [torch.randn(n, 16) for n in (8, 3)]
    result = tt.tune(module, samples, strategy=tt.OneBackendStrategy("onnxruntime"))
    assert [choice.candidate.name for choice in result.plan.choices] == ["onnxruntime"]
    tt.stats(module, hits=True)
    with torch.no_grad():
        module(torch.randn(5, 16))
        with pytest.warns(tt.FallbackWarning):
            fallen = module(torch.randn(9, 16))
    assert fallen.shape == (9, 8)
    (stats,) = tt.stats(module).values()
    assert stats.hits == 1
    assert sum(stats.falls.values()) == 1
    tt.untune(module)


def test_takes_part() -> None:
    """Installed, it is one of the default strategy's candidates on a CPU, and ready."""
    assert "onnxruntime" in tt.default_strategy("cpu").names
    assert "onnxruntime" in {backend.name for backend in tt.backends("cpu").ready}
