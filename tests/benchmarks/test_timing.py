"""Turns, trials and repeats, on clocks that cannot surprise."""

import gc
import itertools

import pytest

from benchmarks import timing
from benchmarks.timing import THREAD, WALL, Spread, Stopwatch, alternate, laps, speedup, spread


class Machine:
    """A clock that only works move, and a list of who worked."""

    def __init__(self):
        self.now, self.order = 0.0, []

    def work(self, name, seconds):
        durations = iter(seconds) if isinstance(seconds, list) else itertools.repeat(seconds)

        def work():
            self.order.append(name)
            self.now += next(durations)

        return work

    @property
    def clock(self):
        return Stopwatch("fake", lambda: self.now)


def test_works_take_turns_and_every_second_round_goes_backwards():
    machine = Machine()
    works = {name: machine.work(name, 1.0) for name in "abc"}
    times = alternate(works, 3, machine.clock)
    assert machine.order == [*"abc", *"abc", *"cba", *"abc"]  # the first round is a warm-up
    assert times == {name: [1000.0] * 3 for name in "abc"}


def test_samples_stay_in_their_rounds():
    machine = Machine()
    works = {"slow spell": machine.work("a", [9.0, 1.0, 5.0, 2.0]), "steady": machine.work("b", 1.0)}
    assert alternate(works, 3, machine.clock) == {"slow spell": [1000.0, 5000.0, 2000.0], "steady": [1000.0] * 3}


def test_of_several_ways_the_fastest_goes_on_alone():
    machine = Machine()
    # The first call of the better way is slow: one trial would choose the other.
    ways = [machine.work("worse", 2.0), machine.work("better", [5.0, 1.0, 1.0, 1.0, 1.0])]
    times = alternate({"it": ways}, 2, machine.clock)
    assert times == {"it": [1000.0, 1000.0]}
    assert machine.order == ["worse"] * 3 + ["better"] * 5


def test_short_works_are_repeated_within_a_sample():
    machine = Machine()
    times = alternate({"short": machine.work("short", 0.0005), "long": machine.work("long", 1.0)}, 2, machine.clock)
    assert times == {"short": [0.5, 0.5], "long": [1000.0, 1000.0]}
    assert machine.order.count("short") == 1 + 3 + 2 * 4  # a warm-up, a better look, and 2 ms in each of two rounds
    assert machine.order.count("long") == 3


def test_a_work_that_takes_no_time_is_not_repeated_forever():
    machine = Machine()
    assert alternate({"nothing": machine.work("n", 0.0)}, 1, machine.clock) == {"nothing": [0.0]}
    assert machine.order.count("n") == 4 + timing.MOST_REPEATS


def test_no_garbage_is_collected_in_a_sample():
    seen = []
    alternate({"it": lambda: seen.append(gc.isenabled())}, 1, Machine().clock)
    assert not any(seen)
    assert gc.isenabled()


def test_garbage_is_collected_again_after_an_exception():
    def fail():
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        alternate({"it": fail}, 1)
    assert gc.isenabled()


def test_laps_keep_calls_apart():
    machine = Machine()
    assert laps(machine.work("a", [1.0, 2.0, 4.0]), 3, machine.clock) == [1000.0, 2000.0, 4000.0]


def test_samples_have_five_digits():
    machine = Machine()
    assert laps(machine.work("a", 1.23456789), 1, machine.clock) == [1234.6]


def test_quartiles():
    assert spread([3.0]) == Spread(3.0, 3.0, 3.0)
    assert spread([4.0, 1.0, 3.0, 2.0]) == Spread(1.75, 2.5, 3.25)  # numpy.quantile says the same


def test_a_ratio_is_taken_within_a_round():
    # A slow spell that hits both halves of a round leaves their ratio alone; the ratio of medians would be 2.5.
    assert speedup([2.0, 20.0, 2.0, 30.0], [1.0, 10.0, 1.0, 10.0]) == Spread(2.0, 2.0, 2.25)


def test_rounds_are_counted_from_one():
    with pytest.raises(ValueError, match="rounds must be at least 1; got 0"):
        alternate({}, 0)


def test_the_clocks_say_what_they_measure():
    assert (THREAD.name, WALL.name) == ("CPU time of one thread", "wall time")
    for clock in (THREAD, WALL):
        assert clock.read() <= clock.read()
