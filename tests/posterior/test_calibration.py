"""One factor of all variances, found on held-out examples, used by draws and unknown to training."""

import copy
import io
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import gossamer
from gossamer.layers import GaussianWeight, sparse_weights
from gossamer.posterior import GaussianPosterior, InLayers, Mixture, Refresh, SingleNetwork
from gossamer.posterior.calibration import DECADES, PRECISION, search
from gossamer.train.capture.flat_weights import FlatWeights

STDS = ("curvature", "gradient")


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def factors(model):
    return {weight.calibration for weight in sparse_weights(model).values() if isinstance(weight, GaussianWeight)}


@pytest.fixture(params=STDS)
def regression(request):
    """A linear regression whose posterior is known, held by a network with σ three times too small or too large."""
    torch.manual_seed(0)
    n, noise = 20, 0.5
    truth = torch.randn(8)
    x = torch.linalg.qr(torch.randn(n, 8)).Q * math.sqrt(n)  # orthogonal columns: the posterior is a product
    y = x @ truth + noise * torch.randn(n)
    variance = 1 / (n / noise**2 + 1)  # prior N(0, 1)
    mean = variance * (x.T @ y) / noise**2

    def build(scale):
        model = gossamer.bayesianize(nn.Linear(8, 1, bias=False), density=1.0, init_std=0.1, std=request.param)
        with torch.no_grad():
            model.weight.mean.copy_(mean)
        model.weight.set_std(torch.full((8,), scale * math.sqrt(variance)))
        return model

    x_val = torch.randn(5000, 8)
    return build, x_val, x_val @ truth + noise * torch.randn(len(x_val)), noise, truth - mean, variance


@pytest.mark.parametrize("scale", [1 / 3, 1.0, 3.0])
def test_it_finds_the_factor_by_which_the_variances_are_wrong(regression, scale):
    build, x, y, noise, error, variance = regression
    model = build(scale)
    options = {"n_draws": 200, "batch_size": len(x), "generator": generator()}
    found = gossamer.calibrate(model, x, y, likelihood=gossamer.Gaussian(noise_std=noise), **options)
    # The best width for these examples is that of the mean's actual error: E |x·(truth - mean)|² = Σ error².
    best = float(error.square().mean()) / (scale**2 * variance)
    # The variance of 200 draws along one direction has a relative error of √(2/200) = 10 %; that of the errors x·e of
    # 5,000 examples is 2 %, and the search stops within 10 %.
    assert 1 / 1.3 < found.temperature / best < 1.3
    assert factors(model) == {found.temperature}
    torch.testing.assert_close(model.weight.std, model.weight.learnt_std() * math.sqrt(found.temperature))


def classifier(std="curvature", **options):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(6, 20), nn.BatchNorm1d(20), nn.ReLU(), nn.Linear(20, 3))
    return gossamer.bayesianize(network, density=0.5, std=std, **options)


def examples(n=300, seed=1):
    x = torch.randn(n, 6, generator=generator(seed))
    return x, (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long()


def nll_of(model, x, y, seed=5, n_draws=20):
    outputs = gossamer.predict(model, x, n_draws, generator=generator(seed)).outputs
    return -float(gossamer.Categorical().log_predictive(outputs.double(), y).mean())


@pytest.mark.parametrize("std", STDS)
@pytest.mark.parametrize("init_std", [0.01, 0.3, 3.0])
def test_the_nll_of_the_split_is_never_worse(std, init_std):
    model, (x, y) = classifier(std, init_std=init_std), examples()
    model.eval()
    found = gossamer.calibrate(model, x, y)
    assert found.nll_after <= found.nll_before
    assert 0.99e-3 < found.temperature < 101


def test_the_nll_is_that_of_predict_with_the_same_draws():
    model, (x, y) = classifier(init_std=1.0), examples()
    found = gossamer.calibrate(model, x, y, batch_size=7, generator=generator(3))
    seed = int(torch.randint(2**62, (), generator=generator(3)))
    assert nll_of(model, x, y, seed) == pytest.approx(found.nll_after, rel=1e-6)
    for weight in sparse_weights(model).values():
        weight.calibration = 1.0
    assert nll_of(model, x, y, seed) == pytest.approx(found.nll_before, rel=1e-6)


def test_a_collapsed_posterior_is_explained_in_words(caplog):
    """Sure and right at its means, so that any noise in the weights costs: the search ends at the lowest factor."""
    model, (x, y) = classifier(init_std=5.0).eval(), examples()
    y = gossamer.draw(model, at_mean=True)(x).argmax(1)
    with torch.no_grad():
        model[3].mean.mul_(20)
    found = gossamer.calibrate(model, x, y, generator=generator())
    assert found.temperature < 0.01
    assert "Draws now agree" in found.meaning
    assert "members=5" in found.meaning
    assert [record.getMessage() for record in caplog.records] == [f"calibrate: {found.meaning}"]
    caplog.clear()
    assert gossamer.calibrate(model, x, y, widths=[1.0]).temperature == 1.0  # the way out that the words name
    assert not caplog.records
    assert {weight.calibration for weight in sparse_weights(model).values()} == {1.0}


def test_a_second_call_finds_the_same():
    model, (x, y) = classifier(init_std=1.0), examples()
    first = gossamer.calibrate(model, x, y, generator=generator())
    assert first.temperature < 0.5
    assert gossamer.calibrate(model, x, y, generator=generator()) == first


@pytest.mark.parametrize("std", STDS)
def test_it_is_saved_and_loaded(std):
    model, (x, y) = classifier(std, init_std=1.0), examples()
    found = gossamer.calibrate(model, x, y)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    other = classifier(std, init_std=0.1)
    other.load_state_dict(torch.load(file))
    assert factors(other) == {found.temperature}
    assert nll_of(other, x, y) == nll_of(model, x, y)


def test_only_the_calibration_changes():
    model, (x, y) = classifier(init_std=1.0), examples()
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    gossamer.calibrate(model, x, y, generator=generator())
    assert torch.equal(torch.get_rng_state(), state)
    changed = [name for name, value in model.state_dict().items() if not torch.equal(value, before[name])]
    assert changed == ["0.weight._extra_state", "3.weight._extra_state"]
    assert model.training


@pytest.mark.parametrize("noise", ["local", "weights"])
@pytest.mark.parametrize("std", STDS)
def test_training_does_not_know_of_it(std, noise):
    """The same steps with and without a calibration in between, to the bit; then it can be calibrated again."""
    x, y = examples()

    def trained(calibrates):
        model = classifier(std, noise=noise, init_std=0.5)
        optimizer = torch.optim.SGD(gossamer.param_groups(model), lr=0.05, momentum=0.9)
        if std == "curvature":
            gossamer.Curvature(model, optimizer, n_data=len(y))
        subspace = gossamer.Subspace(model, optimizer, total_steps=20, update_period=3, removal="snr")
        torch.manual_seed(1)
        for step in range(16):
            if step == 8 and calibrates:
                gossamer.calibrate(model, *examples(seed=2), generator=generator())
                assert factors(model) != {1.0}
            loss = F.cross_entropy(model(x), y)
            if std == "gradient":
                loss = loss + gossamer.kl(model) / len(y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            subspace.step()
        return model

    one, other = trained(False), trained(True)
    founds = [gossamer.calibrate(model, *examples(seed=2), generator=generator()) for model in (one, other)]
    assert founds[0] == founds[1]
    states = one.state_dict(), other.state_dict()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


@pytest.mark.parametrize("std", STDS)
def test_captured_steps_do_not_know_of_it(std):
    model = classifier(std, init_std=1.0)
    gossamer.calibrate(model, *examples(), widths=[0.25])
    flat = FlatWeights(model, torch.float32)
    weights = sparse_weights(model).values()
    torch.testing.assert_close(flat.std, torch.cat([weight.learnt_std() for weight in weights]))
    assert all((weight.std < 0.9 * weight.learnt_std()).all() for weight in weights)
    flat.close()


def test_local_passes_and_averages_follow():
    model, (x, y) = classifier(init_std=1.0), examples()
    found = gossamer.calibrate(model, x, y, widths=[0.2])
    local = gossamer.predict(model, x, 50, kind="local", generator=generator()).outputs.var(0).mean()
    average = gossamer.averaged(model)
    average.update_parameters(model)  # of what was trained
    assert factors(average) == {1.0}
    wide = gossamer.predict(average, x, 50, kind="local", generator=generator()).outputs.var(0).mean()
    # Fifty draws give each variance to √(2/50) = 20 %, the mean over outputs to less.
    assert found.temperature < 0.5
    assert float(local / wide) < 1.5 * math.sqrt(found.temperature)


def test_the_search_finds_minima_inside_and_at_the_ends():
    for at in (-3.7, -1.0, 0.0, 0.3, 4.0):
        tried = search(lambda z, at=at: (z - at) ** 2, DECADES, PRECISION)
        assert min(tried, key=tried.get) == pytest.approx(at, abs=0.05)
        assert len(tried) < 20
    for rising in (1, -1):
        tried = search(lambda z, rising=rising: rising * z, DECADES, PRECISION)
        end = math.log(1e-3 if rising == 1 else 1e2)
        assert min(tried, key=tried.get) == pytest.approx(end, abs=0.06)
    tried = search(lambda z: math.nan if z > 1 else -z, DECADES, PRECISION)
    assert min(tried, key=tried.get) == pytest.approx(1.0, abs=0.1)


def test_a_posterior_that_refreshes_batch_normalisation_is_calibrated_with_it():
    model, (x, y) = classifier(init_std=1.0), examples()
    with torch.no_grad():
        model[1].running_var.fill_(1e-4)  # nonsense, unless refreshed
    found = gossamer.calibrate(InLayers(model, refresh=Refresh(x)), x, y, generator=generator(3))
    assert factors(model) == {found.temperature}
    seed = int(torch.randint(2**62, (), generator=generator(3)))
    outputs = gossamer.predict(InLayers(model, generator(seed), Refresh(x)), x, 20).outputs
    nll = -float(gossamer.Categorical().log_predictive(outputs.double(), y).mean())
    assert nll == pytest.approx(found.nll_after, rel=1e-6)


def test_what_it_refuses():
    model, (x, y) = classifier(), examples()
    with pytest.raises(TypeError, match="or a posterior, got list"):
        gossamer.calibrate([model], x, y)
    with pytest.raises(ValueError, match="no Gaussian weights, so there is no width"):
        gossamer.calibrate(gossamer.sparsify(nn.Linear(6, 3), density=0.5), x, y)
    with pytest.raises(ValueError, match="as many examples; got 300 and 299"):
        gossamer.calibrate(model, x, y[1:])
    with pytest.raises(ValueError, match="no held-out examples"):
        gossamer.calibrate(model, x[:0], y[:0])
    with pytest.raises(ValueError, match=r"class numbers from 0 to 2.*int64 from 0 to 3"):
        gossamer.calibrate(model, x, y + (y == 2))
    with pytest.raises(ValueError, match=r"got torch.float32.*pass likelihood=Gaussian"):
        gossamer.calibrate(model, x, y.float())
    with pytest.raises(ValueError, match="no classes at dimension 1"):
        gossamer.calibrate(gossamer.bayesianize(nn.Linear(6, 1)), x, y)
    with pytest.raises(ValueError, match="count from 1"):
        gossamer.calibrate(model, x, y, n_draws=0)
    with pytest.raises(ValueError, match="not finite for any width"):
        gossamer.calibrate(model, x * math.nan, y)
    assert factors(model) == {1.0}


# ---------------------------------------------------------------------- posteriors and mixtures, with logits


def mixture_of(n=3, init_std=0.3):
    members = []
    for seed in range(n):
        torch.manual_seed(seed)
        members.append(InLayers(gossamer.bayesianize(nn.Linear(6, 3), density=0.5, init_std=init_std)))
    return Mixture(members)


def test_a_temperature_of_the_logits_is_that_of_a_search_by_hand():
    """At a fixed width: the NLL over a fine grid of temperatures has its minimum where it was found."""
    posterior, (x, y) = InLayers(classifier(init_std=0.3)), examples(2000)
    with torch.no_grad():
        posterior.model[3].mean.mul_(5)  # far too sure
    posterior.model.eval()
    found = gossamer.calibrate(posterior, x, y, widths=(1.0,), logits=True, generator=generator())
    assert (found.temperature, posterior.temperature) == (1.0, found.logit_temperature)
    assert found.nll_after < found.nll_before
    outputs = gossamer.predict(posterior, x, n_draws=20).outputs.double()
    again = outputs * posterior.temperature
    nll = lambda t: -float(gossamer.Categorical().log_predictive(again / t, y).mean())  # noqa: E731
    # Other draws than those that chose: flat around the minimum.
    assert nll(found.logit_temperature) < 1.01 * min(nll(math.exp(i / 20)) for i in range(-40, 60))


def test_a_mixture_is_calibrated_as_a_whole():
    mixture, (x, y) = mixture_of(init_std=1.0), examples(600)
    found = gossamer.calibrate(mixture, x, y, n_draws=30, logits=True, generator=generator())
    assert found.nll_after < found.nll_before
    for member in mixture.posteriors:
        assert factors(member.model) == {found.temperature}
    outputs = gossamer.predict(mixture, x, n_draws=30).outputs
    nll = -float(gossamer.Categorical().log_predictive(outputs.double(), y).mean())
    assert nll == pytest.approx(found.nll_after, rel=0.1)
    assert nll < found.nll_before


def test_of_widths_that_cannot_be_told_apart_the_widest_is_taken():
    """A tiny width makes no difference to any prediction, and a huge one does."""
    posterior, (x, y) = InLayers(classifier(init_std=1e-6)), examples()
    posterior.model.eval()
    found = gossamer.calibrate(posterior, x, y, widths=(0.0, 0.3, 1.0), generator=generator())
    assert found.temperature == 1.0
    posterior = InLayers(classifier(init_std=3.0))
    posterior.model.eval()
    with torch.no_grad():
        y = gossamer.draw(posterior.model, at_mean=True)(x).argmax(1)
    assert gossamer.calibrate(posterior, x, y, widths=(0.0, 0.3, 1.0), generator=generator()).temperature == 0.0
    assert gossamer.predict(posterior, x, n_draws=3).samples.std(0).max() == 0


def test_a_network_without_a_width_gets_a_temperature_alone():
    torch.manual_seed(0)
    posterior, (x, y) = SingleNetwork(nn.Linear(6, 3)), examples()
    before = gossamer.predict(posterior, x, n_draws=1).outputs
    found = gossamer.calibrate(posterior, x, y, widths=(0.0, 1.0), logits=True)
    assert found.temperature == 1.0
    after = gossamer.predict(posterior, x, n_draws=1).outputs
    torch.testing.assert_close(after * found.logit_temperature, before)


def test_stds_of_an_optimizer_have_a_width():
    network = nn.Linear(6, 3)
    stds = {name: torch.ones_like(parameter) for name, parameter in network.named_parameters()}
    posterior = GaussianPosterior(network, stds)
    wide, narrow = (
        torch.stack([one.weight.detach().clone() for one in posterior.at_width(f, generator()).draws(400)]).std(0)
        for f in (4.0, 0.25)
    )
    torch.testing.assert_close(wide / narrow, torch.full_like(wide, 4.0))
    posterior.set_width(0.0)
    assert torch.equal(next(posterior.draws(1)).weight, network.weight)


def test_a_network_keeps_no_temperature_of_logits():
    with pytest.raises(ValueError, match=r"kept by a posterior: gossamer\.fit returns one"):
        gossamer.calibrate(classifier(), *examples(), logits=True)
