"""A model as OpenVINO's own files, and back: a text of operators and a file of numbers. Both are data, and are checked."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET  # its one weakness, declarations, is refused before it parses

import tt_core as tt
from tt_openvino.probe import core, one_line

MODEL = "model.xml"
WEIGHTS = "model.bin"

_LARGEST = 1 << 26
"""Bytes of a model without its weights."""
_DEEPEST = 64
"""Levels of elements; of bodies within bodies a few each."""
_OPSET = re.compile(r"opset(\d{1,2})")
_STATEFUL = {"Assign", "ReadValue"}
_DECLARES = re.compile(rb"<!", re.ASCII)


def write(model: Any, folder: Path) -> None:
    """Writes a model, in its own precision, into an existing folder."""
    import openvino as ov

    ov.serialize(model, folder / MODEL, folder / WEIGHTS)


def read(folder: Path) -> Any:
    """The model in a folder, checked; its weights are read into memory.

    Raises:
        BuildRefusedError: too large, malformed, or more than OpenVINO's own operators on the one file of weights.
    """
    text = folder / MODEL
    if text.stat().st_size > _LARGEST:
        raise tt.BuildRefusedError(f"its model has {text.stat().st_size} bytes, more than {_LARGEST}")
    content = text.read_bytes()
    check(content, (folder / WEIGHTS).stat().st_size)
    try:
        return core().read_model(content.decode(), _weights(folder / WEIGHTS))
    except (RuntimeError, UnicodeDecodeError) as error:
        raise tt.BuildRefusedError(f"OpenVINO does not read its model: {one_line(error)}") from error


def _weights(path: Path) -> Any:
    """A file as an OpenVINO tensor of bytes."""
    import numpy as np
    import openvino as ov

    return ov.Tensor(np.fromfile(path, dtype=np.uint8))


def check(content: bytes, weight_bytes: int) -> None:
    """Holds that a model has OpenVINO's own operators only, no state, and constants inside of its one file of weights.

    Args:
        content: the XML.
        weight_bytes: length of the file of weights.

    Raises:
        BuildRefusedError: it is not so.
    """
    if _DECLARES.search(content):
        raise tt.BuildRefusedError("its model declares entities, which OpenVINO's own never do")
    try:
        root = ET.fromstring(content)  # noqa: S314  no declarations are left to expand
    except ET.ParseError as error:
        raise tt.BuildRefusedError(f"its model is no XML: {error}") from error
    if root.tag != "net" or root.get("version") not in {"10", "11"}:
        raise tt.BuildRefusedError("its model is no IR of version 10 or 11")
    for layer in _layers(root, _DEEPEST):
        _check_layer(layer, weight_bytes)


def _layers(element: Any, levels: int) -> Iterator[Any]:
    """The layers of a net and of the bodies inside them."""
    if levels == 0:
        raise tt.BuildRefusedError("its model is nested too deep")
    for child in element:
        if child.tag == "layer":
            yield child
        yield from _layers(child, levels - 1)


def _check_layer(layer: Any, weight_bytes: int) -> None:
    kind, version = str(layer.get("type")), str(layer.get("version"))
    opset = _OPSET.fullmatch(version)
    if opset is None or not 1 <= int(opset[1]) <= newest_opset():
        raise tt.BuildRefusedError(f"its model asks for {kind} of {version[:40]!r}, which is not OpenVINO's own")
    if kind in _STATEFUL:
        raise tt.BuildRefusedError(f"its model keeps state ({kind})")
    if kind == "Const":
        offset, size = _place(layer)
        if offset < 0 or size < 0 or offset + size > weight_bytes:
            raise tt.BuildRefusedError("its model reads weights outside of its file")


def _place(layer: Any) -> tuple[int, int]:
    """Offset and size of a constant; what does not say them is refused as lying outside."""
    data = layer.find("data")
    texts = [] if data is None else [str(data.get(name)) for name in ("offset", "size")]
    if len(texts) < 2 or not all(text.isascii() and text.isdigit() for text in texts):  # noqa: PLR2004
        return -1, -1
    return int(texts[0]), int(texts[1])


def newest_opset() -> int:
    """The number of the newest set of operators that the installed OpenVINO has."""
    import openvino as ov

    return max(int(name.removeprefix("opset")) for name in vars(ov) if _OPSET.fullmatch(name))
