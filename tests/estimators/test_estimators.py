"""Both estimators as their users meet them: predictions, uncertainty, weights, errors, scikit-learn's tools."""

import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from joblib import Parallel, delayed
from scipy import sparse, stats
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.feature_selection import SelectFromModel
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import QuantileTransformer

import gossamer
from gossamer import methods
from gossamer.estimators import SparseBayesClassifier, SparseBayesRegressor, plan
from gossamer.likelihoods import Gaussian
from gossamer.methods import rigl
from gossamer.train.divergence import DivergenceError

# A linear model of all columns, whose posterior is known: the ELBO, and no selection.
LINEAR = {"hidden": (), "density": 1.0, "kl_weight": 1.0, "fdr": 1.0, "lr": 0.05, "max_steps": 600}
LINEAR |= {"noise": "constant", "random_state": 0}


@pytest.fixture(scope="module")
def fitted(numbers):
    X, y = numbers
    return SparseBayesRegressor(**LINEAR).fit(X, y)


def test_they_are_what_gossamer_exports():
    assert gossamer.SparseBayesClassifier is SparseBayesClassifier
    assert gossamer.SparseBayesRegressor is SparseBayesRegressor


def test_noise_is_learnt_in_the_units_of_the_target(fitted, numbers):
    X, y = numbers
    noise = replace(fitted.prediction(X), likelihood=Gaussian()).aleatoric_std.numpy().ravel() * y.std()
    assert np.ptp(noise) == pytest.approx(0, abs=1e-9)
    # The std of N residuals has the relative standard error 1/√(2N); four of them, and the residual of the fit itself.
    residual = (y - LinearRegression().fit(X, y).predict(X)).std()
    assert noise[0] == pytest.approx(residual, rel=4 / np.sqrt(2 * len(y)))


def test_the_variance_is_epistemic_plus_aleatoric(fitted, numbers):
    X, y = numbers
    mean, std = fitted.predict(X, return_std=True)
    prediction = fitted.prediction(X)
    parts = prediction.epistemic_std.square() + prediction.aleatoric_std.square()
    np.testing.assert_allclose(std, parts.sqrt().numpy().ravel() * y.std(), rtol=1e-9)
    np.testing.assert_array_equal(mean, fitted.predict(X))


def test_epistemic_std_is_that_of_bayesian_linear_regression(fitted, numbers):
    """Inputs are independent and N is large, so the posterior of the slopes is mean-field and flat in its prior."""
    X = numbers[0]
    Z = (X - X.mean(0)) / X.std(0)
    noise = fitted.prediction(X).aleatoric_std.numpy()[0, 0]
    exact = noise * np.sqrt(np.einsum("ij,jk,ik->i", Z, np.linalg.inv(Z.T @ Z), Z))
    measured = fitted.prediction(X).epistemic_std.numpy().ravel()
    # Thirty draws know a std to 1/√60; its mean over rows, which share the draws of six slopes, to about 1/√(60·6).
    assert measured.mean() == pytest.approx(exact.mean(), rel=4 / np.sqrt(60 * 6))


def test_log_densities_are_those_of_the_mixture(fitted, numbers):
    X, y = numbers
    prediction = fitted.prediction(X)
    means, noise = (part.numpy()[..., 0] * y.std() for part in fitted._likelihood.split(prediction.outputs))
    densities = stats.norm.pdf(y, means + y.mean(), noise)  # each member has learnt a noise of its own
    density = (len(y) * densities.mean(0) + stats.norm.pdf(y, y.mean(), y.std())) / (len(y) + 1)
    np.testing.assert_allclose(fitted.predict_log_density(X, y), np.log(density), rtol=1e-6)


def test_intervals_hold_the_share_they_promise(fitted):
    rng = np.random.default_rng(1)
    X = rng.normal(size=(4000, 6)) * [1, 10, 0.1, 1, 1, 1] + [0, 50, 0, 0, 0, 0]
    y = 100 + 20 * X[:, 0] + 1.0 * (X[:, 1] - 50) + 5 * rng.normal(size=4000)
    for level in (0.5, 0.9):
        low, high = fitted.predict_interval(X, level)
        inside = ((low < y) & (y < high)).mean()
        # Of the 4,000 rows, and of the learnt noise, whose relative error moves the coverage by its density there.
        error = np.sqrt(level * (1 - level) / 4000) + 0.5 / np.sqrt(2 * 600)
        assert inside == pytest.approx(level, abs=4 * error)
    np.testing.assert_array_less(fitted.predict_interval(X, 0.5)[1], fitted.predict_interval(X, 0.9)[1])


def test_several_targets_in_units_of_their_own(short, numbers):
    X, y = numbers
    both = np.column_stack([y, -1e-3 * y])
    model = SparseBayesRegressor(**short).fit(X, both)
    mean, std = model.predict(X, return_std=True)
    assert mean.shape == std.shape == (600, 2)
    assert model.score(X, both) > 0.8
    assert 500 < std[0, 0] / std[0, 1] < 2000
    assert [bound.shape for bound in model.predict_interval(X)] == [(600, 2), (600, 2)]


def test_noise_that_varies_with_a_column_that_says_nothing_of_the_mean():
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, size=(1000, 3))
    y = X[:, 0] + np.exp(X[:, 1]) * 0.3 * rng.normal(size=1000)
    model = SparseBayesRegressor(max_steps=1000, random_state=0).fit(X, y)
    low, high = model.predict([[0, -1.5, 0], [0, 1.5, 0]], return_std=True)[1]
    assert 10 < high / low < 40  # e³ = 20 in truth; a constant noise gives 1
    assert model.get_support()[0]
    assert not model.get_support()[1]  # R² does not fall without it


@pytest.mark.parametrize(("method", "varies"), [("ssvi", True), ("ivon", False), ("sgd", False), ("em_mcmc", False)])
def test_noise_varies_by_default_where_each_weight_has_its_step_size(method, varies, numbers):
    X, y = numbers
    model = SparseBayesRegressor(method, max_steps=20, random_state=0).fit(X, y)
    assert (np.ptp(model.prediction(X).aleatoric_std.numpy()) > 1e-6) == varies


def test_a_row_like_none_before_costs_what_the_rule_of_succession_says(fitted, numbers):
    X, y = numbers
    far = y.max() + 1000 * y.std()
    found = fitted.predict_log_density(X[:1], [far])[0]
    expected = stats.norm(y.mean(), y.std()).logpdf(far) - np.log(len(y) + 1)
    assert found == pytest.approx(expected, rel=1e-9)
    assert fitted.n_samples_seen_ == len(y)


def test_a_row_like_none_before_has_twice_the_largest_error_of_the_known_ones(fitted, numbers):
    X, y = numbers
    mean, std = fitted.predict(X, return_std=True)
    known = replace(fitted.prediction(X), likelihood=Gaussian()).std.numpy().ravel() * y.std()
    largest = np.abs(y - mean).max()
    np.testing.assert_allclose(fitted.largest_error_ * y.std(), largest, rtol=1e-6)
    share, strange = 1 / (len(y) + 1), min(2 * largest, y.std())
    np.testing.assert_allclose(std**2, (1 - share) * known**2 + share * strange**2, rtol=1e-3)  # of the noise alone


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_rows_known_by_heart_do_not_tell_the_noise():
    """Of 150 rows with noise of std 2 SGD learns 0.6, and 90 % intervals would hold 26 %: rows left out tell it."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2150, 10))
    y = 100 + 3 * X[:, 0] + 2 * rng.normal(size=2150)
    model = SparseBayesRegressor("sgd", random_state=0, members=1, fdr=1.0).fit(X[:150], y[:150])
    prediction = replace(model.prediction(X), likelihood=Gaussian())
    assert prediction.aleatoric_std.max() * y[:150].std() < 1
    low, high = model.predict_interval(X[150:])
    assert 0.86 < ((low < y[150:]) & (y[150:] < high)).mean() < 0.94
    assert SparseBayesRegressor("vi", max_steps=5, random_state=0).fit(X[:90], y[:90]).held_out_noise_.size == 0


def test_a_constant_target(short):
    X = np.random.default_rng(0).normal(size=(30, 2))
    model = SparseBayesRegressor(**short).fit(X, np.full(30, 3.0))
    mean, std = model.predict(X, return_std=True)
    np.testing.assert_array_equal(mean, 3.0)
    np.testing.assert_array_equal(std, 0.0)


def test_classes_keep_their_names(short, classes):
    X, y = classes
    model = SparseBayesClassifier(**{**short, "max_steps": 150}).fit(X, y)
    assert model.classes_.tolist() == ["ash", "birch", "cedar"]
    assert model.score(X, y) > 0.85
    probs = model.predict_proba(X)
    np.testing.assert_allclose(probs.sum(1), 1, rtol=1e-12)
    prediction = model.prediction(X)
    assert prediction.mutual_information.shape == (300,)
    assert bool((prediction.mutual_information > 0).any())


def test_class_weights_move_the_border(short):
    rng = np.random.default_rng(0)
    X = np.r_[rng.normal(size=(900, 1)), rng.normal(size=(100, 1)) + 1.5]
    y = np.repeat([0, 1], [900, 100])
    plain, balanced, heavy = (
        SparseBayesClassifier(class_weight=weight, **{**short, "max_steps": 120}).fit(X, y).predict(X)[y == 1].mean()
        for weight in (None, "balanced", {0: 1, 1: 9})
    )
    assert balanced > plain + 0.3
    assert heavy == pytest.approx(balanced, abs=0.05)


@pytest.mark.parametrize("kind", [SparseBayesClassifier, SparseBayesRegressor])
@pytest.mark.parametrize("make", [np.asarray, sparse.csr_array])
def test_weights_are_counts_to_the_bit(kind, make, short):
    rng = np.random.default_rng(0)
    X, y, weight = rng.normal(size=(40, 5)), rng.integers(0, 2, 40), rng.integers(0, 4, 40)
    model = kind(**short)
    weighted = clone(model).fit(make(X), y, sample_weight=weight)
    repeated = clone(model).fit(make(X.repeat(weight, 0)), y.repeat(weight, 0))
    np.testing.assert_array_equal(weighted.predict(X), repeated.predict(X))
    np.testing.assert_array_equal(weighted.feature_importances_, repeated.feature_importances_)


def test_more_copies_of_a_table_make_the_posterior_narrower(fitted, numbers):
    X, y = numbers
    often = SparseBayesRegressor(**LINEAR).fit(X, y, sample_weight=np.full(len(y), 9.0))
    ratio = fitted.prediction(X).epistemic_std.mean() / often.prediction(X).epistemic_std.mean()
    assert float(ratio) == pytest.approx(3, rel=4 / np.sqrt(60 * 6))  # √9, by thirty draws of six slopes


@pytest.mark.parametrize("make", [sparse.csr_matrix, sparse.csc_array, sparse.coo_matrix])
def test_a_sparse_matrix_gives_the_fit_of_the_same_numbers(make, short, classes):
    X, y = classes
    X = np.where(np.abs(X) > 0.5, X, 0)
    model = SparseBayesClassifier(**short)
    dense, thin = clone(model).fit(X, y), clone(model).fit(make(X), y)
    np.testing.assert_allclose(thin.predict_proba(make(X)), dense.predict_proba(X), atol=1e-4)
    np.testing.assert_array_equal(thin.predict_proba(make(X)), thin.predict_proba(X))


def test_a_million_columns(short):
    """Those that never vary take no weight, no memory and no byte."""
    rng = np.random.default_rng(0)
    n, p = 200, 10**6
    columns = np.r_[np.repeat([[7], [999_999]], n, 1).ravel(), rng.integers(p, size=n * 5)]
    values = rng.random(n * 7)
    X = sparse.csr_matrix((values, (np.tile(np.arange(n), 7), columns)), shape=(n, p))
    y = 10 * values[:n] - 10 * values[n : 2 * n]
    model = SparseBayesRegressor(**{**short, "density": 0.1, "batch_size": 100, "max_steps": 100}).fit(X, y)
    assert model.feature_importances_.shape == (p,)
    assert {7, 999_999} <= set(np.argsort(model.feature_importances_)[-2:])
    assert model._draws.architecture.n_inputs < n * 7
    assert model.predict(X).shape == (n,)


@pytest.mark.parametrize("name", methods.names())
def test_every_method_has_its_estimators(name, numbers, classes):
    # Few steps, for which the rate must be higher than for a thousand; whoever knows of no rate keeps its own.
    if name == "laplace":
        pytest.importorskip("laplace")
    options = {"lr": 0.01} if "lr" in methods.options_of(name) else {}
    if name == "mbnn":
        options["sampler"] = "sgld"  # a step of HMC is dozens of passes over all rows
    steps = 50 if name == "aeb" else 30  # its five samples are of the last tenth
    settings = {"method": name, "hidden": (8,), "max_steps": steps, "members": 1, "options": options, "random_state": 0}
    X, y = classes
    probs = SparseBayesClassifier(**settings).fit(X, y).predict_proba(X)
    assert probs.shape == (300, 3)
    assert np.isfinite(probs).all()
    X, y = numbers
    model = SparseBayesRegressor(**settings).fit(X, y)
    mean, std = model.predict(X, return_std=True)
    assert np.isfinite(mean).all()
    assert (std > 0).all()
    assert (model.feature_importances_ >= 0).all()


OFTEN = {"sgd", "cv_sghmc", "em_mcmc"}
OWN_NOISE = {"laplace"}  # takes numbers with a known noise alone


def steep_table():
    """Little noise, and therefore a steep loss, at which a rate for images diverges."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 5))
    return X, 3 * X[:, 0] + 0.1 * rng.normal(size=600)


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in OFTEN else pytest.mark.slow) for n in methods.names() if n not in OWN_NOISE],
)
def test_every_method_predicts_numbers_as_it_comes(name):
    X, y = steep_table()
    model = SparseBayesRegressor(name, hidden=(32,), members=1, random_state=0).fit(X[:400], y[:400])
    assert model.score(X[400:], y[400:]) > 0.95  # 0.999 at best
    low, high = model.predict_interval(X[400:], 0.9)
    assert ((low < y[400:]) & (y[400:] < high)).mean() > 0.8


def test_a_method_under_another_name_predicts_the_same(tmp_path, monkeypatch):
    """Nothing is looked up by the name."""
    (tmp_path / "another_name.py").write_text(Path(rigl.__file__).read_text("utf-8"), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    X, y = steep_table()
    scores = [
        SparseBayesRegressor(name, hidden=(32,), members=1, random_state=0)
        .fit(X[:400], y[:400])
        .score(X[400:], y[400:])
        for name in ("rigl", "another_name:rigl")
    ]
    assert scores[0] == scores[1] > 0.95


def test_a_rate_that_is_asked_for_is_taken(numbers, monkeypatch):
    run, seen = plan._run, []
    monkeypatch.setattr(plan, "_run", lambda *parts: seen.append(parts) or run(*parts))
    for options, rate in (({"lr": 0.02}, 0.02), ({"lr": np.float32(0.25)}, 0.25), (None, 0.003)):
        SparseBayesRegressor("cv_sghmc", hidden=(), max_steps=30, options=options, random_state=0).fit(*numbers)
        how, trainings = seen[-1]
        assert how.options["lr"] == pytest.approx(rate)
        assert ("limit" in trainings[0].state_dict()) == (options is None)


def test_what_predicts_no_better_than_a_constant_is_told(numbers, caplog):
    X, y = numbers
    for lr, told in ((1e-7, 1), (None, 0)):
        caplog.clear()
        SparseBayesRegressor("sgd", hidden=(8,), max_steps=200, members=1, lr=lr, random_state=0).fit(X, y)
        assert (
            sum(
                "sgd: the predictions for the training examples are no better than the mean" in m
                for m in caplog.messages
            )
            == told
        )


def test_a_training_that_ends_too_early_says_so(numbers):
    """The noise of a target that is predicted without error shrinks as long as training lasts; other noise is found."""
    X, y = numbers
    settings = {"hidden": (), "density": 1.0, "fdr": 1.0, "random_state": 0}
    with pytest.warns(ConvergenceWarning, match=r"ended after 100 steps .* train longer, as with max_steps=200"):
        SparseBayesRegressor(**settings, max_steps=100, lr=0.02).fit(X, X[:, 0])
    with warnings.catch_warnings(action="error"):
        SparseBayesRegressor(**settings, max_steps=200, lr=0.1).fit(X, y)


def test_what_still_learns_gets_more_rounds(numbers, monkeypatch):
    """Up to four of them, each at half the rate of the one before, unless the number of steps is given."""
    monkeypatch.setattr(plan, "PREDICT_NUMBERS", replace(plan.PREDICT_NUMBERS, min_steps=100, epochs=0, more_epochs=0))
    X, y = numbers
    settings = {"hidden": (), "density": 1.0, "fdr": 1.0, "random_state": 0}
    run, rates = plan._run, []

    def seen(recipe, trainings, *more):
        rates.append(trainings[0].method.lr(0))
        return run(recipe, trainings, *more)

    monkeypatch.setattr(plan, "_run", seen)
    with pytest.warns(ConvergenceWarning, match="ended after 400 steps"):
        endless = SparseBayesRegressor(**settings, lr=0.1).fit(X, X[:, 0])
    assert endless.n_steps_ == len(endless.loss_curve_) == 400
    assert endless.loss_curve_[-20:].mean() < endless.loss_curve_[80:100].mean() - 0.5
    assert rates[2:] == [rates[1] / 2, rates[1] / 4, rates[1] / 8]  # after that of the networks that select
    settled = SparseBayesRegressor(**settings, lr=0.1).fit(X, y)
    assert settled.n_steps_ < 400


def test_a_later_round_that_diverges_does_not_count(numbers, monkeypatch):
    """Where the noise is next to nothing, a return to the full rate costs thousands of nats."""
    run, calls = plan._run, []

    def once(*parts):
        calls.append(parts)
        if len(calls) > 2:  # those that select, and the first round
            raise DivergenceError("a loss of 2e3")
        return replace(run(*parts), fall=1.0)

    monkeypatch.setattr(plan, "_run", once)
    monkeypatch.setattr(plan, "PREDICT_NUMBERS", replace(plan.PREDICT_NUMBERS, min_steps=20, epochs=0, more_epochs=0))
    model = SparseBayesRegressor(hidden=(), density=1.0, fdr=1.0, lr=0.02, random_state=0)
    with pytest.warns(ConvergenceWarning, match="ended after 20 steps"):
        model.fit(*numbers)
    assert len(calls) == 3
    assert np.isfinite(model.predict(numbers[0])).all()


def test_the_same_seed_gives_the_same_answers_and_disturbs_nobody(short, classes):
    X, y = classes
    before = torch.get_rng_state()
    first, second = (SparseBayesClassifier(**short).fit(X, y).predict_proba(X) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    other = SparseBayesClassifier(**{**short, "random_state": 1}).fit(X, y).predict_proba(X)
    assert not np.array_equal(first, other)
    assert torch.equal(torch.get_rng_state(), before)


def test_threads_fit_as_one_after_another_does_and_leave_the_generator_alone(classes, short):
    X, y = classes

    def fitted(seed):
        return SparseBayesClassifier(**{**short, "random_state": seed}).fit(X, y).predict_proba(X)

    expected, before = [fitted(seed) for seed in range(4)], torch.get_rng_state()
    for probs, alone in zip(Parallel(4, backend="threading")(map(delayed(fitted), range(4))), expected, strict=True):
        assert (probs == alone).all()
    assert torch.equal(torch.get_rng_state(), before)


def test_scikit_learns_tools(short, numbers):
    X, y = numbers
    model = SparseBayesRegressor(**short)
    assert cross_val_score(model, X, y, cv=2).min() > 0.8
    search = GridSearchCV(model, {"hidden": [(), (8,)], "density": [1.0]}, cv=2).fit(X, y)
    assert set(search.best_params_) == {"hidden", "density"}
    chained = make_pipeline(QuantileTransformer(n_quantiles=50), clone(model)).fit(X, y)
    assert chained.score(X, y) > 0.7
    selected = make_pipeline(SelectFromModel(model, threshold=0.05), LinearRegression()).fit(X, y)
    assert {"x0", "x1"} <= set(selected[:-1].get_feature_names_out())
    assert make_pipeline(clone(model), LinearRegression()).fit(X, y).score(X, y) > 0.9  # as a selector


@pytest.mark.parametrize("package", ["pandas", "polars"])
def test_data_frames_keep_their_names(package, short, numbers):
    frames = pytest.importorskip(package)
    X, y = numbers
    names = [f"column {i}" for i in range(6)]
    frame = frames.DataFrame({name: X[:, i] for i, name in enumerate(names)})
    model = SparseBayesRegressor(**short).fit(frame, frames.Series(y))
    assert model.feature_names_in_.tolist() == names
    chosen = [name for name, is_chosen in zip(names, model.get_support(), strict=True) if is_chosen]
    assert chosen[:2] == names[:2]
    assert model.get_feature_names_out().tolist() == chosen
    assert list(model.set_output(transform=package).transform(frame).columns) == chosen
    np.testing.assert_array_equal(model.predict(frame), SparseBayesRegressor(**short).fit(X, y).predict(X))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": "svi"}, "unknown method 'svi'; did you mean 'ssvi'"),
        ({"options": {"learning_rate": 0.1}}, "unknown option of ssvi 'learning_rate'"),
        ({"options": {"lr": "fast"}}, "option lr of ssvi must be a number"),
        ({"options": {"density": 0.1}}, "density is given twice"),
        ({"method": "vi"}, "method 'vi' takes no density"),
        ({"density": 0.0}, "density must be a number in"),
        ({"hidden": "16"}, "hidden must be the widths"),
        ({"members": 0}, "members must be a whole number, at least 1"),
        ({"hidden": (0,)}, r"hidden\[0\] must be a whole number"),
        ({"max_steps": 0}, "max_steps must be a whole number, at least 1; got 0"),
        ({"n_draws": 2.5}, "n_draws must be a whole number"),
        ({"batch_size": True}, "batch_size must be a whole number"),
        ({"fdr": 0}, "fdr must be a number above 0, at most 1; got 0"),
        ({"device": "tpu"}, "device must be 'auto', 'cpu' or 'cuda'"),
        ({"noise": "none"}, "noise must be 'constant', 'varying' or None"),
    ],
)
def test_wrong_parameters_are_named(changes, message, short, numbers):
    with pytest.raises(ValueError, match=message):
        SparseBayesRegressor(**{**short, **changes}).fit(*numbers)


def test_a_device_that_is_not_there(short, numbers):
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(ValueError, match="torch sees no CUDA device"):
        SparseBayesRegressor(**short, device="cuda").fit(*numbers)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("make", [np.asarray, sparse.csr_array])
def test_what_a_gpu_trained_is_on_the_cpu(make, short, numbers):
    X, y = numbers
    model = SparseBayesRegressor(**short, device="cuda").fit(make(X), y)
    assert model.score(X, y) > 0.8
    assert all(value.device.type == "cpu" for value in model._draws.values.values())


def test_a_training_that_diverges_says_so(numbers):
    X, y = numbers
    model = SparseBayesRegressor("sgd", hidden=(16,), options={"lr": 1e6}, max_steps=20, random_state=0)
    with pytest.raises(ValueError, match=r"training diverged at step \d+: .* Give a smaller learning rate"):
        model.fit(X, y)


def test_tables_that_cannot_be(short, numbers):
    X, y = numbers
    model = SparseBayesRegressor(**short)
    with pytest.raises(NotFittedError):
        model.predict(X)
    with pytest.raises(ValueError, match="Input X contains infinity"):
        model.fit(np.where(X > 2, np.inf, X), y)
    with pytest.raises(ValueError, match="could not convert string to float"):
        model.fit(X.astype(str).astype(object) + "?", y)
    with pytest.raises(ValueError, match="only one class"):
        SparseBayesClassifier(**short).fit(X, np.ones(len(y)))
    with pytest.raises(ValueError, match="Unknown label type"):
        SparseBayesClassifier(**short).fit(X, y)
    with pytest.raises(ValueError, match="X has 5 features, but SparseBayesRegressor is expecting 6"):
        model.fit(X, y).predict(X[:, :5])
    with pytest.raises(ValueError, match="Negative values in data passed to `sample_weight`"):
        model.fit(X, y, sample_weight=-np.ones(len(y)))


def test_one_row(short):
    model = SparseBayesRegressor(**short).fit([[1.0, 2.0]], [3.0])
    np.testing.assert_allclose(model.predict([[1.0, 2.0], [5.0, 5.0]]), 3.0)


def test_progress_goes_to_standard_error(short, numbers, capsys):
    SparseBayesRegressor(**short, verbose=1).fit(*numbers)
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert len(lines) == 20  # ten for each stage
    assert lines[-1].startswith("ssvi: step 60/60  loss ")


def test_em_mcmc_prunes_to_a_density_and_selects():
    """With noise from the start nothing was ever small: 4,023 of 4,050 weights stayed, and most columns."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 12))
    y = 3 * X[:, 0] - 2 * X[:, 1] + 2 * np.abs(X[:, 2]) + 0.5 * rng.normal(size=400)
    model = SparseBayesRegressor("em_mcmc", hidden=(32,), density=0.2, members=1, max_steps=600, random_state=0)
    model.fit(X, y)
    selected = np.flatnonzero(model.get_support()).tolist()
    assert {0, 1} <= set(selected) <= {0, 1, 2}
    n_active = sum(len(position) for name, position in model._draws.position.items() if name.endswith("weight"))
    assert n_active == pytest.approx(0.2 * (len(selected) * 32 + 32), abs=1)  # of the network on these columns
