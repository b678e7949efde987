import math

import numpy as np
import pytest
import torch

from gossamer.data import digits, sun1, two_moons
from reproductions import sun2, sun3


def row(*values):
    x = np.zeros((1, 5))
    x[0, : len(values)] = values
    return x


def test_inputs_have_unit_variance_and_correlation_one_half():
    n = 40_000
    x = sun1.inputs(np.random.default_rng(0), n, 6).astype(np.float64)
    covariance = np.cov(x.T)
    expected = 0.5 * np.eye(6) + 0.5
    # The standard error of a covariance of two normal numbers is at most √(2 / n); five of them.
    assert np.abs(covariance - expected).max() < 5 * math.sqrt(2 / n)
    assert np.abs(x.mean(0)).max() < 5 / math.sqrt(n)


@pytest.mark.parametrize(
    ("variant", "expected"),
    [
        ("ke", math.tanh(2 * math.tanh(2 - 3)) + 2 * math.tanh(math.tanh(0.5 - 0.4) - math.tanh(0.6))),
        ("ke_code", math.tanh(2 * math.tanh(2 - 3)) + 2 * math.tanh(math.tanh(0.5 - 0.4)) - math.tanh(0.6)),
        ("sun", math.tanh(2 * math.tanh(2 - 3)) + 2 * math.tanh(2 * math.tanh(0.5 - 0.4) - math.tanh(0.6))),
    ],
)
def test_example_1_is_the_published_formula(variant, expected):
    assert sun1.VARIANTS[variant](row(1, 3, 0.5, 0.2, 0.3)) == pytest.approx(expected)


def test_example_2_is_the_published_formula():
    expected = 5 * 3 / (1 + 2**2) + 5 * math.sin(0.5 * 0.2) + 2 * 0.3
    assert sun2._response(row(2, 3, 0.5, 0.2, 0.3)) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("x", "label"),
    [((0, 0, 0, 0), 0), ((0, 1.5, 0, 0), 1), ((0, 1.4, 0, 0), 0), ((1.1, 0, 0, 0), 1), ((1.0, 0, 0.5, 0.2), 1)],
)
def test_example_3_is_the_published_formula(x, label):
    assert sun3._label(row(*x)).tolist() == [label]


@pytest.mark.parametrize(("module", "options"), [(sun1, {"variant": v}) for v in sun1.VARIANTS] + [(sun2, {})])
def test_what_the_formula_leaves_is_standard_normal_noise(module, options):
    task = module.load(n_train=20_000 if module is sun1 else 8_000, **options)
    x, y = task.train
    response = sun1.VARIANTS[options["variant"]] if options else sun2._response
    noise = y.squeeze(1).double().numpy() - response(x[:, :5].double().numpy())
    n = len(noise)
    assert abs(noise.mean()) < 5 / math.sqrt(n)
    assert abs(noise.var() - 1) < 5 * math.sqrt(2 / n)
    # It has nothing to do with the inputs.
    assert abs(np.corrcoef(noise, x[:, 0].numpy())[0, 1]) < 5 / math.sqrt(n)


def test_the_inputs_of_sun_et_al_have_half_the_variance():
    x, _ = sun1.load(variant="sun", n_train=2_000).train
    # 1,000 correlated columns: the variance over all entries of a row varies as that of the common part does.
    assert x.double().var().item() == pytest.approx(0.5, abs=5 * 0.5 * math.sqrt(2 / 2_000))


@pytest.mark.parametrize("module", [sun1, sun2, sun3])
def test_the_sizes_are_the_published_ones(module):
    task = module.load()
    assert (task.n_data, len(task.val[1]), len(task.test[1])) == (10_000, 1_000, 1_000)
    assert task.input_shape == ({sun1: 1_000, sun2: 2_000, sun3: 1_000}[module],)
    assert tuple(range(4 if module is sun3 else 5)) == module.RELEVANT
    assert task.train[0].dtype == torch.float32


@pytest.mark.parametrize("module", [sun1, sun2, sun3, two_moons])
def test_a_seed_gives_the_same_data_and_another_one_fresh_data(module):
    options = {} if module is two_moons else {"n_train": 50}
    first, again, other = (module.load(seed=seed, **options) for seed in (1, 1, 2))
    assert first.train[0].equal(again.train[0])
    assert first.train[1].equal(again.train[1])
    assert not first.train[0].equal(other.train[0])
    assert not first.test[0].equal(other.test[0])


def test_the_examples_do_not_share_their_inputs():
    assert not sun1.load(n_train=10).train[0].equal(sun3.load(n_train=10).train[0])


@pytest.mark.parametrize("n", [200, 201])
def test_balanced_classes(n):
    task = sun3.load(balanced=True, n_train=n)
    assert torch.bincount(task.train[1]).tolist() == [n - n // 2, n // 2]
    assert torch.bincount(task.test[1]).tolist() == [500, 500]
    assert task.train[1].equal(torch.from_numpy(sun3._label(task.train[0].numpy())))


def test_classes_as_they_come_are_nearly_even():
    share = sun3.load().train[1].double().mean().item()
    assert 0.4 < share < 0.6


@pytest.mark.parametrize(
    ("load", "options", "message"),
    [
        (sun1.load, {"variant": "huh"}, "variant must be one of 'ke', 'ke_code', 'sun'; got 'huh'"),
        (sun2.load, {"n_train": 0}, "n_train and n_test must be positive, seed not negative; got 0, 1000 and 0"),
        (sun3.load, {"seed": -1}, "n_train and n_test must be positive, seed not negative; got 10000, 1000 and -1"),
        (
            two_moons.load,
            {"noise": -1.0},
            "two moons need n of at least 10 and a noise of at least 0; got 1500 and -1.0",
        ),
    ],
)
def test_wrong_options_are_named(load, options, message):
    with pytest.raises(ValueError, match="^" + message.replace("(", r"\(") + "$"):
        load(**options)


def test_two_moons_are_two_half_circles():
    task = two_moons.load(noise=0.0)
    x, y = (torch.cat(part) for part in zip(task.train, task.val, task.test, strict=True))
    assert len(y) == 1_500
    assert torch.bincount(y).tolist() == [750, 750]
    upper, lower = x[y == 0], torch.tensor([1.0, 0.5]) - x[y == 1]
    for half in (upper, lower):
        torch.testing.assert_close(half.norm(dim=1), torch.ones(750))
        assert (half[:, 1] > -1e-6).all()


def test_digits_are_images_with_pixels_from_0_to_1():
    task = digits.load()
    assert task.input_shape == (1, 8, 8)
    assert float(task.train[0].min()) == 0
    assert float(task.train[0].max()) == 1
    assert task.class_names == tuple("0123456789")


@pytest.mark.parametrize(("load", "usual", "n"), [(digits.load, 239, 1198), (two_moons.load, 200, 1000)])
def test_n_val_examples_are_held_out_and_those_for_testing_stay(load, usual, n):
    for n_val in (None, 0, usual, 500, n - 1):
        task, held_out = load(n_val=n_val), usual if n_val is None else n_val
        assert (task.n_data, len(task.val[1])) == (n - held_out, held_out)
        assert torch.equal(task.test[0], load().test[0])
    assert all(torch.equal(one, other) for one, other in zip(load(n_val=usual).train, load().train, strict=True))
    for wrong in (-1, n):
        with pytest.raises(ValueError, match=f"^n_val must be from 0 to {n - 1}, to leave some of {n} examples"):
            load(n_val=wrong)
