"""Copies that wake no threads: the same bits, and as many threads as before."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch

from tt_core import quiet
from tt_core.trees import replica

LARGE = 1 << 20
BATCH = torch.arange(24.0).reshape(2, 3, 2, 2)
THREADS = Path("/proc/self/task")
VIEWS = {
    "one of a batch": BATCH[1:],
    "channels last": BATCH.to(memory_format=torch.channels_last),
    "transposed": torch.arange(6).reshape(2, 3).t(),
    "with gaps": torch.arange(12.0).reshape(3, 4)[:, ::2],
    "expanded": torch.arange(3.0).expand(4, 3),
    "conjugated": torch.tensor([1 + 2j, 3 - 1j]).conj(),
    "negated": torch.tensor([1 + 2j, 3 - 1j]).conj().imag,
    "a scalar": torch.tensor(3.0, dtype=torch.bfloat16),
    "empty": torch.empty(0, 3),
}


@pytest.mark.parametrize("view", VIEWS)
def test_a_dense_copy_has_the_values_and_a_memory_of_its_own(view):
    """Whatever the strides: values and type are the source's, the storage holds nothing else."""
    source = VIEWS[view]
    made = quiet.dense_copy(source)
    assert torch.equal(made, source)
    assert made.dtype == source.dtype
    assert made.untyped_storage().nbytes() == source.numel() * source.element_size()
    made.zero_()
    assert source.numel() == 0 or source.abs().sum() != 0


def test_a_storage_is_copied_whole():
    """All bytes, in another place."""
    source = torch.arange(1000)
    made = torch.empty(0, dtype=torch.int64).set_(quiet.storage_copy(source.untyped_storage()))
    assert torch.equal(made, source)
    assert made.data_ptr() != source.data_ptr()


@pytest.mark.skipif(not THREADS.exists() or torch.get_num_threads() < 2, reason="counts the threads of a Linux process")
def test_no_thread_of_torch_wakes_up():
    """In a new thread, whose helpers torch has not started yet, a replica starts none; torch's own copy does."""
    batch = torch.empty(3, LARGE)
    started: dict[str, int] = {}

    def count() -> None:
        for name, copied in {
            "whole": lambda: replica(batch),
            "part": lambda: replica(batch[0]),
            "torch": batch.clone,
        }.items():
            before = set(THREADS.iterdir())
            copied()
            started[name] = len(set(THREADS.iterdir()) - before)

    thread = threading.Thread(target=count)
    thread.start()
    thread.join()
    assert started["whole"] == started["part"] == 0
    assert started["torch"] > 0
