"""`python -m tt_core doctor` and `python -m tt_core backends`: what takes part here, and why the rest does not."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from tt_core import __version__, doctor
from tt_core.errors import UsageError
from tt_core.strategy import as_device, default_strategy


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        argv: arguments without the program's name; None: the process's own.

    Returns:
        The exit status: 0; 1 from `doctor` when nothing but eager is ready; 2 for an argument that cannot be used.
    """
    parser = _parser()
    options = parser.parse_args(argv)
    try:
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
    return parser


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
