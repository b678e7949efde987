"""Metrics of networks and posteriors on all splits of a task."""

import pytest
import torch

from gossamer.data import digits
from gossamer.evaluate import evaluate, predict_inputs, split_of
from gossamer.models import mlp


@pytest.fixture(scope="module")
def task():
    return digits.load()


def test_evaluate_takes_networks_and_posteriors_and_all_splits(task):
    torch.manual_seed(0)
    network = mlp(64, (8,))
    for split in ("train", "val", "test"):
        x, y = split_of(task, split)
        expected = float((network(x).argmax(1) == y).float().mean())
        assert evaluate(network, task, n_draws=3, split=split)["accuracy"] == pytest.approx(expected)
    with pytest.raises(ValueError, match="split must be train, val or test; got 'n_data'"):
        evaluate(network, task, split="n_data")
    empty = task._replace(val=(task.val[0][:0], task.val[1][:0]))
    with pytest.raises(
        ValueError, match=r"digits has no examples in its val split, .* train with --n_val N to hold out"
    ):
        evaluate(network, empty, split="val")


def test_predictions_do_not_depend_on_the_size_of_the_batches(task):
    torch.manual_seed(0)
    network, x = mlp(64, (8,)), task.test[0][:50]
    whole, parts = (predict_inputs(network, task, x, 1, batch_size=size) for size in (50, 7))
    torch.testing.assert_close(whole.probs, parts.probs)


def test_inputs_are_transformed_batch_by_batch(task):
    sizes = []

    def transform(x):
        sizes.append(len(x))
        return x.float() / 255

    stored = task._replace(test=((task.test[0] * 255).to(torch.uint8), task.test[1]), transform=transform)
    evaluate(mlp(64, (8,)), stored, n_draws=1, batch_size=100)
    assert max(sizes) == 100
    assert sum(sizes) == len(task.test[1])
