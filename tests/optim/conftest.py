"""One table of all optimizers in all modes; every test that asks for ``case`` runs on each."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gossamer.optim import IVON, SGHMC, SGLD, CVAdam, sampled

N_DATA = 64
collect_ignore = ["make_logistic_truth.py"]  # a script, which needs numpyro


class Case(NamedTuple):
    """A row: how the optimizer is built of parameters and a rate."""

    name: str
    build: Callable[..., Any]

    def optimizer(self, params: Any, lr: Any = 0.05, **settings: Any) -> Any:
        return self.build(params, lr, **({"n_data": N_DATA} | settings))


OPTIMIZERS = {
    "sgld": SGLD,
    "sghmc": SGHMC,
    "sghmc_reference": partial(SGHMC, mode="reference"),
    "cv_adam": CVAdam,
    "cv_adam_reference": partial(CVAdam, mode="reference"),
    "ivon": IVON,
}


@pytest.fixture(params=OPTIMIZERS)
def case(request: pytest.FixtureRequest) -> Case:
    return Case(request.param, OPTIMIZERS[request.param])


class Loop:
    """A user's loop on a small network."""

    def __init__(self, case: Case, *, dtype: torch.dtype = torch.float32, seed: int = 0, **settings: Any) -> None:
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)).to(dtype)
        self.x, self.y = torch.randn(N_DATA, 5, dtype=dtype), torch.randint(3, (N_DATA,))
        self.optimizer = case.optimizer(self.model.parameters(), **settings)

    def loss(self) -> Tensor:
        return F.cross_entropy(self.model(self.x), self.y)

    def step(self) -> float:
        self.optimizer.zero_grad()
        with sampled(self.optimizer):
            loss = self.loss()
            loss.backward()
        self.optimizer.step()
        return loss.item()

    def steps(self, n: int) -> list[float]:
        return [self.step() for _ in range(n)]

    @property
    def weights(self) -> Tensor:
        return nn.utils.parameters_to_vector(self.model.parameters()).detach().clone()


@pytest.fixture
def loop(case: Case) -> Callable[..., Loop]:
    """Builds a loop of the case, with settings."""
    return partial(Loop, case)
