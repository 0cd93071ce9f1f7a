"""What a file is that `tt.save` did not write, told by its first bytes: nothing of it is opened."""

from __future__ import annotations

import re

LOOKED_AT = 4096
"""Bytes that are looked at."""
_LEGACY = b"\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
"""The number that PyTorch before 1.6 wrote first, as a pickle."""
_PROTOCOL_2 = re.compile(rb"\x80[\x02-\x0f]")
_PROTOCOL_0 = re.compile(rb"\(?(c[\w.]+\n[\w.]+\n|[ldt]p?\d*\n|[}\]]q|[SVIFL][^\n]*\n)")
_LENGTH = 8  # bytes of the length that a safetensors file begins with
_TUNE = "construct the model, load its weights the usual way, tune it, and write it with tt.save"


def what_is(head: bytes) -> str:  # noqa: PLR0911  one line a kind
    """A sentence about a file that begins with `head`, and what to do instead."""
    if not head:
        return "the file is empty"
    if head.startswith(b"PK"):
        if b"data.pkl" in head:
            return f"it is a PyTorch checkpoint (torch.save), which holds a pickle; nothing is unpickled here: {_TUNE}"
        return f"it is a zip archive; tt.load opens no archives: {_TUNE}"
    if _LEGACY in head[:64]:
        return f"it is a PyTorch checkpoint of the old kind, which is a pickle; nothing is unpickled here: {_TUNE}"
    if _PROTOCOL_2.match(head) or _PROTOCOL_0.match(head):
        return f"it is a pickle, which can run anything when it is opened; nothing is unpickled here: {_TUNE}"
    if head[_LENGTH : _LENGTH + 1] == b"{" and int.from_bytes(head[:_LENGTH], "little") < 1 << 40:
        return "it is a safetensors file, which holds weights only: load it into the model with safetensors, then tune"
    if head.lstrip()[:1] in {b"{", b"["}:
        return "it is a JSON text: a plan goes to tt.apply, and tt.load takes what tt.save wrote"
    if _is_text(head):
        return "it is a text: tt.load takes what tt.save wrote"
    return "it is of no known kind: tt.load takes what tt.save wrote"


def _is_text(head: bytes) -> bool:
    try:
        text = head.decode("utf-8", "ignore")
    except ValueError:  # pragma: no cover  "ignore" leaves none
        return False
    return len(text.encode()) > 0.9 * len(head) and all(letter.isprintable() or letter.isspace() for letter in text)
