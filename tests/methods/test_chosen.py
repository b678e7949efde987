"""What a method says that it chose, and a run writes down, is what its parts use."""

import dataclasses
import itertools
from importlib.util import find_spec

import pytest
import torch

from gossamer import methods
from gossamer.data import digits
from gossamer.layers import CurvatureWeight, sparse_weights
from gossamer.methods._birth_death import BirthDeath
from gossamer.methods.mbnn import AfterTrajectories
from gossamer.methods.rank1 import Factor
from gossamer.models import mlp
from gossamer.optim import Curvature
from gossamer.posterior import InAverage
from gossamer.sparsity.allocation import ALLOCATION
from gossamer.train import Training
from gossamer.types import LayerStats

STEPS = 100
VARIANTS = [
    ("ssvi", {"std": "gradient"}),
    ("ssvi", {"std": "gradient", "kl_weight": 0.5, "kl_warmup": 0.2, "std_lr": 0.3}),
    ("ssvi", {"mode": "reference", "allocation": "uniform"}),
    ("ssvi", {"average": 0.4, "noise": "weights", "temperature": 0.3, "update_period": 7}),
    ("ssvi", {"temperature": 0.0}),
    ("ssvi", {"prior": "own"}),
    ("vi", {"mode": "reference"}),
    ("vd", {"kl_weight": 0.7}),
    ("sbp", {"kl_weight": 0.3}),
    ("em_mcmc", {"density": 0.3}),
    ("em_mcmc", {"mode": "reference"}),
    ("cv_sghmc", {"cycles": 2, "temperature": 0.5}),
    ("cv_adam", {"mode": "reference"}),
    ("mbnn", {"sampler": "hmc", "leapfrog": 2, "samples": 3}),
    ("mbnn", {"sampler": "sgld", "update_period": 4}),
    ("swag", {"every": 4}),
    ("sgd", {"optimizer": "adam"}),
]


class Watched:
    """A training to its end, and what happened in it."""

    def __init__(self, name, options, monkeypatch):
        task, self.moves = digits.load(), []
        self.at_first = methods.build(name, task, STEPS, **options)
        self.training = Training(self.at_first, mlp(64, (8,)), task, STEPS)
        self.method, self.model = self.training.method, self.training.model
        self.penalty, self.collector, self.rules = self.training.penalty, self.training.collector, self.training.rules
        self.chosen, self.optimizer = self.training.chosen, self.training.inner_optimizer
        self.kl_weight = self._kl_weight()
        self.active = {name: weight.support.n_active for name, weight in sparse_weights(self.model).items()}
        move = BirthDeath.move
        monkeypatch.setattr(BirthDeath, "move", lambda chain, loss: self.moves.append(None) or move(chain, loss))
        self.rates, moved = [], [0]
        for _ in self.training.run():
            self.rates.append([group["lr"] for group in self.optimizer.param_groups])
            moved.append(len(self.moves))
        self.updates = [update["step"] for update in self.training.updates]
        self.updates += [step for step, (a, b) in enumerate(itertools.pairwise(moved), start=1) if b > a]

    def _kl_weight(self):
        """By what the KL in nats is multiplied at the end, from the value of the penalty."""
        weights = [weight for weight in sparse_weights(self.model).values() if hasattr(weight, "kl")]
        factors = [module.kl(0.1) for module in self.model.modules() if isinstance(module, Factor)]
        total = sum(factors) + sum(weight.kl() for weight in weights)
        return float((self.penalty(self.model, STEPS) * digits.load().n_data / total).detach()) if total else 0.0

    @property
    def group(self):
        return self.optimizer.param_groups[0]

    def in_trajectories(self):
        return any(isinstance(rule, AfterTrajectories) for rule in self.rules)

    def temperature(self):
        if not any(isinstance(rule, Curvature) for rule in self.rules):
            return self.group["temperature"]
        (noise_scale,) = {weight.noise_scale for weight in sparse_weights(self.model).values()}
        return digits.load().n_data * noise_scale

    def weight_decay(self):
        curved = {w.damping for w in sparse_weights(self.model).values() if isinstance(w, CurvatureWeight)}
        return curved.pop() if len(curved) == 1 else self.group["weight_decay"]

    def allocation(self):
        weights = sparse_weights(self.model)
        layers = [LayerStats(name, tuple(weight.shape)) for name, weight in weights.items()]
        density = sum(self.active.values()) / sum(layer.size for layer in layers)
        (found,) = [
            name for name in ("erk", "uniform") if ALLOCATION[name](layers, density) == list(self.active.values())
        ]
        return found

    def cycles(self):
        rates = [row[0] for row in self.rates[5:]]  # after the warm-up
        return 1 + sum(later - earlier > 0.3 * max(rates) for earlier, later in itertools.pairwise(rates))

    def last_rise(self):
        scales = [self.penalty.scale(step) for step in range(STEPS)]
        return scales.index(scales[-1]) / STEPS


PROBES = {
    "lr": lambda run: pytest.approx(max(row[0] for row in run.rates), rel=0.05),  # a warm-up ends a little lower
    "optimizer": lambda run: type(run.rules[0].weights if run.in_trajectories() else run.optimizer).__name__,
    "kl_weight": lambda run: pytest.approx(run.kl_weight, rel=1e-4),
    "temperature": lambda run: pytest.approx(run.temperature(), rel=1e-5),
    "update_period": lambda run: next(b - a for a, b in itertools.pairwise(sorted(set(run.updates)))),
    "momentum": lambda run: run.group["momentum"],
    "weight_decay": lambda run: run.weight_decay(),
    "scale_lr": lambda run: run.group["scale_lr"],
    "cycles": lambda run: run.cycles(),
    "group": lambda run: run.rules[0].scoring.groups or "channel",
    "until": lambda run: run.rules[0].last_step / STEPS if run.rules[0].last_step else 1.0,
    "hard_threshold": lambda run: run.rules[0].threshold,
    "std": lambda run: {True: "curvature", False: "gradient"}[
        all(isinstance(weight, CurvatureWeight) for weight in sparse_weights(run.model).values())
    ],
    "noise": lambda run: next(iter({weight.noise for weight in sparse_weights(run.model).values()})),
    "allocation": lambda run: run.allocation(),
    "average": lambda run: 1 - run.collector.begin / STEPS if isinstance(run.collector, InAverage) else 0.0,
    "std_lr": lambda run: pytest.approx(run.rates[0][1] / run.rates[0][0] * run.chosen["lr"]),
    "kl_warmup": lambda run: pytest.approx(run.last_rise(), abs=1 / STEPS),
    "inclusion_lr": lambda run: pytest.approx(run.rates[0][1]),
    "slab_std": lambda run: run.penalty.prior.slab_std,
    "every": lambda run: run.collector.every,
    "sampler": lambda run: "hmc" if run.in_trajectories() else "sgld",
    "samples": lambda run: len(run.collector.kept),
    "strength": lambda run: pytest.approx(run.rules[0].chain.cost ** 0.2 / torch.tensor(959.0).log().item()),
    "prior_scale": lambda run: run.penalty.width,
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *(
            pytest.param(name, {}, id=name, marks=[pytest.mark.slow] * (name == "mbnn"))
            for name in methods.names()
            if name != "laplace" or find_spec("laplace")
        ),
        *(pytest.param(*variant, id=f"{variant[0]} {variant[1]}") for variant in VARIANTS),
    ],
)
def test_what_is_recorded_is_what_is_used(name, options, monkeypatch):
    """A new name needs a line in ``PROBES`` that looks where the value is used."""
    run = Watched(name, options, monkeypatch)
    assert run.chosen
    for option, value in run.chosen.items():
        assert value == PROBES[option](run), option
    given = {option: run.chosen[option] for option in options if option in run.chosen and option != "optimizer"}
    assert given == {option: options[option] for option in given}
    assert ("kl_weight" in run.chosen) == (run.kl_weight != 0)
    assert all(isinstance(value, bool | int | float | str) for value in run.chosen.values())


def test_a_method_without_a_word_about_its_choices_still_trains():
    task = digits.load()
    method = dataclasses.replace(methods.build("sgd", task, 2), chosen={})
    assert Training(method, mlp(64, (8,)), task, 2).chosen == {"lr": 0.1, "optimizer": "SGD"}
