"""The dataset, read once and normalised."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

import attrs
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from tt_core import trees
from tt_core.errors import KindError, SampleError, UsageError
from tt_core.samples.extremes import Sizes, choose
from tt_core.samples.normal import call_of, prefix_hint, signature_of, tensors_in, whole_hint
from tt_core.state import rng_kept
from tt_core.values import Call, frozen

READ = 256
"""How many samples of a dataset are looked at."""
ONE_SHAPE = (
    "the samples have one shape: OTHER SHAPES RUN EAGER; give samples of the smallest and the largest shapes "
    "you will call with to cover those between, or declare the axes that move with dynamic_shapes="
)
"""What the user must know who gave samples of one shape and declared no axis."""


@frozen
class Feed:
    """The samples of a tuning run.

    Attributes:
        samples: calls; with an `inference_function` the samples as the user wrote them. Never handed to a model: see `fresh`.
        notes: what the user should know about how the dataset was read.
        weights: one a sample: how much its latency counts.
        inference_function: runs one sample, or None: the object is called.
    """

    samples: tuple[Any, ...]
    notes: tuple[str, ...] = ()
    weights: tuple[float, ...] = ()
    inference_function: Callable[[Any, Any], Any] | None = None

    def fresh(self) -> list[Any]:
        """The samples of one pass, from one deep copy: samples that share tensors share them in the copy too."""
        plain = [(one.args, one.kwargs) if isinstance(one, Call) else one for one in self.samples]
        copies = trees.replica(plain)
        return [
            Call(*copy[0], **copy[1]).weighted(one.weight) if isinstance(one, Call) else copy
            for one, copy in zip(self.samples, copies, strict=True)
        ]

    def run(self, obj: Any, sample: Any) -> Any:
        """What `obj` makes of one sample."""
        if self.inference_function is not None:
            return self.inference_function(obj, sample)
        return obj(*sample.args, **sample.kwargs)

    def each(self, obj: Any) -> Iterator[Any]:
        """Runs one pass, sample by sample, and yields the results; the samples are copied at once.

        Raises:
            SampleError: the object cannot run a sample; says which, and its `__cause__` is the object's own error.
        """
        return self._pass(obj, self.fresh())

    def _pass(self, obj: Any, samples: Sequence[Any]) -> Iterator[Any]:
        for index, sample in enumerate(samples):
            with _Blame(self, obj, index):
                result = self.run(obj, sample)
            yield result


class _Blame:
    """Says which sample a model's error belongs to. Ctrl-C and the like pass as they are."""

    def __init__(self, feed: Feed, obj: Any, index: int) -> None:
        self.feed, self.obj, self.index = feed, obj, index

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: TracebackType | None) -> None:
        if not isinstance(error, Exception):
            return
        count = len(self.feed.samples)
        first_line = next((line.strip() for line in str(error).splitlines() if line.strip()), "no message")
        text = f"sample {self.index} of {count} cannot be run: {type(error).__name__}: {first_line}"
        raise SampleError(text + self._hint()) from error

    def _hint(self) -> str:
        sample = self.feed.samples[self.index]
        signature = signature_of(self.obj)
        if not isinstance(sample, Call) or signature is None or self.feed.inference_function is not None:
            return ""
        return prefix_hint(signature, sample) or whole_hint(signature, sample)


def read(
    dataset: Any, obj: Any, *, inference_function: Callable[[Any, Any], Any] | None = None, max_samples: int = 32
) -> Feed:
    """Reads a dataset once and normalises its samples; generators of random numbers are left as they were.

    Args:
        dataset: a Tensor, Mapping or `Call` is one sample; a list, Dataset, DataLoader, iterator or other iterable
            holds many. At most 256 are read and `max_samples` kept, extremes of shape preferred.
        obj: what will run the samples.
        inference_function: `inference_function(obj, sample)` gets each sample whole.
        max_samples: how many are kept, 1 or more.

    Raises:
        UsageError: an empty dataset, a bare tuple, a sample that does not fit the object's signature.
        KindError: a dataset or a sample of a kind that cannot be used.
    """
    if max_samples < 1:
        raise UsageError(f"max_samples={max_samples}: at least one sample is needed")
    signature = None if inference_function is not None else signature_of(obj)
    if inference_function is None and signature is None:
        name = type(obj).__name__
        raise UsageError(f"{name!r} cannot be called: give inference_function=lambda obj, sample: ...")
    with rng_kept():  # a shuffling DataLoader draws
        kept, count = _kept(_stream(dataset, signature), max_samples)
    if not kept:
        raise UsageError("the dataset is empty: at least one sample is needed")
    return Feed(
        samples=tuple(kept),
        notes=_notes(dataset, kept, count),
        weights=tuple(one.weight if isinstance(one, Call) else 1.0 for one in kept),
        inference_function=inference_function,
    )


def _stream(dataset: Any, signature: inspect.Signature | None) -> Iterator[Any]:
    """The samples of the dataset, at most `READ`, each a call where there is a signature."""
    from_loader = isinstance(dataset, DataLoader)
    for index, sample in enumerate(itertools.islice(_iterate(dataset), READ)):
        place = f"sample {index}"
        yield sample if signature is None else call_of(sample, signature, place, from_loader=from_loader)


def _iterate(dataset: Any) -> Iterable[Any]:
    if isinstance(dataset, torch.Tensor | Mapping | Call):
        return [dataset]
    if isinstance(dataset, tuple):
        count = len(dataset)
        raise UsageError(
            f"the dataset is a tuple of {count}, which could mean two things: write [your_tuple] for one sample with {count} "
            f"arguments, or list(your_tuple) for {count} samples"
        )
    if dataset is None or isinstance(dataset, str | bytes | nn.Module | int | float | type):
        what = repr(dataset)[:40] if not isinstance(dataset, nn.Module) else f"a module ({type(dataset).__name__})"
        raise KindError(f"the dataset is {what}: give a tensor, a mapping, tt.Call(...), or a list of samples")
    if type(dataset).__module__ == "numpy":
        raise KindError(
            "the dataset is a NumPy array: give torch.from_numpy(array) for one sample, or a list of samples"
        )
    if isinstance(dataset, Dataset) and not isinstance(dataset, IterableDataset):
        return (dataset[index] for index in range(_length(dataset)))
    if isinstance(dataset, Iterable):
        return dataset
    if hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__"):
        return (dataset[index] for index in range(len(dataset)))
    kind = type(dataset).__name__
    raise KindError(
        f"a dataset of kind {kind!r} cannot be read: give a tensor, a mapping, tt.Call(...), or a list of samples"
    )


def _length(dataset: Any) -> int:
    if not hasattr(dataset, "__len__"):
        raise KindError(f"the Dataset {type(dataset).__name__!r} has no length: give a DataLoader over it, or a list")
    return len(dataset)


@attrs.define
class _Held:
    """A sample that is kept so far."""

    sample: Any
    sizes: Sizes


def _kept(stream: Iterator[Any], count: int) -> tuple[list[Any], int]:
    """At most `count` of the samples, in their order, and how many were read. Holds no more than it needs."""
    held: list[_Held] = []
    read = 0
    for sample in stream:
        read += 1
        held.append(_Held(sample, tuple(tuple(tensor.shape) for tensor in tensors_in(sample))))
        if len(held) > count:
            held = [held[index] for index in choose([one.sizes for one in held], count)]
    return [one.sample for one in held], read


def _notes(dataset: Any, kept: list[Any], count: int) -> tuple[str, ...]:
    notes: list[str] = []
    if count > len(kept):
        total = len(dataset) if hasattr(dataset, "__len__") else None
        of = f" of {total}" if total is not None and total > count else ""
        notes.append(
            f"{count}{of} samples were read and {len(kept)} kept: the first ones, and those with the smallest and "
            "largest shapes (max_samples=)"
        )
    sizes = {tuple(tuple(tensor.shape) for tensor in tensors_in(sample)) for sample in kept}
    if len(sizes) == 1 and sizes != {()}:  # samples without tensors tell nothing
        notes.append(ONE_SHAPE)
    return tuple(notes)
