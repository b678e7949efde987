"""Schedules: exact at their corners, monotone between them, and composable."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.schedules import as_schedule, constant, cosine, cyclical, phases, warmup

rates = st.floats(-10, 10)


@settings(deadline=None, derandomize=True)
@given(value=rates, step=st.integers(0, 10**9))
def test_constant(value, step):
    assert constant(value)(step) == value
    assert as_schedule(value)(step) == value


def test_a_schedule_stays_what_it_is():
    schedule = cosine(1.0, 10)
    assert as_schedule(schedule) is schedule


@settings(deadline=None, derandomize=True)
@given(start=rates, end=rates, steps=st.integers(1, 500))
def test_cosine_goes_from_start_to_end_and_stays(start, end, steps):
    values = [cosine(start, steps, end)(step) for step in range(steps + 3)]
    assert values[0] == pytest.approx(start)
    assert values[steps:] == [end] * 3
    assert sum(values[: steps + 1]) / (steps + 1) == pytest.approx((start + end) / 2, abs=1e-9)  # point-symmetric
    direction = 1 if end >= start else -1
    assert all(direction * (b - a) >= -1e-12 for a, b in pairwise(values))


def test_cosine_is_the_rate_of_the_paper():
    """r(t) = r₀/2 · (1 + cos(π t / T))."""
    rate = cosine(0.3, 75)
    for step in (0, 1, 25, 50, 74):
        assert rate(step) == pytest.approx(0.15 * (1 + math.cos(math.pi * step / 75)), rel=1e-12)
    assert rate(0) == 0.3
    assert rate(25) == pytest.approx(0.225)


@pytest.mark.parametrize("steps", [0, -1])
def test_cosine_without_steps_is_refused(steps):
    with pytest.raises(ValueError, match=f"at least one step, got {steps}"):
        cosine(0.3, steps)


@settings(deadline=None, derandomize=True)
@given(value=rates, steps=st.integers(1, 100), step=st.integers(0, 300))
def test_warmup_is_linear_then_the_value(value, steps, step):
    assert warmup(value, steps)(step) == pytest.approx(value * min(1.0, step / steps))


def test_warmup_of_a_schedule():
    after = cosine(1.0, 100)
    weight = warmup(after, 10)
    assert weight(0) == 0
    assert weight(5) == after(5) / 2
    assert [weight(step) for step in (10, 50, 100)] == [after(step) for step in (10, 50, 100)]


def test_no_warmup_is_the_value_from_the_start():
    assert warmup(0.7, 0)(0) == 0.7


@settings(deadline=None, derandomize=True)
@given(start=rates, end=rates, cycles=st.integers(1, 9), length=st.integers(1, 60))
def test_cycles_are_cosines_one_after_another(start, end, cycles, length):
    rate, one = cyclical(start, cycles * length, cycles, end), cosine(start, length, end)
    for step in range(2 * cycles * length):
        assert rate(step) == pytest.approx(one(step % length), abs=1e-9)


def test_cycles_need_not_be_whole_numbers_of_steps():
    rate = cyclical(1.0, 100, 3)
    values = [rate(step) for step in range(100)]
    restarts = [step for step in range(1, 100) if values[step] > values[step - 1]]
    assert restarts == [34, 67]
    assert min(values[:34]) == values[33]
    assert values[33] < 0.01
    assert rate(100) == 1.0


def test_cyclical_is_the_rate_of_the_paper():
    """l_t = l₀/2 · (cos(π mod(t, T/C)/(T/C)) + 1)."""
    rate = cyclical(0.5, 200, 4)
    for step in (0, 1, 49, 50, 123, 199):
        assert rate(step) == pytest.approx(0.25 * (math.cos(math.pi * (step % 50) / 50) + 1), abs=1e-15)


@pytest.mark.parametrize(("steps", "cycles"), [(10, 0), (10, 11), (0, 1)])
def test_cycles_without_steps_are_refused(steps, cycles):
    with pytest.raises(ValueError, match=f"got {cycles} cycles in {steps} steps"):
        cyclical(0.1, steps, cycles)


@settings(deadline=None, derandomize=True)
@given(cycles=st.integers(1, 5), length=st.integers(1, 100), hot=st.integers(0, 100))
def test_the_hot_phase_is_the_end_of_each_cycle(cycles, length, hot):
    hot = min(hot, length)
    value = phases(0.0, 2.0, cycles * length, cycles, share=hot / length)
    is_hot = [value(step) == 2.0 for step in range(cycles * length)]
    assert is_hot == ([False] * (length - hot) + [True] * hot) * cycles


def test_a_phase_may_follow_a_schedule():
    value = phases(0.5, cosine(1.0, 20), 20, 2, share=0.5)
    assert [value(step) for step in (0, 4, 5, 9, 10, 19)] == [
        0.5,
        0.5,
        *(cosine(1.0, 20)(step) for step in (5, 9)),
        0.5,
        cosine(1.0, 20)(19),
    ]


@pytest.mark.parametrize("share", [-0.1, 1.1])
def test_a_share_is_a_share(share):
    with pytest.raises(ValueError, match=f"between 0 and 1, got {share}"):
        phases(0.0, 1.0, 10, 1, share)
