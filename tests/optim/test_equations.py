"""The updates are the papers' equations: each against its transcription in NumPy, in float64, over fifty steps.

The transcriptions follow the equations as they are derived, one line each, for one vector w; they share no code with
the optimizers. The noise of a run is recorded and given to the transcription.
"""

import math

import numpy as np
import pytest
import torch

from gossamer.optim import IVON, SGHMC, SGLD, CVAdam

STEPS, SIZE, N = 50, 7, 200
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(N, SIZE)), RNG.choice([-1.0, 1.0], size=N)
START = RNG.normal(size=SIZE)
DECAY = 3e-3
EXTRA = np.where(np.arange(SIZE) % 2, 0.02, 0.0)  # the spike of a spike-and-slab prior on every second weight


def lr(step):
    return 0.25 * (1 + math.cos(math.pi * step / STEPS)) + 0.01


def slope(w):
    """Gradient of the mean of log(1 + exp(-y x·w)), a logistic regression."""
    return -(Y / (1 + np.exp(Y * (X @ w)))) @ X / N


class Run:
    """Fifty steps of an optimizer in two parameters, with the noise it drew."""

    def __init__(self, build, extra_decay=False):
        self.first, self.second = (
            torch.tensor(part, requires_grad=True) for part in (START[:3].copy(), START[3:].copy().reshape(2, 2))
        )
        self.optimizer = build([self.first, self.second])
        if extra_decay:
            for parameter, extra in ((self.first, EXTRA[:3]), (self.second, EXTRA[3:].reshape(2, 2))):
                self.optimizer.state[parameter]["extra_decay"] = torch.tensor(extra)
        self.drawn = []
        generator = torch.Generator().manual_seed(1)

        def like(tensor):
            self.drawn.append(torch.randn(tensor.shape, dtype=tensor.dtype, generator=generator))
            return self.drawn[-1].clone()

        self.optimizer.noise.like = like

    def __iter__(self):
        x, y = torch.tensor(X), torch.tensor(Y)
        for _ in range(STEPS):

            def closure():
                self.optimizer.zero_grad()
                w = torch.cat([self.first, self.second.flatten()])
                torch.nn.functional.softplus(-y * (x @ w)).mean().backward()

            self.optimizer.step(closure)
            yield torch.cat([self.first, self.second.flatten()]).detach().numpy()

    def noise(self, i):
        """The i-th draw of the whole vector: two tensors each."""
        pair = self.drawn[2 * i : 2 * i + 2]
        return torch.cat([part.flatten() for part in pair]).numpy()


def assert_equal(run, transcription):
    ours = list(run)
    for step, (w, expected) in enumerate(zip(ours, transcription(run), strict=True)):
        np.testing.assert_allclose(w, expected, rtol=0, atol=1e-10, err_msg=f"step {step}")
    assert np.abs(ours[-1] - START).max() > 0.05  # it went somewhere


@pytest.mark.parametrize("temperature", [1.0, 0.1, 0.0])
def test_sgld(temperature):
    def transcription(run):
        w = START
        for t in range(STEPS):
            l = lr(t)  # noqa: E741
            w = w - l * (slope(w) + DECAY * w) + np.sqrt(2 * l * temperature / N) * run.noise(t)
            yield w

    settings = {"n_data": N, "temperature": temperature, "weight_decay": DECAY}
    assert_equal(Run(lambda params: SGLD(params, lr, **settings)), transcription)


@pytest.mark.parametrize("temperature", [1.0, 0.0])
def test_sghmc(temperature):
    """With dw = τ r dt, dr = -β2 g dt - h r dt + noise, in steps of Δt = √l: the noise that samples the posterior."""

    def transcription(run):
        w, r, beta1, beta2, tau = START, np.zeros(SIZE), 0.7, 0.9, 0.8
        for t in range(STEPS):
            dt = math.sqrt(lr(t))
            g = slope(w) + DECAY * w
            r = beta1 * r - beta2 * g * dt + np.sqrt(2 * (1 - beta1) * beta2 * temperature / (N * tau)) * run.noise(t)
            w = w + tau * r * dt
            yield w

    settings = {"n_data": N, "temperature": temperature, "weight_decay": DECAY}
    settings |= {"momentum": 0.7, "gradient_weight": 0.9, "local_scale": 0.8}
    assert_equal(Run(lambda params: SGHMC(params, lr, **settings)), transcription)


@pytest.mark.parametrize("has_extra", [False, True])
def test_sghmc_as_published(has_extra):
    """Algorithm 2 as released: ρ first, by the previous ε and a gradient without decay; the noise of the paper."""

    def transcription(run):
        w, v, eps, rho = START, 0.001 * run.noise(0), run.noise(1), np.zeros(SIZE)
        k, beta1, beta2, eta, decay = N**-0.5, 0.1, 1.0, 0.1, DECAY + EXTRA * has_extra
        for t in range(STEPS):
            dt, g = math.sqrt(lr(t)), slope(w)
            tau = 1 / (1 + np.exp(-rho))
            alpha = k * dt**1.5
            rho = rho + eta * (1 / (N * tau) - alpha**2 * decay * tau) - eta * alpha * eps * g
            tau = 1 / (1 + np.exp(-rho))
            eps = run.noise(t + 2)
            v = beta1 * v - beta2 * (g + decay * w) * dt**2 + np.sqrt(2 + 2 * beta1**2) * k * dt**1.5 * eps
            w = w + tau * v
            yield w

    settings = {"n_data": N, "weight_decay": DECAY, "mode": "reference"}
    assert_equal(Run(lambda params: SGHMC(params, lr, **settings), has_extra), transcription)


@pytest.mark.parametrize("has_extra", [False, True])
def test_cv_adam(has_extra):
    """Algorithm 1, the step of ρ along the slope of the divergence in log τ and the pull of the prior at the mean."""

    def transcription(run):
        alpha, temperature, beta1, beta2, eta = 0.5, 0.8, 0.6, 0.9, 0.05
        mu, m, decay = START, np.zeros(SIZE), DECAY + EXTRA * has_extra
        rho = np.full(SIZE, math.log(0.1 / 0.9))  # σ starts at 0.05 = α · 0.1
        for t in range(STEPS):
            tau, eps = 1 / (1 + np.exp(-rho)), run.noise(t)
            g = slope(mu + alpha * tau * eps)
            m = beta1 * m + beta2 * (g + decay * mu)
            d_divergence_d_tau = N / temperature * (alpha * eps * g + alpha**2 * decay * tau) - 1 / tau
            rho = rho - np.clip(eta * tau * d_divergence_d_tau, -1, 1)
            tau = 1 / (1 + np.exp(-rho))
            mu = mu - lr(t) * tau * m
            yield mu

    settings = {"n_data": N, "temperature": 0.8, "weight_decay": DECAY, "momentum": 0.6}
    settings |= {"gradient_weight": 0.9, "scale_lr": 0.05, "init_std": 0.05, "global_scale": 0.5}
    assert_equal(Run(lambda params: CVAdam(params, lr, **settings), has_extra), transcription)


@pytest.mark.parametrize("has_extra", [False, True])
def test_cv_adam_as_published(has_extra):
    """Algorithm 1 with α = k l^¾, the decay at the draw, and ρ by the loss's gradient alone, as the released code."""

    def transcription(run):
        mu, m, rho = START, np.zeros(SIZE), np.zeros(SIZE)
        k, beta1, beta2, eta, decay = N**-0.5, 0.1, 1.0, 0.1, DECAY + EXTRA * has_extra
        for t in range(STEPS):
            alpha, eps = k * lr(t) ** 0.75, run.noise(t)
            tau = 1 / (1 + np.exp(-rho))
            w = mu + alpha * tau * eps
            g = slope(w)
            m = beta1 * m + beta2 * (g + decay * w)
            rho = rho + eta * (1 / (N * tau) - alpha**2 * decay * tau) - eta * alpha * eps * g
            tau = 1 / (1 + np.exp(-rho))
            mu = mu - lr(t) * tau * m
            yield mu

    settings = {"n_data": N, "weight_decay": DECAY, "mode": "reference"}
    assert_equal(Run(lambda params: CVAdam(params, lr, **settings), has_extra), transcription)


@pytest.mark.parametrize("has_extra", [False, True])
def test_ivon(has_extra):
    """Algorithm 1 of Shen et al., with the effective sample size λ = N/T and the rescaled rate of the released code."""

    def transcription(run):
        ess, h0, beta1, beta2, delta = N / 0.8, 0.3, 0.9, 0.95, DECAY + EXTRA * has_extra
        m, g, h = START, np.zeros(SIZE), np.full(SIZE, h0)
        for t in range(STEPS):
            sigma = 1 / np.sqrt(ess * (h + delta))
            w = m + sigma * run.noise(t)
            g_hat = slope(w)
            h_hat = g_hat * (w - m) / sigma**2
            g = beta1 * g + (1 - beta1) * g_hat
            h = beta2 * h + (1 - beta2) * h_hat + 0.5 * (1 - beta2) ** 2 * (h - h_hat) ** 2 / (h + delta)
            g_bar = g / (1 - beta1 ** (t + 1))
            m = m - lr(t) * (h0 + delta) * (g_bar + delta * m) / (h + delta)
            yield m

    settings = {"n_data": N, "temperature": 0.8, "weight_decay": DECAY, "init_curvature": 0.3}
    settings |= {"curvature_momentum": 0.95}
    assert_equal(Run(lambda params: IVON(params, lr, **settings), has_extra), transcription)


def test_the_usual_temperatures():
    """1, that of the posterior, and in reference mode the paper's k."""
    w = torch.zeros(1, requires_grad=True)
    assert SGLD([w], 0.1, n_data=N).param_groups[0]["temperature"] == 1
    assert SGHMC([w], 0.1, n_data=N).param_groups[0]["temperature"] == 1
    assert SGHMC([w], 0.1, n_data=N, mode="reference").param_groups[0]["temperature"] == N**-0.5


def test_local_scales_are_learnt_in_reference_mode_alone():
    w = torch.zeros(1, requires_grad=True)
    with pytest.raises(ValueError, match="in reference mode alone: leave scale_lr out"):
        SGHMC([w], 0.1, n_data=N, scale_lr=0.1)
