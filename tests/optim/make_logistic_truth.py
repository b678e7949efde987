"""Write ``logistic_truth.json``: the posterior of a small logistic regression, by a long run of NUTS.

    python make_logistic_truth.py [folder]

It needs numpyro (``pip install -e ".[truth]"``), which nothing else here does, so its result is kept beside it. The
data are in the file too.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.diagnostics import effective_sample_size, gelman_rubin
from numpyro.infer import MCMC, NUTS

N_DATA, PRIOR_PRECISION = 80, 0.8
N_CHAINS, N_WARMUP, N_DRAWS = 4, 2_000, 50_000


def main(folder: Path) -> None:
    jax.config.update("jax_enable_x64", True)
    x, y = data()
    sampler = MCMC(
        NUTS(model), num_warmup=N_WARMUP, num_samples=N_DRAWS, num_chains=N_CHAINS, chain_method="sequential",
        progress_bar=False,
    )  # fmt: skip
    sampler.run(jax.random.PRNGKey(0), x, y)
    draws = np.asarray(sampler.get_samples(group_by_chain=True)["w"])
    truth = {
        "made_by": f"numpyro {numpyro.__version__}, jax {jax.__version__}: NUTS, {N_CHAINS} chains of {N_DRAWS} draws",
        "r_hat": float(np.max(gelman_rubin(draws))),
        "prior_precision": PRIOR_PRECISION,
        "x": x.tolist(),
        "y": y.tolist(),
    } | moments(draws)
    (folder / "logistic_truth.json").write_text(json.dumps(truth, indent=1) + "\n")


def data() -> tuple[np.ndarray, np.ndarray]:
    """An intercept and three variables, two of them close to each other; labels 0 and 1."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=(N_DATA, 3))
    z[:, 1] = 0.9 * z[:, 0] + 0.4 * z[:, 1]
    x = np.column_stack([np.ones(N_DATA), z]).round(3)
    y = (rng.uniform(size=N_DATA) < 1 / (1 + np.exp(-x @ np.array([0.5, 1.5, -1.0, 2.0])))).astype(int)
    return x, y


def model(x: np.ndarray, y: np.ndarray) -> None:
    w = numpyro.sample("w", dist.Normal(0.0, PRIOR_PRECISION**-0.5).expand([x.shape[1]]).to_event(1))
    numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def moments(draws: np.ndarray) -> dict[str, object]:
    """Means, stds and correlations, and the standard errors of the first two by their effective sample sizes."""
    flat = draws.reshape(-1, draws.shape[-1])
    mean, std = flat.mean(0), flat.std(0)
    squares = (draws - mean) ** 2
    std_error = squares.reshape(-1, len(mean)).std(0) / np.sqrt(effective_sample_size(squares)) / (2 * std)
    return {
        "mean": mean.tolist(),
        "std": std.tolist(),
        "correlation": np.corrcoef(flat.T).tolist(),
        "mean_error": (std / np.sqrt(effective_sample_size(draws))).tolist(),
        "std_error": std_error.tolist(),
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
