"""Standard deviations from curvature against known answers: closed forms, exact derivatives, Adam on log σ."""

import copy
import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from scipy.stats import spearmanr
from torch import nn
from torch.func import functional_call, jacrev, vmap

import gossamer
from gossamer.layers import sparse_weights

OUTLIER = 5.5 * 1.48  # median errors: that many standard deviations, which the worst of 400 does not reach by chance


def train(model, loss, n_data, *, steps, batch, lr, **settings):
    """A user's loop; ``loss`` is the mean loss of some rows."""
    optimizer = torch.optim.SGD(gossamer.param_groups(model), lr=lr, momentum=0.9)
    gossamer.Curvature(model, optimizer, n_data=n_data, **settings)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        rows = torch.randperm(n_data)[:batch] if batch < n_data else slice(None)
        optimizer.zero_grad()
        loss(rows).backward()
        optimizer.step()
        schedule.step()


# Linear regression: noise of variance 1, so that the posterior of the active weights is Gaussian, and the best
# independent Gaussians for it have its mean and the precisions (N/T) (H_ii + δ), H the Hessian of the mean loss.

N_DATA, N_IN, N_OUT, DECAY = 256, 20, 20, 1e-4
HALF = N_DATA // 2

# density, noise, T, batch, how wrong σ starts: every pair of values meets
FAST = [
    (1.0, "local", 1.0, N_DATA, 0.01),
    (1.0, "weights", 1.0, HALF, 100.0),
    (1.0, "weights", 0.1, N_DATA, 100.0),
    (0.2, "local", 0.1, HALF, 100.0),
    (0.2, "weights", 1.0, HALF, 0.01),
    (0.2, "weights", 0.1, N_DATA, 0.01),
]
ALL = itertools.product((1.0, 0.2), ("local", "weights"), (1.0, 0.1), (HALF, N_DATA), (0.01, 100.0))


@pytest.mark.parametrize(
    ("density", "noise", "temperature", "batch", "wrong"),
    [*FAST, *(pytest.param(*case, marks=pytest.mark.slow) for case in ALL if case not in FAST)],
)
def test_linear_regression_has_its_closed_form(density, noise, temperature, batch, wrong):
    torch.manual_seed(0)
    x = torch.randn(N_DATA, N_IN) * torch.logspace(-0.5, 0.5, N_IN)
    x[:, 1:] += 0.5 * x[:, :-1]  # correlated
    hessian = x.T @ x / N_DATA
    best_std = (temperature / N_DATA / (hessian.diagonal() + DECAY)).sqrt()
    init_std = wrong * float(best_std.log().mean().exp())
    layer = gossamer.bayesianize(nn.Linear(N_IN, N_OUT, bias=False), density, noise=noise, init_std=init_std)
    support = layer.support
    truth = support.scatter(torch.randn(support.n_active))
    y = x @ truth.T + torch.randn(N_DATA, N_OUT)
    train(
        layer,
        lambda rows: (layer(x[rows]) - y[rows]).square().sum(1).mean() / 2,
        N_DATA,
        steps=5000 if temperature < 1 and batch < N_DATA else 3000,  # the noisiest estimates
        batch=batch,
        lr=0.01,
        temperature=temperature,
        weight_decay=DECAY,
        memory=0.2,
    )
    error = (layer.std.detach() / support.gather(best_std.expand(N_OUT, -1))).log()
    # An estimate of h is wrong by its own size or a few times that, and h averages over a third of them: σ of one
    # weight is off by 0.5 to 3 %. No weight may be further off than chance explains, nor all of them together.
    typical = float(error.abs().median())
    assert typical < 0.03
    assert float(error.abs().max()) < OUTLIER * typical
    assert abs(float(error.mean())) < 0.015

    # The means tremble with the noise of the last gradients: at T = 0.1, where σ is small, by a seventh of it.
    offset = ((layer.mean.detach() - posterior_mean(support, x, y)) / layer.std.detach()).square().mean().sqrt()
    assert float(offset) < 0.2


def posterior_mean(support, x, y):
    """Of the active weights, whatever the temperature is."""
    active, best = support.scatter(torch.ones(support.n_active)) > 0, torch.zeros(support.shape)
    for row, on in enumerate(active):
        inputs = x[:, on]
        precision = inputs.T @ inputs / N_DATA + DECAY * torch.eye(inputs.shape[1])
        best[row, on] = torch.linalg.solve(precision, inputs.T @ y[:, row] / N_DATA)
    return support.gather(best)


# A classifier that is not linear, where the answers are exact derivatives and another way to the same optimum.


def moons(n):
    x, y = gossamer.data.load("two_moons").train
    return x[:n], y[:n]


def tanh_net(*widths):
    layers = [part for sizes in itertools.pairwise(widths) for part in (nn.Linear(*sizes), nn.Tanh())]
    return nn.Sequential(*layers[:-1])


def gauss_newton(model, twin, x, n_draws):
    """The exact diagonal of the generalised Gauss-Newton matrix of the mean loss, averaged over draws."""
    weights = sparse_weights(model)
    biases = {name: value.double() for name, value in model.named_parameters() if name.endswith("bias")}
    total = dict.fromkeys(weights, 0)
    for _ in range(n_draws):
        dense = {f"{name}.weight": weight.support.scatter(weight.sample().double()) for name, weight in weights.items()}
        rows = vmap(jacrev(lambda w, row: functional_call(twin, w | biases, row)), (None, 0))(dense, x)
        p = functional_call(twin, dense | biases, x).softmax(1)
        # The Hessian of the loss in the logits, diag(p) - ppᵀ, is the sum of the squares of these vectors.
        vectors = p.sqrt()[:, :, None] * (torch.eye(p.shape[1]) - p[:, None])
        for name, weight in weights.items():
            diagonal = torch.einsum("nkc,ncoi->nkoi", vectors, rows[f"{name}.weight"]).square().sum(1).mean(0)
            total[name] += weight.support.gather(diagonal) / n_draws
    return total


@pytest.mark.parametrize("noise", ["local", "weights"])
def test_curvature_ranks_weights_as_gauss_newton_does(noise):
    torch.manual_seed(0)
    x, y = moons(800)
    twin = tanh_net(2, 16, 16, 2).double()
    model = gossamer.bayesianize(tanh_net(2, 16, 16, 2), density=0.5, noise=noise)
    train(
        model,
        lambda rows: F.cross_entropy(model(x[rows]), y[rows]),
        len(y),
        steps=1500 if noise == "local" else 2500,
        batch=100,
        lr=0.05,
        temperature=0.1,
        weight_decay=1e-3,
        memory=0.2,
    )
    with torch.no_grad():
        exact = gauss_newton(model, twin, x.double(), n_draws=10)
    for name, weight in sparse_weights(model).items():
        rho, size = spearmanr(weight.curvature, exact[name]).statistic, weight.curvature.mean() / exact[name].mean()
        assert rho >= 0.8
        assert 0.8 < float(size) < 1.4  # of the past fifth of the steps, and the Hessian has a further term


@pytest.mark.filterwarnings("ignore:n_data is 100, but a batch has 800")  # copies of the same examples
@pytest.mark.parametrize("noise", ["local", "weights"])
def test_same_stds_as_long_training_of_their_logarithms(noise, best_stds):
    """At fixed means, σ where the rule rests is where the tempered ELBO is largest."""
    model, x, y, best = copy.deepcopy(best_stds)
    for weight in sparse_weights(model).values():
        weight.noise = noise
    torch.manual_seed(0)
    many = 8 if noise == "local" else 1  # copies of an example have noise of their own
    x, y = x.repeat(many, 1), y.repeat(many)
    train(
        model,
        lambda rows: F.cross_entropy(model(x), y),
        100,
        steps=1000 if noise == "local" else 3000,
        batch=100,
        lr=0.0,
        temperature=1.0,
        weight_decay=2e-3,
        memory=0.5,
    )
    error = torch.cat([(weight.std.detach() / best[name]).log() for name, weight in sparse_weights(model).items()])
    # Either way is off by 1 to 3 % for one weight.
    typical = float(error.abs().median())
    assert typical < 0.04
    assert float(error.abs().max()) < OUTLIER * typical
    assert abs(float(error.mean())) < 0.03


@pytest.fixture(scope="module")
def best_stds():
    """A fitted network, made Bayesian, its data, and the σ of its weights by Adam on log σ."""
    torch.manual_seed(0)
    x, y = moons(100)
    net = tanh_net(2, 8, 2)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01, weight_decay=0.01)
    for _ in range(400):
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()
    twin = copy.deepcopy(net).double()
    model = gossamer.bayesianize(net, density=0.6, init="pretrained", init_std=0.3)
    weights, fixed = sparse_weights(model), dict(twin.named_parameters())
    means = {name: weight.support.scatter(weight.mean.detach().double()) for name, weight in weights.items()}
    log_std = {name: torch.full_like(mean, -1.0).requires_grad_() for name, mean in means.items()}

    def loss(noise):
        draw = {f"{k}.weight": m + (m != 0) * log_std[k].exp() * noise[k] for k, m in means.items()}
        return F.cross_entropy(functional_call(twin, fixed | draw, x.double()), y)

    steps, n_pairs = 1000, 16
    adam = torch.optim.Adam(log_std.values(), lr=0.03)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(adam, steps)
    for _ in range(steps):
        half = {name: torch.randn(n_pairs, *mean.shape, dtype=torch.float64) for name, mean in means.items()}
        noise = {name: torch.cat([one, -one]) for name, one in half.items()}  # antithetic
        # KL to the prior, times T/N, for T = 1 and N = 100: the precision of the prior is Nδ/T.
        penalty = sum((2e-3 / 2 * (2 * s).exp() - s / 100).sum() for s in log_std.values())
        adam.zero_grad()
        (vmap(loss)(noise).mean() + penalty).backward()
        adam.step()
        schedule.step()
    best = {name: weight.support.gather(log_std[name].detach().exp()) for name, weight in weights.items()}
    return model, x, y, best


# h does not depend on the temperature or on the length of the training, but its noise does.

QUICK = [("weights", 1.0, 50), ("weights", 0.1, 20), ("local", 0.01, 50), ("local", 0.1, 20)]
GRID = itertools.product(("local", "weights"), (1.0, 0.1, 0.01, 0.001), (20, 50, 200))


@pytest.mark.parametrize(
    ("noise", "temperature", "epochs"),
    [*QUICK, *(pytest.param(*case, marks=pytest.mark.slow) for case in GRID if case not in QUICK)],
)
def test_neither_temperature_nor_length_biases_the_curvature(noise, temperature, epochs):
    """In mini-batches, over inputs whose curvatures differ by a factor of a hundred: within a tenth, and its error."""
    n, batch, n_in, n_out, seeds = 256, 32, 20, 100, 3
    errors, medians = [], []
    for seed in range(seeds):
        torch.manual_seed(seed)
        x = torch.randn(n, n_in) * torch.logspace(-0.5, 0.5, n_in)
        y = x @ torch.randn(n_in, n_out) + torch.randn(n, n_out)
        layer = gossamer.bayesianize(nn.Linear(n_in, n_out, bias=False), 1.0, noise=noise)
        train(
            layer,
            lambda rows, layer=layer, x=x, y=y: (layer(x[rows]) - y[rows]).square().sum(1).mean() / 2,
            n,
            steps=epochs * n // batch,
            batch=batch,
            lr=0.02,
            temperature=temperature,
            weight_decay=DECAY,
        )
        exact = x.square().mean(0).expand(n_out, -1)
        found = layer.weight.shrunk.view(n_out, n_in)
        errors.append(float(found.sum() / exact.sum()) - 1)
        medians.append(float((found / exact).median()) - 1)
    # The variance of gε/σ, relative to h², is N/(B·T) for drawn weights (the noise of the targets is one), and the
    # running mean over a tenth of the training has the noise of some two tenths of it.
    n_estimates = 0.19 * epochs * n / batch
    of_columns = float(exact[0].square().sum() / exact[0].sum() ** 2)  # the largest make most of the sum
    error = math.sqrt(n / (batch * temperature * n_estimates) * of_columns / (n_out * seeds))
    assert abs(sum(errors) / seeds) < 0.1 + 3 * error
    assert abs(sum(medians) / seeds) < 0.15 + 3 * error  # of single weights, which c·v carries where noise is all


@pytest.mark.parametrize("noise", ["weights", "local"])
@pytest.mark.parametrize("temperature", [pytest.param(0.1, marks=pytest.mark.slow), 0.01])
def test_curvature_of_a_cold_logistic_regression(temperature, noise):
    """Where the curvature depends on the weights; at T = 0.1 and below, draws stay close to the means."""
    n, batch, n_in, n_out, steps = 512, 64, 10, 200, 2400
    torch.manual_seed(0)
    x = torch.randn(n, n_in) * torch.logspace(-0.5, 0.5, n_in)
    y = torch.bernoulli((x @ torch.randn(n_in, n_out) / 2).sigmoid())
    layer = gossamer.bayesianize(nn.Linear(n_in, n_out, bias=False), 1.0, noise=noise)
    train(
        layer,
        lambda rows: F.binary_cross_entropy_with_logits(layer(x[rows]), y[rows], reduction="none").sum(1).mean(),
        n,
        steps=steps,
        batch=batch,
        lr=0.2,
        temperature=temperature,
        weight_decay=1e-2,
    )
    with torch.no_grad():
        p = (x @ layer.weight.support.scatter(layer.mean).T).sigmoid()
        exact = (p * (1 - p)).T @ x.square() / n
    found = layer.weight.shrunk.view(n_out, n_in)
    of_columns = float(exact.square().sum() / exact.sum() ** 2)
    error = math.sqrt(n / (batch * temperature * 0.19 * steps) * of_columns)  # as in the linear regression above
    assert abs(float(found.sum() / exact.sum()) - 1) < 0.1 + 3 * error


@pytest.mark.slow
def test_curvature_under_batch_normalisation_is_the_trace_of_the_hessian():
    """The normalisation ties all rows of a batch: h against double backward through it, averaged over draws."""
    torch.manual_seed(0)
    x = torch.randn(256, 8)
    y = x[:, :3].argmax(1)
    normalisation = nn.BatchNorm1d(16, track_running_stats=False)
    twin = nn.Sequential(nn.Linear(8, 16), normalisation, nn.Tanh(), nn.Linear(16, 3))
    model = gossamer.bayesianize(copy.deepcopy(twin), 1.0, init="pretrained", noise="weights")
    train(
        model,
        lambda rows: F.cross_entropy(model(x), y),
        len(y),
        steps=4000,
        batch=len(y),
        lr=0.1,
        temperature=1.0,
        weight_decay=5e-3,
        memory=0.2,
    )
    weights, n_draws = sparse_weights(model), 40
    rest = {name: value.detach() for name, value in model.named_parameters() if not name.endswith(".mean")}
    traces = dict.fromkeys(weights, 0.0)
    for _ in range(n_draws):
        drawn = {f"{name}.weight": weight.support.scatter(weight.sample().detach()) for name, weight in weights.items()}
        for name in weights:

            def loss(theta, name=name, fixed=rest | drawn):
                return F.cross_entropy(functional_call(twin, fixed | {f"{name}.weight": theta}, x), y)

            theta = drawn[f"{name}.weight"]
            traces[name] += float(jacrev(jacrev(loss))(theta).view(theta.numel(), -1).trace()) / n_draws
    for name, weight in weights.items():
        assert float(weight.shrunk.sum()) == pytest.approx(traces[name], rel=0.1)
