"""The head of a file: its first bytes, its manifest's text, and the table of its payloads, read strictly."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

from tt_core.errors import StoreError
from tt_core.forms.reading import Json, as_fields, as_int, as_list, as_text
from tt_core.store.recognise import what_is
from tt_core.values import valued

KIND = "tt_core model"
FORMAT = 1
"""Of the manifest; a newer one is refused."""
MAGIC = b"TTCORE\x00\x01"
ALIGN = 64
PAYLOADS = 100_000
DEEPEST = 96
"""Levels of nested lists and tables in a manifest."""
KINDS = ("data", "code", "weights")


@valued
class Payload:
    """A row of the table: where a payload lies behind the manifest, its hash, and what it is: data, code or weights."""

    offset: int
    size: int
    sha256: str
    kind: str


def recognised(head: bytes) -> None:
    """Whether a file begins as ours do."""
    known = head[: len(MAGIC) - 1] == MAGIC[:-1]
    if known and head[len(MAGIC) - 1 : len(MAGIC)] > MAGIC[-1:]:
        raise StoreError(_newer("layout", head[len(MAGIC) - 1], MAGIC[-1]))
    if not head.startswith(MAGIC):
        raise StoreError(what_is(head) if not known else "its first bytes are damaged")


def parsed(text: bytes) -> dict[str, Json]:
    """The manifest; its format is one that this version reads."""
    try:
        # decoded here: given bytes, json would look for UTF-16 and UTF-32 too
        found = json.loads(
            text.decode("ascii"), object_pairs_hook=_once, parse_constant=_no_number, parse_float=_finite
        )
    except StoreError:
        raise
    except (ValueError, RecursionError, MemoryError) as error:
        raise StoreError(f"its manifest is no JSON ({type(error).__name__}): the file is damaged") from error
    if not isinstance(found, dict) or found.get("kind") != KIND:
        raise StoreError(f"its manifest is not that of a {KIND}: tt.load takes what tt.save wrote")
    format_ = as_int(found.get("format"), "its format")
    if format_ > FORMAT:
        raise StoreError(_newer("format", format_, FORMAT))
    if format_ < FORMAT:
        raise StoreError(f"its format is {format_}, which was never written: the file is damaged")
    _shallow(found)
    return found


def _newer(what: str, theirs: int, ours: int) -> str:
    return f"its {what} is {theirs}, and this tt_core reads up to {ours}: update tt-core, or tune again with this one"


def _once(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise StoreError("its manifest says one thing twice: the file is damaged")
    return found


def _no_number(name: str) -> Json:
    raise StoreError(f"its manifest holds {name}, which is no number: the file is damaged")


def _finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _no_number(text[:20])


def _shallow(form: Json) -> None:
    level = [form]
    for _ in range(DEEPEST):
        below = [each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list)]
        level = [part for parts in below for part in parts]
        if not level:
            return
    raise StoreError(f"its manifest is nested more than {DEEPEST} levels deep")


def table_of(manifest: Mapping[str, Json]) -> tuple[Payload, ...]:
    """The payloads: one after the other, each on its place."""
    found, end = [], 0
    for index, row in enumerate(as_list(manifest.get("payloads"), "its table of payloads", PAYLOADS)):
        where = f"payload {index}"
        fields = as_fields(row, where, ("offset", "size", "sha256", "kind"))
        payload = Payload(
            offset=as_int(fields["offset"], f"the offset of {where}"),
            size=as_int(fields["size"], f"the size of {where}", 0, 1 << 50),
            sha256=as_text(fields["sha256"], f"the hash of {where}", 64),
            kind=as_text(fields["kind"], f"the kind of {where}", 16),
        )
        if payload.kind not in KINDS:
            raise StoreError(f"{where} is of kind {payload.kind!r}, which is none of {', '.join(KINDS)}")
        if payload.offset != end:
            raise StoreError(f"{where} does not follow the one before it: the file is damaged")
        end = aligned(payload.offset + payload.size)
        found.append(payload)
    return tuple(found)


def aligned(offset: int) -> int:
    """The next place where a payload may begin."""
    return -(-offset // ALIGN) * ALIGN
