"""Writes the table promise x backend of docs/plugins.md from a run: `python tests/testing/promise_table.py`."""

from __future__ import annotations

import datetime as dt
import inspect
import platform
import sys
from collections import defaultdict
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "plugins.md"
BEGIN, END = "<!-- promises: begin -->", "<!-- promises: end -->"
COLUMNS = {
    "eager": "tests/testing/test_contract.py::TestEager",
    "inductor": "plugins/tt_inductor/tests/test_contract.py::TestInductor",
    "inductor (aot)": "plugins/tt_inductor/tests/test_contract.py::TestAot",
    "openvino": "plugins/tt_openvino/tests/test_contract.py::TestOpenVINO",
    "torchscript": "tests/testing/test_contract.py::TestTorchScript",
}


class Collector:
    """Outcomes by class and promise."""

    def __init__(self):
        self.seen = defaultdict(lambda: defaultdict(list))

    def pytest_runtest_logreport(self, report):
        if report.when == "call" or report.outcome != "passed":
            _, cls, name = report.nodeid.split("::")
            why = report.longrepr[2].removeprefix("Skipped: ") if report.skipped else ""
            self.seen[cls][name.partition("[")[0]].append((report.outcome, why))


def promises():
    """Every promise with the first line of its docstring, in the order of the contract's parts."""
    from tt_core.testing import BackendContract

    parts = [part for part in BackendContract.__mro__ if part is not BackendContract]
    return {
        name: inspect.getdoc(test).splitlines()[0]
        for part in parts
        for name, test in vars(part).items()
        if name.startswith("test_")
    }


def cell(outcomes):
    """How a promise went on one backend: kept, kept on some rungs, not asked, or broken."""
    ended = [outcome for outcome, _ in outcomes]
    if "failed" in ended:
        return "**broken**"
    kept = ended.count("passed")
    return "not asked" if not kept else "kept" if kept == len(ended) else f"kept on {kept} of {len(ended)}"


def table(seen):
    """The table, and below it the reasons of what was skipped."""
    classes = {column: node.rpartition("::")[2] for column, node in COLUMNS.items()}
    rows = [
        f"| `{name}` | {text} | " + " | ".join(cell(seen[cls][name]) for cls in classes.values()) + " |"
        for name, text in promises().items()
    ]
    head = f"| promise | in words | {' | '.join(COLUMNS)} |\n|---|---|{'---|' * len(COLUMNS)}"
    return "\n".join(
        [head, *rows, "", "Why something was not asked, in the backends' own words:", "", *reasons(seen, classes)]
    )


def reasons(seen, classes):
    for column, cls in classes.items():
        found = sorted({why for ends in seen[cls].values() for outcome, why in ends if outcome == "skipped"})
        yield f"- **{column}**: " + "; ".join(found) + "."


def main():
    """Runs the classes and writes the page."""
    collector = Collector()
    arguments = [
        "-q",
        "-p",
        "no:cacheprovider",
        "--no-header",
        "-r",
        "f",
        *(str(ROOT / node) for node in COLUMNS.values()),
    ]
    code = pytest.main([f"--rootdir={ROOT}", *arguments], plugins=[collector])
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("torch", "openvino"))
    made = (
        f"From a run on {dt.datetime.now(dt.UTC).date()}, CPU, Python {platform.python_version()}, {versions}, on the quick ladder "
        "(seven rungs; three for aot). *Kept on 6 of 7*: the backend refused a rung, with a reason; *Not asked*: the backend "
        "declares that it does not do this."
    )
    before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n{made}\n\n{table(collector.seen)}\n{END}{after}", "utf-8")
    return code


if __name__ == "__main__":
    sys.exit(main())
