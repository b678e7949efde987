"""A bar is met by the median, on the right side of it; what was not measured is neither met nor missed."""

import pytest

from benchmarks.bars import BARS, judge
from benchmarks.layers import RESIDUAL
from benchmarks.measurements import DENSE, GRADIENT, PLAIN, Footprint, Measurements, Timing, UpdateCost
from benchmarks.networks import MLP, RESNET


def timing(subject, work, batch, gains, plain=2.0):
    """A row in which dense LRT takes 100 ms and the others are as many times faster."""
    sparse = {f"sparse {density:g}": [100.0 / gain] for density, gain in gains.items()}
    return Timing(subject, "", work, batch, {DENSE: [100.0], PLAIN: [100.0 / plain], **sparse})


def verdict(results, beginning):
    (found,) = [one for one in judge(results) if one.bar.what.startswith(beginning)]
    return found


@pytest.mark.parametrize(("gain", "met"), [(5.49, False), (5.51, True), (9.0, True)])
def test_a_layer(gain, met):
    results = Measurements("cpu", 1, {}, layers=[timing("linear 1024x1024", "forward", 128, {0.05: gain})])
    assert verdict(results, "linear 1024x1024, batch 128, 5%: forward over").met is met


def test_the_slowest_of_four_counts_once_all_are_there():
    rows = [timing(case.name, "forward+backward", 32, {0.05: 6.0 + i}) for i, case in enumerate(RESIDUAL)]
    assert verdict(Measurements("cpu", 1, {}, layers=rows[1:]), "slowest 3x3").found is None
    found = verdict(Measurements("cpu", 1, {}, layers=rows), "slowest 3x3")
    assert found.met
    assert found.found.median == pytest.approx(6.0)


def test_a_network_against_two_others():
    step = timing(RESNET, "training step", 32, {0.05: 6.1, 0.1: 3.0}, plain=2.6)
    results = Measurements("cpu", 1, {}, networks=[step])
    assert verdict(results, f"{RESNET}, batch 32, 5%: training step over dense LRT").met
    assert not verdict(results, f"{RESNET}, batch 32, 5%: training step over deterministic").met  # 6.1 / 2.6 < 2.5
    assert not verdict(results, f"{RESNET}, batch 32, 10%: training step over dense LRT").met


@pytest.mark.parametrize(("peak", "met"), [(499, True), (501, False)])
def test_memory_is_a_share_of_dense_or_a_multiple_of_the_density(peak, met):
    dense = Footprint(RESNET, DENSE, 1000, 0, 1000, 500, [1000])
    own = Footprint(RESNET, "sparse 0.05", 54, 20, 71, 50, [peak])
    results = Measurements("cpu", 1, {}, memory=[dense, own])
    assert verdict(results, f"{RESNET}, batch 32, 5%: peak").met is met
    weights, checkpoint = (verdict(results, f"{RESNET}, 5%: {what}") for what in ("parameters", "checkpoint"))
    assert weights.met  # 1.08 d
    assert weights.found.median == pytest.approx(1.08)
    assert not checkpoint.met  # 1.42 d


@pytest.mark.parametrize(("own", "met"), [(12.0, True), (12.1, False), (0.0, None)])
def test_the_state_of_an_entry_is_compared_with_that_of_a_raw_std(own, met):
    rows = [
        Footprint(RESNET, way, 1, 1, 1, 1, [1], state)
        for way, state in (("sparse 0.05", own), (f"{GRADIENT} 0.05", 16.0))
    ]
    assert verdict(Measurements("cpu", 1, {}, memory=rows), f"{RESNET}, 5%: state").met is met


@pytest.mark.parametrize(("ms", "met"), [(9.9, True), (10.1, False)])
def test_curvature_must_not_be_slower_than_gradients(ms, met):
    row = Timing(MLP, "", "training step", 128, {DENSE: [100.0], "sparse 0.05": [ms], f"{GRADIENT} 0.05": [10.0]})
    assert (
        verdict(Measurements("cpu", 1, {}, networks=[row]), f"{MLP}, batch 128, 5%: training step over grad").met is met
    )


def test_updates():
    rows = [UpdateCost(RESNET, 32, 0.05, 100, [10.0], [70.0]), UpdateCost(MLP, 128, 0.05, 100, [10.0], [90.0])]
    results = Measurements("cpu", 1, {}, updates=rows)
    assert [verdict(results, f"{name}, 5%: updates").met for name in (RESNET, MLP)] == [True, False]


def test_nothing_measured_is_no_verdict():
    found = judge(Measurements("cpu", 1, {}))
    assert len(found) == len(BARS["cpu"]) == 19
    assert {(one.found, one.met) for one in found} == {(None, None)}


def test_a_device_without_bars():
    assert judge(Measurements("toaster", 1, {})) == []
