"""ivon in a moving subspace: an exact budget, nothing dense in the optimizer, fresh curvature for new weights."""

import pytest
import torch

from gossamer import methods
from gossamer.data import digits
from gossamer.evaluate import evaluate
from gossamer.layers import active_parameters, sparse_weights
from gossamer.models import conv_net, mlp
from gossamer.posterior import GaussianPosterior
from gossamer.train import Training

STEPS = 150


@pytest.fixture(scope="module")
def task():
    return digits.load()


# The first convolution of the second has so few weights that all of them are active.
@pytest.mark.parametrize(("build", "n_active"), [(lambda: mlp(64, (64, 64)), 883), (conv_net, 3802 + 144)])
def test_the_budget_is_exact_and_only_active_weights_have_a_state(task, build, n_active):
    torch.manual_seed(0)
    method = methods.build("ivon", task, STEPS, density=0.1, update_period=10)
    training = Training(method, build(), task, STEPS)
    for _ in training.run(40):
        assert active_parameters(training.model) == n_active
    for weight in sparse_weights(training.model).values():
        state = training.optimizer.state[weight.mean]
        assert {tensor.shape for tensor in state.values()} == {weight.mean.shape}
    replaced = [sum(update["replaced"].values()) for rule in training.rules for update in rule.record]
    assert len(replaced) == 4
    assert min(replaced) > 0


def test_a_new_weight_starts_with_the_first_curvature(task):
    torch.manual_seed(0)
    method = methods.build("ivon", task, STEPS, density=0.1, update_period=10, curvature_momentum=0.9, lr_warmup=0.0)
    training = Training(method, mlp(64, (64, 64)), task, STEPS)
    weight = next(iter(sparse_weights(training.model).values()))
    for _ in training.run(9):
        before = set(weight.support.position.tolist())
    training.advance()
    offsets = training.optimizer.state[weight.mean]["curvature_offset"]
    new = torch.tensor([position not in before for position in weight.support.position.tolist()])
    assert bool(new.any())
    assert not bool(offsets[new].any())
    assert bool((offsets[~new] != 0).all())


def test_its_draws_are_sparse_and_predict(task):
    torch.manual_seed(0)
    training = Training(methods.build("ivon", task, 450, density=0.2), mlp(64, (64, 64)), task, 450)
    for _ in training.run():
        pass
    posterior = training.posterior()
    assert isinstance(posterior, GaussianPosterior)
    (drawn,) = posterior.draws(1)
    assert int((drawn[1].weight != 0).sum()) == len(sparse_weights(training.model)["1"].mean)
    assert evaluate(posterior, task, n_draws=10, split="val")["accuracy"] > 0.9
