"""Predictions: what is computed, from what, and that nothing else is touched."""

import copy
import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gossamer
from gossamer import Categorical, Gaussian, predict
from gossamer.layers import sparse_weights
from gossamer.posterior import InLayers

KINDS = ("weights", "local")


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 3), nn.Linear(6, 3)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return self.left(left) - self.right(right)


class Answer(nn.Module):
    """Gives what it was told to, whatever the network inside says."""

    def __init__(self, answer: Any) -> None:
        super().__init__()
        self.body, self.answer = nn.Linear(4, 3), answer

    def forward(self, x: Tensor) -> Any:
        y = self.body(x)
        return self.answer(y)


class SequenceTags(nn.Module):
    """Logits of every token, classes last."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Embedding(12, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def classifier(**options: Any) -> nn.Module:
    layers = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(), nn.Linear(16, 3))
    return gossamer.bayesianize(layers, density=0.4, **options)


def seeded(number: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(number)


@pytest.mark.parametrize("kind", KINDS)
def test_shapes_of_a_classification(kind: str):
    prediction = predict(classifier(), torch.randn(7, 4), n_draws=5, kind=kind)
    assert prediction.outputs.shape == prediction.samples.shape == (5, 7, 3)
    assert prediction.probs.shape == (7, 3)
    torch.testing.assert_close(prediction.probs.sum(1), torch.ones(7))
    torch.testing.assert_close(prediction.samples.sum(2), torch.ones(5, 7))
    for name in ("entropy", "expected_entropy", "mutual_information", "confidence"):
        assert getattr(prediction, name).shape == (7,)
    assert not prediction.outputs.requires_grad


@pytest.mark.parametrize(("build", "x", "class_dim", "shape"), [
    (lambda: nn.Conv2d(2, 5, 3, padding=1), torch.randn(3, 2, 6, 4), 1, (3, 5, 6, 4)),
    (SequenceTags, torch.randint(12, (3, 7)), -1, (3, 7, 3)),
    (SequenceTags, torch.randint(12, (3, 7)), 2, (3, 7, 3)),
])  # fmt: skip
def test_classes_may_stand_in_any_dimension(build: Any, x: Tensor, class_dim: int, shape: tuple[int, ...]):
    prediction = predict(gossamer.bayesianize(build(), density=0.5), x, n_draws=4, class_dim=class_dim)
    assert prediction.probs.shape == shape
    torch.testing.assert_close(prediction.probs.sum(class_dim), torch.ones_like(prediction.entropy))
    positions = list(shape)
    del positions[class_dim]
    assert prediction.entropy.shape == prediction.confidence.shape == tuple(positions)
    direct = -(prediction.probs * prediction.probs.log()).sum(class_dim)
    torch.testing.assert_close(prediction.entropy, direct)


def test_the_outputs_are_those_of_the_draws():
    model, x = classifier(), torch.randn(7, 4)
    expected = torch.stack([network(x).detach() for network in InLayers(model, seeded()).draws(3)])
    torch.testing.assert_close(predict(model, x, n_draws=3, generator=seeded()).outputs, expected)


def test_local_draws_have_the_moments_of_draws_of_weights():
    model, x, n_draws = gossamer.bayesianize(nn.Linear(4, 3), density=0.6), torch.randn(7, 4), 4000
    weights, local = (predict(model, x, n_draws, kind=kind).outputs for kind in KINDS)
    spread = weights.std(0)
    assert ((local.mean(0) - weights.mean(0)).abs() <= 5 * spread * (2 / n_draws) ** 0.5).all()
    torch.testing.assert_close(local.std(0), spread, rtol=0.1, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_inputs_may_be_a_tensor_a_tuple_or_a_mapping(kind: str):
    model = gossamer.bayesianize(TwoInputs(), density=0.5)
    left, right = torch.randn(7, 4), torch.randn(7, 6)
    for x in ((left, right), [left, right], {"right": right, "left": left}):
        prediction = predict(model, x, n_draws=3, kind=kind, batch_size=4, generator=seeded())
        assert prediction.outputs.shape == (3, 7, 3)
        torch.testing.assert_close(
            prediction.outputs, predict(model, (left, right), 3, kind, batch_size=4, generator=seeded()).outputs
        )


def test_results_do_not_depend_on_the_batch_size():
    model, x = classifier(), torch.randn(23, 4)
    whole = predict(model, x, n_draws=4, generator=seeded())
    for batch_size in (1, 5, 23, 1000):
        parts = predict(model, x, n_draws=4, batch_size=batch_size, generator=seeded())
        torch.testing.assert_close(parts.outputs, whole.outputs)


def test_an_empty_batch_is_no_error():
    prediction = predict(classifier(), torch.randn(0, 4), n_draws=3)
    assert prediction.probs.shape == (0, 3)
    assert prediction.entropy.shape == (0,)


@pytest.mark.parametrize("kind", KINDS)
def test_a_generator_fixes_the_draws_and_leaves_the_global_state_alone(kind: str):
    model, x = classifier(), torch.randn(7, 4)
    state, generator = torch.get_rng_state(), seeded()
    first = predict(model, x, kind=kind, generator=generator).outputs
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first, predict(model, x, kind=kind, generator=seeded()).outputs)
    assert not torch.equal(first, predict(model, x, kind=kind, generator=generator).outputs)  # it goes on
    assert not torch.equal(first[0], first[1])
    predict(model, x, kind=kind)
    assert not torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fails", [False, True])
def test_the_model_is_left_as_it_was(kind: str, fails: bool):
    model = classifier().train()
    model[1].eval()  # mixed modes
    model[4].eval()
    sparse_weights(model)["0"].noisy = False
    modes = {name: module.training for name, module in model.named_modules()}
    state, rng = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    if fails:
        model[3].register_forward_pre_hook(lambda module, args: (_ for _ in ()).throw(RuntimeError("no")))
        with pytest.raises(RuntimeError, match="no"):
            predict(model, torch.randn(7, 4, generator=seeded()), kind=kind, generator=seeded())
    else:
        predict(model, torch.randn(7, 4, generator=seeded()), kind=kind, generator=seeded())
    assert {name: module.training for name, module in model.named_modules()} == modes
    torch.testing.assert_close(dict(model.state_dict()), dict(state), rtol=0, atol=0)
    assert torch.equal(torch.get_rng_state(), rng)
    assert [weight.noisy for weight in sparse_weights(model).values()] == [False, True]
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("kind", KINDS)
def test_dropout_is_off_and_batch_norm_uses_its_running_statistics(kind: str):
    model = gossamer.sparsify(nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.Dropout(), nn.Linear(16, 3)), 0.5)
    x = torch.randn(9, 4)
    whole = predict(model.train(), x, n_draws=1, kind=kind).outputs
    torch.testing.assert_close(predict(model, x, n_draws=1, kind=kind, batch_size=2).outputs, whole)
    torch.testing.assert_close(whole[0], model.eval()(x))


def test_noise_silenced_for_an_update_is_back_for_a_prediction():
    """With ``addition="mean_gradient"`` the pass before an update uses the means; a prediction is not that pass."""
    model = classifier()
    optimizer = torch.optim.Adam(gossamer.param_groups(model))
    gossamer.Subspace(model, optimizer, total_steps=10, update_period=1, addition="mean_gradient")
    outputs = predict(model, torch.randn(7, 4), n_draws=3, kind="local").outputs
    assert outputs.std(0).min() > 0


def test_a_posterior_predicts_as_its_network_does():
    model, x = classifier(), torch.randn(7, 4)
    by_model = predict(model, x, n_draws=3, generator=seeded())
    by_posterior = predict(InLayers(model, seeded()), x, n_draws=3)
    torch.testing.assert_close(by_posterior.outputs, by_model.outputs)
    with pytest.raises(ValueError, match="its own generator"):
        predict(InLayers(model), x, generator=seeded())
    with pytest.raises(ValueError, match="kind='local' needs the network itself"):
        predict(InLayers(model), x, kind="local")


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch's own, while it traces
def test_compiled_models_predict():
    model, x = classifier(), torch.randn(7, 4)
    compiled = torch.compile(model, backend="eager")
    by_weights = predict(compiled, x, n_draws=3, generator=seeded())
    torch.testing.assert_close(by_weights.outputs, predict(model, x, n_draws=3, generator=seeded()).outputs)
    assert predict(compiled, x, n_draws=3, kind="local").outputs.std(0).max() > 0
    assert all(module.training for module in compiled.modules())


@pytest.mark.parametrize(("change", "error", "match"), [
    ({"n_draws": 0}, ValueError, "count from 1"),
    ({"n_draws": -1}, ValueError, "count from 1"),
    ({"batch_size": 0}, ValueError, "count from 1"),
    ({"kind": "x"}, ValueError, "'weights' or 'local'"),
    ({"x": [[0.0] * 4]}, TypeError, "x must be a tensor"),
    ({"x": torch.zeros(3, 4).numpy()}, TypeError, "x must be a tensor.*ndarray"),
    ({"x": ()}, TypeError, "x must be a tensor"),
    ({"x": (torch.zeros(3, 4), torch.zeros(2, 4))}, ValueError, "all have as many"),
    ({"x": torch.zeros(())}, ValueError, "dimension 0"),
    ({"model": nn.Linear(4, 3)}, ValueError, "no Gaussian weights"),
    ({"model": 3}, TypeError, "a network or a posterior"),
])  # fmt: skip
def test_impossible_requests_are_refused(change: dict[str, Any], error: type[Exception], match: str):
    arguments: dict[str, Any] = {"model": classifier(), "x": torch.zeros(3, 4)} | change
    with pytest.raises(error, match=match):
        predict(**arguments)


def test_a_network_without_a_posterior_predicts_once():
    x = torch.randn(3, 4)
    plain, point = nn.Linear(4, 3), gossamer.sparsify(nn.Linear(4, 3), density=0.5)
    for model in (plain, point):
        with pytest.raises(ValueError, match=r"gossamer\.bayesianize\(model\), or ask for n_draws=1"):
            predict(model, x, n_draws=2)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            torch.testing.assert_close(predict(model, x, n_draws=1).outputs[0], model(x))


@pytest.mark.parametrize("answer", [lambda y: (y, y), lambda y: {"logits": y}])
def test_a_network_must_return_one_tensor(answer: Any):
    with pytest.raises(TypeError, match="network that returns one tensor"):
        predict(gossamer.bayesianize(Answer(answer), density=0.5), torch.zeros(3, 4))


def test_logits_in_what_a_network_returns_are_its_answer():
    torch.manual_seed(0)
    named = Answer(lambda y: SimpleNamespace(logits=y, loss=None))
    model, x = gossamer.bayesianize(named, density=0.5), torch.randn(3, 4)
    assert predict(model, x, n_draws=5).outputs.shape == (5, 3, 3)
    drawn = gossamer.draw(model, at_mean=True)
    torch.testing.assert_close(predict(drawn, x, n_draws=1).outputs[0], drawn(x).logits)


def test_categorical_and_gaussian_fix_the_reading():
    model, x = classifier(), torch.randn(3, 4)
    assert predict(model, x, likelihood=Categorical()).probs.shape == (3, 3)
    with pytest.raises(ValueError, match="not a mean"):
        _ = predict(model, x, likelihood=Categorical()).mean
    with pytest.raises(ValueError, match="not class probabilities"):
        _ = predict(model, x, likelihood=Gaussian(0.1)).probs
