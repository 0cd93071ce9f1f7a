"""`generate()` of a tuned transformers model gives the very tokens of the untuned one, with dynamic and static caches."""

from __future__ import annotations

import warnings

import pytest
import torch

import tt_core as tt
from tt_core.testing.fakes import Renamed

SETTINGS = tt.Settings(plugins=(Renamed("live"),), unit_race_s=0.5, pass_race_s=0.5)


@pytest.fixture(scope="module")
def model():
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        vocab_size=64,
        max_position_embeddings=64,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return LlamaForCausalLM(config).eval()


def tokens(model, cache: str | None) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # sizes and cache objects that no sample had fall back, and say so
        return model.generate(
            torch.arange(5)[None],
            attention_mask=torch.ones(1, 5, dtype=torch.long),
            max_new_tokens=8,
            do_sample=False,
            pad_token_id=0,
            cache_implementation=cache,
            disable_compile=True,
        )


@pytest.mark.parametrize("cache", [None, "static"], ids=["dynamic cache", "static cache"])
@pytest.mark.parametrize("units", [0, 3])
def test_generate_keeps_its_tokens(model, cache, units, monkeypatch):
    """Whole model, its parts, and parts of layers: the tokens are kept, calls with a cache fall where they must."""
    monkeypatch.setenv("TT_DISABLE_AUTOLOAD", "1")
    want = tokens(model, cache)
    samples = [{"input_ids": torch.arange(n)[None] % 64, "use_cache": False} for n in (1, 5, 9)]
    result = tt.tune(model, samples, units=units, strategy=tt.OneBackendStrategy("live"), settings=SETTINGS)
    assert result.changed, result.headline
    tt.stats(model, hits=True)
    got = tokens(model, cache)
    found = tt.stats(model)
    assert torch.equal(got, want)
    assert sum((unit.hits or 0) + unit.fell for unit in found.values()) > 0
    tt.untune(model)
    assert torch.equal(tokens(model, cache), want)
