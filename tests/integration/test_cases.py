"""The cases on real backends: right everywhere, and really tuned wherever a backend can."""

from __future__ import annotations

import functools
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

import tt_core as tt
from tt_core.plugins import Plugins

ROOT = Path(__file__).resolve().parents[2]


def _glue() -> ModuleType:
    """`tests/cases/glue.py`, loaded once for all tests."""
    if "tt_cases_glue" not in sys.modules:
        spec = importlib.util.spec_from_file_location("tt_cases_glue", ROOT / "tests" / "cases" / "glue.py")
        sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules["tt_cases_glue"]


glue = _glue()
pytestmark = [
    pytest.mark.filterwarnings("ignore::tt_core.errors.FallbackWarning"),  # some checks leave what was tuned
    pytest.mark.filterwarnings("ignore:Sparse invariant checks"),  # torch says it once a process
]
DEFAULT = "default"
SETTINGS = tt.Settings(unit_race_s=0.2, pass_race_s=0.2)
AT_LEAST = {"inductor": 28}
"""Cases that a backend must really run."""
TABLE: dict[tuple[str, str], str] = {}
"""(case, backend) -> what became of it, filled as the tests run."""


@pytest.fixture(autouse=True)
def one_thread():
    """The cases are tiny: several threads would spin more than they compute; the count is put back."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def declared() -> list[str]:
    """Backends of the installed plugins that keep results and know the CPU; layers only stand on others."""
    found = Plugins.load().backends.values()
    keeping = [b for b in found if b.fidelity <= tt.Fidelity.CLOSE and not b.layer and b.name != "eager"]
    return sorted(b.name for b in keeping if b.devices & {"cpu", "*"})


BACKENDS = declared()


@functools.cache
def ready() -> dict[str, str]:
    """Backends that run on this CPU; for the others the reason, behind a "no"."""
    asked = tt.backends("cpu")
    return {b.name: "" for b in asked.ready} | {r.name: f"no {r.name}: {r.reason}" for r in asked.refused}


def judged(name: str, backend: str, **options):
    """One case with one backend forced, or with the default strategy: the harness's judgement, and the object.

    Between tuning and the harness's own calls four threads run the dataset at once, where eager could.
    """
    missing = ready().get(backend, "") if backend != DEFAULT else ""
    if missing:
        pytest.skip(missing)
    case, objects = glue.CASES[name], []

    def tune(obj, dataset):
        strategy = None if backend == DEFAULT else tt.OneBackendStrategy(tt.Candidate.of(backend, **options))
        result = tt.tune(obj, dataset, strategy=strategy, settings=SETTINGS)
        objects.append(obj)
        if name not in glue.UNSHARED:
            reference, data = case.make()
            want = glue.harness.run(reference, data)
            for got in glue.at_once(obj, [case.make()[1] for _ in range(4)], rounds=2):
                glue.lib.close(want, got, case.rtol, case.atol)
        return result

    return glue.judge(case, tune), objects[0]


def really(found, backend: str) -> bool:
    """Whether every call was a hit, and no hit was eager in disguise."""
    return found.served and not found.eager and (backend != "inductor" or found.compiled > 0)


@pytest.mark.real
@pytest.mark.parametrize(
    ("backend", "name", "options"),
    [
        ("inductor", "output_fed_back_as_input", {"mode": "jit"}),
        ("inductor", "optional_none_vs_tensor", {"mode": "jit"}),
        ("openvino", "channels_last_and_strided_inputs", {}),
        ("openvino", "fourteen_sequence_lengths", {}),
    ],
)
def test_a_backend_really_runs_a_case(backend, name, options):
    """A few cases on each backend of the mission: right, every call a hit, and nothing of it eager."""
    if backend not in BACKENDS:
        pytest.skip(f"no {backend}")
    found, _ = judged(name, backend, **options)
    assert found.fails == []
    assert really(found, backend), found.why


@pytest.mark.long
@pytest.mark.parametrize("backend", [DEFAULT, *BACKENDS])
@pytest.mark.parametrize("name", glue.CASES)
def test_every_case_on_every_backend(name, backend):
    """Each case is right with each backend forced and with the default strategy, by the backend or by a counted fall;
    and `untune` leaves no dispatcher.
    """
    found, obj = judged(name, backend)
    TABLE[name, backend] = "tuned" if really(found, backend) else found.why
    assert found.fails == []
    assert found.counted
    assert not found.unsaid, found.why
    tt.untune(obj)
    assert not any("forward" in vars(module) for module in obj.modules())


@pytest.mark.long
@pytest.mark.parametrize("name", ["greedy_generation_loop", "one_block_called_with_three_shapes"])
def test_the_search_over_depths_keeps_a_case(name):
    """`auto_tune` with everything left to itself leaves a right object, whatever it installs."""
    found = glue.judge(glue.CASES[name], lambda obj, dataset: tt.auto_tune(obj, dataset, settings=SETTINGS))
    assert found.fails == []
    assert found.counted


@pytest.mark.long
def test_the_table(capsys):
    """The table of cases and backends is whole and shows how many each backend really runs."""
    columns = [DEFAULT, *BACKENDS]
    if len(TABLE) < len(glue.CASES):
        pytest.skip("the other tests of this file were not run")
    text = as_table(columns)
    path = ROOT / "build" / "cases.md"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, "utf-8")
    with capsys.disabled():
        print(f"\n{text}")
    for backend, least in AT_LEAST.items():
        cells = [TABLE[key] for key in TABLE if key[1] == backend]
        assert not cells or cells.count("tuned") >= least, text


def as_table(columns: list[str]) -> str:
    """The cells as Markdown; reasons that are long stand below as notes."""
    notes: list[str] = []

    def cell(name: str, backend: str) -> str:
        found = TABLE.get((name, backend), "not run")
        if found in {"tuned", "not run"}:
            return found
        if found not in notes:
            notes.append(found)
        return f"({notes.index(found) + 1})"

    rows = [[name, *(cell(name, backend) for backend in columns)] for name in glue.CASES]
    counts = [sum(TABLE.get((name, backend)) == "tuned" for name in glue.CASES) for backend in columns]
    rows.append([f"really tuned, of {len(glue.CASES)}", *map(str, counts)])
    lines = ["| " + " | ".join(row) + " |" for row in [["case", *columns], ["---"] * (len(columns) + 1), *rows]]
    return "\n".join([*lines, "", *(f"{number}. {note}" for number, note in enumerate(notes, 1)), ""])
