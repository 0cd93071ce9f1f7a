"""What a unit must be like for a built to fit it: its classes, settings and tensors, and a hash of its weights."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

from torch import nn

from tt_core.errors import StoreError
from tt_core.forms.reading import Json, as_fields, as_list, as_pair, as_text
from tt_core.install.contents import contents

MODULES = 50_000
_PLAIN = (bool, int, float)
_DIGITS = 128
"""Characters of a setting or a size that are written down."""
_TRAINING = "training"


def structure_form(module: nn.Module, without: Sequence[str] = ()) -> Json:
    """The class of every module inside with its plain public settings, and every tensor's name, dtype and sizes.

    Args:
        module: the unit's.
        without: dotted names of state that calls change.
    """
    changing = frozenset(without)
    named = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    return {
        "modules": [
            [path, type(each).__qualname__, [list(pair) for pair in _settings(path, each, changing)]]
            for path, each in module.named_modules(remove_duplicate=False)
        ],
        "tensors": sorted([name, _kind(tensor)] for name, tensor in named),
    }


def weights_print(module: nn.Module) -> str:
    """A hash of the values of all parameters and buffers; reads every byte once."""
    digest = hashlib.blake2b(digest_size=16)
    for name, content in sorted(contents(module).items()):
        digest.update(name.encode("utf-8", "surrogatepass") + b"\x00" + content)
    return digest.hexdigest()


def read_structure(form: Json, where: str) -> Json:
    """The form itself, once it is sure that it is one.

    Raises:
        StoreError: it is none.
    """
    fields = as_fields(form, where, ("modules", "tensors"))
    for row in as_list(fields["modules"], f"the modules of {where}", MODULES):
        if len(as_list(row, f"a module of {where}", 3)) != 3:  # noqa: PLR2004  path, class, settings
            raise StoreError(f"a module of {where} is not a list of three")
        as_text(row[0], f"the path of a module of {where}")
        as_text(row[1], f"the class of a module of {where}")
        _texts(row[2], f"the settings of a module of {where}")
    _texts(fields["tensors"], f"the tensors of {where}")
    return form


def _texts(form: Json, where: str) -> None:
    for pair in as_list(form, where):
        for text in as_pair(pair, where):
            as_text(text, where)


def difference(then: Json, now: Json) -> str:
    """The first difference between two structures as a sentence, empty where there is none."""
    if then == now:
        return ""
    return _of_modules(then["modules"], now["modules"]) or _of_tensors(dict(then["tensors"]), dict(now["tensors"]))


def _of_modules(then: Sequence[Any], now: Sequence[Any]) -> str:
    if then and now and then[0][1] != now[0][1]:
        return f"it is a {now[0][1]}, and was a {then[0][1]}: load into an object of the same architecture"
    theirs, ours = ({path: (kind, settings) for path, kind, settings in each} for each in (then, now))
    for path in sorted(theirs.keys() ^ ours.keys()):
        what = f"it has a module {path!r} that was not there" if path in ours else f"it has no module {path!r}"
        return f"{what}: load into an object of the same architecture"
    for path, (kind, settings) in theirs.items():
        if kind != ours[path][0]:
            return f"its {path!r} is a {ours[path][0]}, and was a {kind}: load into an object of the same architecture"
        if settings != ours[path][1]:
            return _of_settings(path, dict(settings), dict(ours[path][1]))
    return "" if list(then) == list(now) else "its modules come in another order"


def _of_settings(path: str, then: dict[str, str], now: dict[str, str]) -> str:
    if then.get(_TRAINING) != now.get(_TRAINING):
        place, mode = (f"its {path!r}" if path else "it"), "eval" if then.get(_TRAINING) == "bool False" else "train"
        return f"{place} is not in {mode} mode, as it was when it was tuned: call .{mode}() first"
    for name in sorted(then.keys() | now.keys()):
        if then.get(name) != now.get(name):
            place = f"{path}.{name}" if path else name
            return (
                f"its setting {place!r} is {_value(now.get(name))}, and was {_value(then.get(name))}: "
                "construct the object with the settings that it was tuned with"
            )
    return f"the settings of {path!r} come in another order"


def _of_tensors(then: dict[str, str], now: dict[str, str]) -> str:
    for name in sorted(then.keys() | now.keys()):
        if then.get(name) != now.get(name):
            was, found = then.get(name, "not there"), now.get(name, "not there")
            return f"its tensor {name!r} is {found}, and was {was}: load into an object of the same shapes and dtypes"
    return "its tensors are others"


def _value(text: str | None) -> str:
    return "not there" if text is None else text.partition(" ")[2] or text


def _settings(path: str, module: nn.Module, changing: frozenset[str]) -> Iterator[tuple[str, str]]:
    """Public attributes that are plain numbers or flags. Texts are left out: they name places as often as choices."""
    for name, value in sorted(vars(module).items()):
        dotted = f"{path}.{name}" if path else name
        if type(value) in _PLAIN and not name.startswith("_") and dotted not in changing:
            yield name, f"{type(value).__name__} {value!r}"[:_DIGITS]


def _kind(tensor: Any) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"[:_DIGITS]
