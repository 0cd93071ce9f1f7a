"""Whole models: a BERT, a convolutional network, an LSTM, a T5 encoder, in moving sizes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import tt_openvino
from torch import nn

import tt_core as tt


@pytest.mark.real
def test_bert(made: Any, close: Any, tmp_path: Path) -> None:
    """A BERT with moving batch and sequence returns its `ModelOutput`, and is right for sizes between the recorded."""
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64
    )
    model = BertModel(config).eval()

    def call(batch: int, length: int) -> dict[str, torch.Tensor]:
        mask = torch.ones(batch, length, dtype=torch.int64)
        mask[0, length // 2 + 1 :] = 0
        return {"attention_mask": mask, "input_ids": torch.randint(0, 100, (batch, length))}

    unit = made(model, tt.Call(**call(4, 16)), tt.Call(**call(2, 5)))
    built = unit.build()
    for batch, length in ((4, 16), (2, 5), (3, 9)):
        kwargs = call(batch, length)
        actual, expected = built.call(**kwargs), unit.eager(**kwargs)
        assert type(actual) is type(expected)
        assert list(actual) == list(expected)
        for name in expected:
            close(actual[name], expected[name])
    assert actual.hidden_states is None
    assert actual[0] is actual.last_hidden_state
    dumped = json.loads(json.dumps(tt_openvino.tt_dump(built=built, folder=tmp_path)))
    again = tt_openvino.tt_restore(
        backend="openvino",
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
def test_t5_encoder(made: Any, close: Any) -> None:
    """A T5 encoder: integer buckets inside, a mask, a moving sequence."""
    from transformers import T5Config, T5EncoderModel

    config = T5Config(vocab_size=100, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4)
    model = T5EncoderModel(config).eval()
    unit = made(model, *(tt.Call(input_ids=torch.randint(0, 100, (1, n))) for n in (24, 6)))
    built = unit.build()
    for n in (24, 6, 13):
        ids = torch.randint(0, 100, (1, n))
        close(built.call(input_ids=ids)[0], unit.eager(input_ids=ids)[0])


@pytest.mark.real
def test_resnet(made: Any, close: Any) -> None:
    """A small ResNet in moving batches, one among them."""
    from transformers import ResNetConfig, ResNetModel

    config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")
    model = ResNetModel(config).eval()
    unit = made(model, *(tt.Call(torch.randn(n, 3, 32, 32)) for n in (4, 1)))
    built = unit.build()
    for n in (1, 2, 4):
        x = torch.randn(n, 3, 32, 32)
        close(built.call(x).pooler_output, unit.eager(x).pooler_output)


def test_lstm(made: Any, close: Any) -> None:
    """A two-layer LSTM returns outputs and both states."""
    module = nn.LSTM(8, 16, num_layers=2, batch_first=True)
    unit = made(module, tt.Call(torch.randn(2, 12, 8)))
    x = torch.randn(2, 12, 8)
    outputs, (hidden, cell) = unit.build().call(x)
    expected, (expected_hidden, expected_cell) = unit.eager(x)
    for actual, wanted in ((outputs, expected), (hidden, expected_hidden), (cell, expected_cell)):
        close(actual, wanted)
