"""Promises about files: what is dumped is restored, and holds nothing that it should not."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from tt_core.errors import BuildRefusedError
from tt_core.testing.contract.base import Base
from tt_core.testing.contract.shop import Made, Shop
from tt_core.values import Built, Payload

_CODE = (b"\x7fELF", b"MZ", b"\xcf\xfa\xed\xfe", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05", b"#!")
"""How native code, scripts and pickles begin."""
_SHORT = 6


class Dump(Base):
    """What tt_dump writes and tt_restore reads."""

    def test_restored_is_as_built(self, shop: Shop, main: Made, tmp_path: Path) -> None:
        """What tt_dump wrote, and its answer after a round trip through JSON, make a built that is right again."""
        dumped = json.loads(json.dumps(_dumped(shop, main, tmp_path)))
        with torch.no_grad():
            restored = shop.hook(
                "tt_restore",
                backend=shop.backend.name,
                unit=main.unit,
                key=main.calls.key,
                covers=main.ready.covers,
                dumped=dumped,
                folder=tmp_path,
                device=shop.device,
                inner=main.ready.inner,
            )
        assert isinstance(restored, Built)
        assert restored.weights <= main.ready.weights
        for call in main.recorded:
            shop.same(shop.eager(main, call), shop.run(main, restored.call, call), "restored")
        restored.close()

    def test_files_hold_what_they_may(self, shop: Shop, main: Made, tmp_path: Path) -> None:
        """Payload.DATA is no code and no pickle; no file and no answer holds a path or the machine's name."""
        text = json.dumps(_dumped(shop, main, tmp_path)).encode()
        files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        host = socket.gethostname()
        names = [str(tmp_path), *([host] if len(host) >= _SHORT else [])]
        told = [name for name in names if any(name.encode() in content for content in (text, *files.values()))]

        assert not told
        if shop.backend.payload is Payload.DATA:
            assert [path.name for path, content in files.items() if content.startswith(_CODE)] == []


def _dumped(shop: Shop, made: Made, folder: Path) -> Mapping[str, Any]:
    """tt_dump's answer; skips where there is none to have, with the reason."""
    if shop.backend.payload is Payload.NONE:
        pytest.skip(f"{shop.backend.name} declares Payload.NONE: it is built anew when a plan is loaded")
    try:
        answer = shop.hook("tt_dump", backend=shop.backend.name, built=made.ready, folder=folder)
    except BuildRefusedError as refused:
        pytest.skip(f"tt_dump refuses: {refused.reason}")
    assert isinstance(answer, Mapping)
    found: Mapping[str, Any] = answer
    return found
