"""`python -m tt_core doctor`, `backends` and `cache`: what takes part here, why the rest does not, what is remembered."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from tt_core import __version__, doctor
from tt_core.errors import UsageError
from tt_core.report.words import many
from tt_core.store.cache import open_cache
from tt_core.strategy import as_device, default_strategy
from tt_core.values import EAGER, Plan


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        argv: arguments without the program's name; None: the process's own.

    Returns:
        The exit status: 0; 1 from `doctor` when nothing but eager is ready, and from `cache` when its folder is not used;
        2 for an argument that cannot be used.
    """
    parser = _parser()
    options = parser.parse_args(argv)
    try:
        if options.command == "cache":
            return _cache(options.what)
        return _doctor(as_json=options.json) if options.command == "doctor" else _backends(options.device)
    except UsageError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tt", description="What tt_core can tune with on this machine.")
    parser.add_argument("--version", action="version", version=f"tt-core {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    examined = commands.add_parser("doctor", help="versions, devices, plugins: found, refused and missing, with fixes")
    examined.add_argument("--json", action="store_true", help="the same for programs")
    listed = commands.add_parser("backends", help="what is tried on a device, in order, and who does not take part")
    listed.add_argument("--device", help='such as "cpu" or "cuda:0"; every device of this machine if left out')
    remembered = commands.add_parser("cache", help="plans that earlier runs found, which later ones start from")
    remembered.add_argument("what", choices=["show", "clear"], help="list them, or forget all of them")
    return parser


def _cache(what: str) -> int:
    cache, why = open_cache(make=False)
    if cache is None:
        print(f"{why or 'Plans are not remembered: TT_CACHE_DIR is empty'}.", file=sys.stderr)
        return 1
    if what == "clear":
        print(f"Forgot {many(cache.clear(), 'plan')} in {cache.folder}.")
        return 0
    entries = list(cache.entries())
    size = sum(size for _, size, _ in entries)
    print(f"{many(len(entries), 'plan')} of {size:,} bytes in {cache.folder}, the most recently used first:")
    print("\n".join(f"  {name}  {_planned(plan)}" for name, _, plan in entries) or "  none")
    return 0


def _planned(plan: Plan | None) -> str:
    """One remembered plan in words."""
    if plan is None:
        return "cannot be read: it is ignored"
    facts = ", ".join(f"{name} {plan.environment[name]}" for name in ("torch", "device") if name in plan.environment)
    if plan.eager:
        return f"stays eager ({facts})"
    tuned = [choice for choice in plan.choices if choice.candidate != EAGER]
    units = {path for choice in tuned for path in (choice.members or (choice.unit,))}
    names = ", ".join(sorted({str(choice.candidate) for choice in tuned}))
    return f"{many(len(units), 'unit')} with {names} ({facts})"


def _doctor(*, as_json: bool) -> int:
    facts = doctor.examine()
    print(json.dumps(facts, indent=2) if as_json else doctor.describe(facts))
    return 0 if facts["ok"] else 1


def _backends(device: str | None) -> int:
    here = [found["device"] for found in doctor.devices() if "problem" not in found]
    wanted = here if device is None else [str(as_device(device))]
    print("\n\n".join(_order(name, here) for name in wanted))
    return 0


def _order(device: str, here: Sequence[str]) -> str:
    """The default strategy of one device in words."""
    strategy = default_strategy(device)
    kinds = {name.partition(":")[0] for name in here}
    absent = device.partition(":")[0] not in kinds
    lines = [f"On {device}{' (not on this machine)' if absent else ''}, tried in this order:"]
    lines += [f"  {place}. {name}" for place, name in enumerate(strategy.names, 1)]
    if strategy.refused:
        lines += ["Did not take part:"]
    for refusal in strategy.refused:
        lines += doctor.refusal_lines(refusal.name, refusal.reason, doctor.fix(refusal))
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
