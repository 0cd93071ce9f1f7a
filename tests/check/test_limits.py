"""The formula: limits by dtype, few numbers, single elements, masks, zeros, and what a tolerance does."""

from __future__ import annotations

import pytest
import torch

from tt_core.check import compare, whole
from tt_core.values import Facts, Observation, Tolerance

FLOORS = {torch.float32: 1e-6, torch.float16: 5e-4, torch.bfloat16: 2e-3, torch.float64: 1e-13}
TIMES = {torch.float32: 5, torch.float16: 3, torch.bfloat16: 3, torch.float64: 5}
FIXED = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}


def pooled(want, got, true=None, tolerance=None, facts=None):
    """The verdict on one tensor in several samples."""
    trees = [[Observation(result=one) for one in side] for side in (want, got)]
    truths = [None] * len(want) if true is None else [Observation(result=one) for one in true]
    return compare(facts or Facts(), *trees, truths, tolerance or Tolerance())


def numbers(count=4096, seed=0):
    return torch.randn(count, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def off(true, relative, seed=1):
    """`true` moved by a relative L2 distance of exactly `relative`, evenly."""
    direction = torch.where(numbers(true.numel(), seed) > 0, 1.0, -1.0).reshape(true.shape).double()
    return true + direction * relative * true.norm() / direction.norm()


@pytest.mark.parametrize("own", [0.0, 3e-6, 1e-4])
def test_limit_is_a_multiple_of_eagers_error(own):
    """float64 results pass up to 5 times eager's own distance to the truth plus the floor, and not above."""
    true = numbers()
    want = off(true, own)
    limit = 5 * own + 1e-13

    assert pooled([want], [off(true, 0.98 * limit, seed=2)], [true]).ok
    verdict = pooled([want], [off(true, 1.02 * limit, seed=2)], [true])
    assert not verdict.ok
    assert verdict.error == pytest.approx(1.02 * limit, rel=0.05)
    assert verdict.eager_error == pytest.approx(own, rel=1e-2, abs=1e-15)


@pytest.mark.parametrize("dtype", FLOORS, ids=str)
def test_floor_of_each_dtype(dtype):
    """An eager that is exact leaves the floor."""
    want = numbers().to(dtype)
    true = want.double()
    for share, ok in ((0.5, True), (2.0, False)):
        shifted = off(true, FLOORS[dtype] * share)
        assert pooled([want], [want], [shifted]).ok  # eager's own error counts for both
        # a candidate beside an exact eager, by moving as many whole steps of the dtype as make the distance
        moved = nudged(want, FLOORS[dtype] * share)
        assert pooled([want], [moved], [true]).ok is ok


def nudged(tensor, relative):
    """`tensor` at a relative L2 distance of about `relative`, where the dtype can express it."""
    if tensor.dtype.itemsize > 2:
        return off(tensor.double(), relative).to(tensor.dtype)
    moved = tensor.clone()
    big = tensor.abs() > 0.5
    step = torch.finfo(tensor.dtype).eps
    gap = 0.0
    goal = (relative * tensor.double().norm()) ** 2
    for at in big.nonzero().flatten().tolist():
        if gap >= goal:
            break
        moved[at] = tensor[at] * (1 + 2 * step)
        gap += float((moved[at].double() - tensor[at].double()) ** 2)
    return moved


@pytest.mark.parametrize("dtype", FIXED, ids=str)
def test_fixed_limits_without_truth(dtype):
    """Where float64 cannot run, the distance to eager has a fixed limit."""
    want = numbers().to(dtype)

    assert pooled([want], [nudged(want, FIXED[dtype] * 0.6)]).ok
    verdict = pooled([want], [want * (1 + 3 * FIXED[dtype])])
    assert not verdict.ok
    assert verdict.eager_error is None


def test_pooled_over_samples():
    """The samples of one output are judged together: one larger sample carries a small one's rounding."""
    large, small = numbers(4096), 1e-3 * numbers(64, seed=5)

    assert not pooled([small], [off(small, 1e-4)], [small]).ok
    assert pooled([large.float(), small.float()], [large.float(), off(small, 1e-4).float()], [large, small]).ok


def test_one_wrong_element_shows():
    """One number among millions is refused though the relative L2 distance hides it in bfloat16."""
    true = numbers(1 << 19)
    want = true.bfloat16()
    got = want.clone()
    got[12345] += 1

    verdict = pooled([want.reshape(2, -1)], [got.reshape(2, -1)], [true.reshape(2, -1)])

    assert not verdict.ok
    assert verdict.where == "output[0,12345], row 0, sample 0"
    assert verdict.reason.startswith("one number is ")


def test_element_limit_grows_with_eagers_worst():
    """Where eager itself has one number far off, ten times as far is allowed to a candidate."""
    true = numbers(100_000)
    want = true.clone()
    want[7] += 0.5
    got = true.clone()
    got[9] += 2.0

    assert pooled([want], [got], [true]).ok
    got[9] += 5.0
    assert not pooled([want], [got], [true]).ok


@pytest.mark.parametrize("count", [1, 3, 7])
def test_few_numbers_are_judged_by_ten_floors(count):
    """Fewer than 8 numbers: ten floors, whatever luck eager had."""
    true = numbers(count)
    want = true.float()
    exact = want.double()

    assert pooled([want], [(exact * (1 + 8e-6)).float()], [exact]).ok
    assert not pooled([want], [(exact * (1 + 13e-6)).float()], [exact]).ok


def test_few_numbers_never_refuse_what_is_as_good_as_eager():
    """A scalar that eager gets 1e-3 wrong (TF32, say) may be as wrong in a candidate."""
    true = torch.tensor(2.0, dtype=torch.float64)
    want = (true * 1.001).float()

    assert pooled([want], [want], [true]).ok
    assert pooled([want], [(true * 0.999).float()], [true]).ok
    assert not pooled([want], [(true * 1.002).float()], [true]).ok


def test_samples_add_up_to_enough_numbers():
    """Eight samples of one number each are eight numbers."""
    true = list(numbers(8).unbind())
    want = [off(one.reshape(1), 1e-4)[0].float() for one in true]
    near = [off(one.reshape(1), 4e-4, seed=3)[0].float() for one in true]

    assert pooled(want, near, true).ok
    assert not pooled(want[:7], near[:7], true[:7]).ok


def test_a_mask_does_not_hide_the_rest():
    """Logits beside finfo.min or -1e9 are judged among themselves."""
    for mask in (torch.finfo(torch.float32).min, -1e9, -1e4):
        true = numbers(512)
        true[::3] = mask
        want = true.float()
        wrong = torch.where(want == mask, want, want * 1.01)

        assert pooled([want], [want.clone()], [true]).ok
        assert not pooled([want], [wrong], [true]).ok
        assert not pooled([want], [wrong]).ok
        assert not pooled([want], [want.roll(1)], [true]).ok


def test_truth_zero_everywhere():
    """A truth that is all zero: an exact candidate is right, rounding like eager's too, anything else is not."""
    true = torch.zeros(64, dtype=torch.float64)
    noise = 1e-9 * numbers(64)

    assert pooled([true.float()], [true.float()], [true]).ok
    assert not pooled([true.float()], [noise.float()], [true]).ok
    assert pooled([noise.float()], [1e-9 * numbers(64, seed=2).float()], [true]).ok
    assert not pooled([noise.float()], [1e-7 * numbers(64, seed=2).float()], [true]).ok


def test_non_finite_truth_is_ignored():
    """A truth that overflows where eager does not is no truth."""
    want = numbers(64).float()
    true = want.double()
    true[3] = torch.inf

    verdict = pooled([want], [want], [true])

    assert verdict.ok
    assert verdict.eager_error is None


def test_random_units_are_compared_with_eager():
    """float64 draws other random numbers, so its run is not looked at."""
    want, other = numbers(64).float(), numbers(64, seed=9)

    assert pooled([want], [want], [other], facts=Facts(random=True)).eager_error is None
    assert not pooled([want], [other.float()], [other], facts=Facts(random=True)).ok


def test_factor_loosens_and_tightens():
    """`Tolerance(factor=)` multiplies every floating point limit."""
    true = numbers()
    want = true.float()
    got = off(true, 1e-4).float()

    assert not pooled([want], [got], [true]).ok
    assert pooled([want], [got], [true], Tolerance(factor=200)).ok
    assert pooled([want], [off(true, 5e-7).float()], [true]).ok
    assert not pooled([want], [off(true, 5e-7).float()], [true], Tolerance(factor=0.1)).ok


def test_relative_replaces_the_limits():
    """`Tolerance(relative=)` is one fixed limit on the distance to eager, for every dtype."""
    for dtype in FLOORS:
        want = numbers().to(dtype)
        for count in (4096, 3):
            part, true = want[:count], want[:count].double()
            assert pooled([part], [part * 1.03], [true], Tolerance(relative=0.05)).ok
            assert not pooled([part], [part * 1.08], [true], Tolerance(relative=0.05)).ok


def test_python_floats_are_close():
    """Python floats may differ by 1e-5, or by as much as eager's differs from the truth."""

    def verdict(got, true=None, tolerance=None):
        return pooled([2.0], [got], None if true is None else [true], tolerance)

    assert verdict(2.0 + 1e-5).ok
    assert not verdict(2.0 + 1e-4).ok
    assert verdict(2.002, true=2.001).ok
    assert not verdict(2.003, true=2.001).ok
    assert verdict(2.01, tolerance=Tolerance(relative=0.01)).ok


def test_whole_knows_the_units_noise():
    """Without a truth for the whole object, what is noise in its units is allowed ten times."""
    want = numbers().float()
    got = off(want.double(), 1e-3).float()

    assert not whole([want], [got], Tolerance()).ok
    assert whole([want], [got], Tolerance(), 2e-4).ok
    assert not whole([want], [got], Tolerance(), 5e-5).ok
    assert not whole([want, want], [want], Tolerance()).ok


def test_chunks_are_one_tensor():
    """A tensor larger than one chunk is judged as a whole, and the place counts from its beginning."""
    count = (1 << 20) + 37
    want = torch.ones(count)
    got = want.clone()
    got[-2] = torch.nan

    assert whole([want], [got], Tolerance()).where == f"output[{count - 2}], row {count - 2}, sample 0"
    got[-2] = 3.0
    verdict = whole([want], [got], Tolerance())
    assert verdict.where == f"output[{count - 2}], row {count - 2}, sample 0"
    assert verdict.max_abs == 2.0


@pytest.mark.parametrize(("bits", "right"), [(1, True), (3, True), (8, False)])
def test_a_large_half_number_may_be_off_by_its_last_bits(bits, right):
    """Without a truth one large bfloat16 number may be a few of its own last bits off, whatever the tensor's rms is."""
    want = numbers(1 << 20).float()
    want[17] = 100.0
    want = want.to(torch.bfloat16)
    got = want.clone()
    got[17] += bits * 0.5  # the distance between neighbours at 100

    assert (got - want)[17] == bits * 0.5
    verdict = pooled([want], [got])
    assert verdict.ok is right, verdict.reason
    assert right or verdict.where.startswith("output[17]")
