"""The dataset: read once, normalised, refused with sentences."""

from __future__ import annotations

import collections

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from tt_core.errors import KindError, SampleError, UsageError
from tt_core.samples import read, refuse
from tt_core.samples.extremes import choose
from tt_core.values import Call


class Two(nn.Module):
    def forward(self, x, mask=None, *, gain=1.0):
        return x * gain if mask is None else x * gain * mask


class One(nn.Module):
    def forward(self, batch):
        return batch["x"] if isinstance(batch, dict) else batch


X = torch.ones(2, 3)


def _calls(dataset, model=None, **options):
    return [(one.args, one.kwargs) for one in read(dataset, model or Two(), **options).samples]


# --- what is one sample, what is many -------------------------------------------------------------------------------


@pytest.mark.parametrize("dataset", [X, {"x": X}, collections.OrderedDict(x=X), Call(X), Call(x=X)])
def test_tensor_mapping_and_call_are_one_sample(dataset):
    """A Tensor, a Mapping and a tt.Call are one sample each."""
    assert len(read(dataset, Two()).samples) == 1


def test_lists_datasets_loaders_and_iterators_hold_many():
    """A list, map-style and iterable Datasets, a DataLoader and a generator hold many samples, in order."""

    class Stream(IterableDataset):
        def __iter__(self):
            return iter([X, X * 2])

    class Sized(Dataset):
        def __len__(self):
            return 2

        def __getitem__(self, index):
            return [X, X * 2][index]

    for dataset in ([X, X * 2], Stream(), Sized(), (x for x in [X, X * 2]), DataLoader(Sized(), batch_size=None)):
        args = [args for args, _ in _calls(dataset)]
        assert [float(a[0].sum()) for a in args] == [6, 12]


def test_a_bare_tuple_names_both_spellings():
    """A bare tuple could mean two things: the error names both."""
    with pytest.raises(UsageError, match=r"\[your_tuple\].*list\(your_tuple\)"):
        read((X, X), Two())


@pytest.mark.parametrize(
    ("dataset", "error", "text"),
    [
        ([], UsageError, "the dataset is empty"),
        (iter(()), UsageError, "the dataset is empty"),
        (None, KindError, "the dataset is None"),
        ("hello", KindError, "the dataset is 'hello'"),
        (nn.Linear(1, 1), KindError, "the dataset is a module"),
        (X.numpy(), KindError, "torch.from_numpy"),
        (object(), KindError, "of kind 'object' cannot be read"),
        ([None], KindError, "sample 0 is None"),
        ([X, {"x": X, "z": X}], UsageError, r"sample 1 has the keys 'x', 'z', which forward\(x, mask, gain\)"),
        ([(X, X, X)], UsageError, r"sample 0 does not fit .*inference_function=lambda m, s: m\(s\[0\]\)"),
        ([Call(X, gain=1, nope=2)], UsageError, "nope"),
    ],
)
def test_what_cannot_be_read_is_a_clear_error(dataset, error, text):
    """Each kind of bad dataset and bad sample has its sentence, before any work."""
    with pytest.raises(error, match=text):
        read(dataset, Two())


def test_an_object_that_cannot_be_called_needs_an_inference_function():
    """A container of modules has no signature: the error says what to give."""
    with pytest.raises(UsageError, match="inference_function"):
        read([X], {"model": Two()})


# --- what a sample means --------------------------------------------------------------------------------------------


def test_a_tuple_is_positional_and_exactly_tuple_and_dict_is_both():
    """(x, m) are positionals; ((x,), {"mask": m}) is a call; ((x,), {1: m}) is not."""
    assert _calls([(X, X)]) == [((X, X), {})]
    assert _calls([((X,), {"mask": X})]) == [((X,), {"mask": X})]
    sample = ((X,), {1: X})
    assert _calls([sample]) == [(sample, {})]


def test_a_mapping_is_keywords_where_they_bind_else_one_argument():
    """Keywords if the signature binds them, else the mapping as the one free argument."""
    assert _calls([{"x": X, "gain": 2.0}]) == [((), {"x": X, "gain": 2.0})]
    assert _calls([{"a": X}], One()) == [(({"a": X},), {})]
    assert _calls([{"batch": X}], One()) == [((), {"batch": X})]


def test_a_list_from_a_default_loader_is_a_tuple():
    """torch collates tuples to lists: they are positionals again. A list of one's own is one argument."""
    loader = DataLoader(TensorDataset(torch.ones(4, 3), torch.zeros(4, 3)), batch_size=2)
    assert [len(args) for args, _ in _calls(loader)] == [2, 2]
    assert [args for args, _ in _calls([[X, X]])] == [([X, X],)]


def test_with_an_inference_function_samples_are_passed_whole():
    """Tuples, strings and calls reach the function as they are."""
    seen = []
    feed = read([("a", "b"), "c"], {"no": "module"}, inference_function=lambda obj, sample: seen.append((obj, sample)))
    obj = object()
    assert list(feed.each(obj)) == [None, None]
    assert seen == [(obj, ("a", "b")), (obj, "c")]


def test_weights_of_calls_are_kept():
    """A weighted call keeps its weight, also in fresh copies."""
    feed = read([Call(X).weighted(3), X], Two())
    assert feed.weights == (3.0, 1.0)
    assert [one.weight for one in feed.fresh()] == [3.0, 1.0]


# --- read once, kept few, never changed -----------------------------------------------------------------------------


def test_at_most_256_are_read_and_extremes_are_kept():
    """Of an endless stream 256 are read; the smallest and the largest are kept, in order, and a note says so."""
    read_count = 0

    def stream():
        nonlocal read_count
        while True:
            read_count += 1
            size = {40: 1, 200: 99}.get(read_count, 5)
            yield torch.zeros(size, 2)

    feed = read(stream(), Two(), max_samples=4)
    assert read_count == 256
    assert [one.args[0].shape[0] for one in feed.samples] == [5, 5, 1, 99]
    assert "256 samples were read and 4 kept" in feed.notes[0]


def test_a_short_dataset_is_kept_whole_and_one_shape_is_said_aloud():
    """Nothing is dropped without need; a single shape has a loud note, two have none."""
    feed = read([X, X], Two())
    assert len(feed.samples) == 2
    assert len(feed.notes) == 1
    assert "OTHER SHAPES RUN EAGER" in feed.notes[0]
    assert read([X, torch.ones(5, 3)], Two()).notes == ()


def test_choose_prefers_extremes_then_the_first():
    """Largest, smallest, first, each rank pattern, each axis's extremes, then by order."""
    sizes = [((4, 4),), ((9, 1),), ((2, 8),), ((4, 4, 1),), ((1, 1),), ((5, 5),)]
    assert choose(sizes, 2) == [4, 5]
    assert choose(sizes, 4) == [0, 3, 4, 5]
    assert choose(sizes, 6) == [0, 1, 2, 3, 4, 5]
    assert choose([], 3) == []


def test_reading_leaves_generators_alone():
    """A shuffling loader draws random numbers; they are given back."""
    before = torch.random.get_rng_state()
    read(DataLoader(torch.utils.data.TensorDataset(torch.ones(8, 3)), shuffle=True), Two())
    assert torch.equal(before, torch.random.get_rng_state())


def test_fresh_copies_share_what_the_samples_share_and_leave_them_unchanged():
    """Samples of one dataset may share tensors: the copies of one pass do too; each pass starts from the original."""

    class Writes(nn.Module):
        def forward(self, x):
            return x.add_(1).sum().item()

    shared = torch.zeros(1)
    feed = read([shared, shared], Writes())
    assert list(feed.each(Writes())) == [1, 2]
    assert list(feed.each(Writes())) == [1, 2]
    assert float(shared) == 0


def test_a_sample_that_cannot_be_run_names_itself_and_the_cause():
    """SampleError says which sample, and its cause is the model's own error."""

    class Picky(nn.Module):
        def forward(self, x, weight=None):
            if x.shape[0] == 3:
                raise ZeroDivisionError("three")
            return x

    feed = read([torch.ones(1), torch.ones(3)], Picky())
    results = feed.each(Picky())
    next(results)
    with pytest.raises(SampleError, match=r"sample 1 of 2 cannot be run: ZeroDivisionError: three$") as caught:
        next(results)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    feed = read([(torch.ones(3), torch.ones(1))], Picky())
    with pytest.raises(SampleError, match=r"inference_function=lambda m, s: m\(s\[0\]\)"):
        list(feed.each(Picky()))


def test_a_mapping_that_was_passed_whole_is_said_when_it_fails():
    """A mapping whose keys are no parameters is one argument; when that fails, the error says so."""
    with pytest.raises(SampleError, match=r"passed whole: its keys are no parameters of forward\(x, mask, gain\)"):
        list(read([{"y": X}], Two()).each(Two()))


def test_an_interrupt_is_not_a_sample_error():
    """Ctrl-C passes as it is."""

    class Slow(nn.Module):
        def forward(self, x):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(read([X], Slow()).each(Slow()))


# --- refusals -------------------------------------------------------------------------------------------------------


def _fake(name, module):
    return type(name, (nn.Module,), {"__module__": module})()


def test_objects_that_cannot_be_tuned_are_refused_with_their_sentence():
    """Compiled, scripted, parallel, sharded, spread, lazy and empty objects are refused; a plain one is not."""
    refuse(Two())
    spread, single, compiled = Two(), Two(), Two()
    spread.hf_device_map, single.hf_device_map = {"a": 0, "b": "cpu"}, {"": 0}
    compiled.compile()
    refuse(single)
    cases = [
        (torch.compile(Two()), KindError, "compiled by torch.compile"),
        (compiled, KindError, "compiled with .compile"),
        (nn.Sequential(torch.compile(Two())), KindError, "'0' .*compiled by torch.compile"),
        (nn.DataParallel(Two()), KindError, "several devices on each call"),
        (_fake("DistributedDataParallel", "torch.nn.parallel.distributed"), KindError, "distributed"),
        (_fake("FullyShardedDataParallel", "torch.distributed.fsdp"), KindError, "shards"),
        (spread, KindError, r"several devices \(0, cpu\)"),
        (nn.LazyLinear(3), UsageError, "lazy"),
        ({"a": 1}, UsageError, "holds no torch.nn.Module"),
    ]
    for obj, error, text in cases:
        with pytest.raises(error, match=text):
            refuse(obj)


def test_a_script_module_is_refused_and_a_scripted_part_is_not():
    """A ScriptModule as the object is refused; inside a plain module it stays with it."""
    scripted = torch.jit.trace(nn.Linear(3, 3), X, check_trace=False)
    for obj in (scripted, [scripted]):
        with pytest.raises(KindError, match="ScriptModule"):
            refuse(obj)
    refuse(nn.Sequential(scripted, nn.ReLU()))
