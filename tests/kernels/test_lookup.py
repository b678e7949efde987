"""Embeddings by lookup: nothing of the table's size is formed, and what is wrong or cannot be looked up is noticed."""

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import gossamer
from gossamer.kernels import EmbeddingMap, lookup, reference, use


class Largest(TorchDispatchMode):
    """The most elements that any operator returned."""

    most = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        sizes = [leaf.numel() for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        self.most = max(self.most, *sizes, 0)
        return result


@pytest.mark.parametrize("noise", ["local", "weights"])
def test_the_table_is_never_formed(noise):
    layer = gossamer.bayesianize(nn.Embedding(20_000, 64, padding_idx=0), density=0.01, noise=noise)
    words = torch.randint(0, 20_000, (4, 25))
    with Largest() as largest:
        layer(words).square().sum().backward()
    assert largest.most <= max(layer.support.n_active, 100 * 64) < 20_000 * 64 / 50
    with use("dense"), Largest() as largest:
        layer(words)
    assert largest.most == 20_000 * 64


def test_it_is_the_reference_with_the_same_noise():
    layer = gossamer.bayesianize(nn.Embedding(5_000, 64, padding_idx=3), density=0.05, std="gradient")
    words = torch.randint(0, 10, (6, 7))
    results = []
    for kernel in ("auto", "dense"):
        layer.zero_grad()
        torch.manual_seed(1)
        with use(kernel):
            y = layer(words)
            y.square().sum().backward()
        results.append([y.detach(), layer.weight.mean.grad, layer.weight.raw_std.grad])
    assert torch.equal(results[0][0], results[1][0])
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("word", [-1, 6])
def test_a_word_outside_the_table_is_an_error(word):
    position, values = torch.tensor([1, 5, 9]), torch.ones(3)
    with pytest.raises(IndexError, match="words must be numbers from 0 to 5"):
        lookup.product(torch.tensor([0, word]), values, None, position, (6, 3), EmbeddingMap(6))


@pytest.mark.parametrize("n", [0, 2, 4])
def test_values_of_another_number_than_the_positions_are_an_error(n):
    position = torch.tensor([1, 5, 9])
    with pytest.raises(ValueError, match=f"mean has {n} entries but 3 positions are active"):
        lookup.product(torch.tensor([0]), torch.ones(n), None, position, (6, 3), EmbeddingMap(6))


def test_no_words_and_no_entries():
    where = (torch.tensor([], dtype=torch.int32), (6, 3), EmbeddingMap(6))
    for words in (torch.zeros(0, dtype=torch.int64), torch.tensor([[1, 2]])):
        found = lookup.product(words, torch.zeros(0), None, *where)
        assert torch.equal(found, reference.product(words, torch.zeros(0), None, *where))


def test_the_dense_gradient_is_exposed():
    layer = gossamer.bayesianize(nn.Embedding(5_000, 64), density=0.01)
    layer.weight.arm()
    words = torch.tensor([2, 7, 7])
    layer(words).sum().backward()
    gradient = layer.weight.disarm()
    assert gradient.shape == (5_000, 64)
    assert gradient.sum(1)[[2, 7, 8]].tolist() == [64, 128, 0]
