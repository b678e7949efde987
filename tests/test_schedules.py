"""Schedules: exact at their corners, monotone between them, and composable."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.schedules import as_schedule, constant, cosine, warmup

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
