"""Our ONNX Runtime built against `onnxruntime` used by hand, and the backends of a CPU side by side, in one run a model.

By hand means the way that its documentation shows: `torch.onnx.export(dynamo=True)`, an `InferenceSession` as it comes,
`session.run` with NumPy arrays. Axes that move in the samples are dynamic in both. Everything runs whole models, without
tt_core's dispatcher.

Goals, lower ends of 99 % intervals:

| what | goal |
|---|---|
| time(by hand) / time(ours), each model | at least 0.97 |
| time(by hand) / time(ours), a toy of two layers: what a call costs | at least 1 |

By hand, the session's threads spin on for up to 60 ms after a call (CPU time of the process, looked at every 20 ms), on a core
that whoever runs next then lacks: 100 ms pass after each of its blocks before anybody else is measured. Beside it, without a
goal, each backend's time as a share of eager's: with `--table` all of them.

    python benchmarks/onnxruntime.py [--quick] [--model NAME] [--table] [--json PATH]

`--quick` takes the toy and one small model. Exits with 1 when a goal is missed.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).resolve().parent]
# this file bears the name of the package that it measures: its folder goes to the end, for `_backends`
sys.path.append(str(Path(__file__).resolve().parent))

from _backends import ASLEEP_S, onnxruntime_by_hand, run  # noqa: E402

if __name__ == "__main__":
    sys.exit(run(__doc__ or "", "onnxruntime", {"by hand": onnxruntime_by_hand}, (0.97, 1.0), rest_s=ASLEEP_S))
