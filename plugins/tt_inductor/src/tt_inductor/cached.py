"""Running what Dynamo has compiled, and compiling nothing: a call that no program fits runs as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def run_only(entry: Callable[..., Any], region: int | None) -> Callable[..., Any]:
    """`entry` with its compiled programs.

    The same as `torch._dynamo.run`, which knows no regions and costs 7 µs a call more.

    Args:
        entry: the function that was compiled.
        region: the number of its isolated cache; None where torch has none.
    """
    from torch._C._dynamo import eval_frame

    set_frame = eval_frame.set_eval_frame
    set_region = _region_setter(eval_frame, region)
    keep = torch._C._ForceDispatchKeyGuard
    included, excluded = torch._C._dispatch_tls_local_include_set, torch._C._dispatch_tls_local_exclude_set
    depth, undo = (
        torch._C._functorch.get_dynamic_layer_stack_depth,
        torch._C._functorch.pop_dynamic_layer_stack_and_undo_to_depth,
    )

    def run(*args: Any, **kwargs: Any) -> Any:
        layers = depth()
        outer = set_frame(None)  # Dynamo's own order: nothing of ours is looked at while the state is half set
        outer_region = set_region(region)
        try:
            with keep(included(), excluded()):
                set_frame(False)
                try:
                    return entry(*args, **kwargs)
                finally:
                    set_frame(None)
        finally:
            undo(layers)  # a program that raises leaves its functorch layers behind
            set_region(outer_region)
            set_frame(outer)

    return run


def _region_setter(eval_frame: Any, region: int | None) -> Callable[[int | None], int | None]:
    setter: Callable[[int | None], int | None] | None = getattr(
        eval_frame, "set_eval_frame_isolate_recompiles_id", None
    )
    if setter is None or region is None:
        return lambda number: number
    return setter
