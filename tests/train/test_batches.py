"""Batches that can be asked for at any step."""

import pytest
import torch

from gossamer.train import Batches


def rows(n=103):
    return torch.arange(n), torch.arange(n) * 10


@pytest.mark.parametrize(("n", "size"), [(103, 10), (100, 10), (7, 10), (5, 1)])
def test_every_epoch_is_a_permutation_in_an_order_of_its_own(n, size):
    batches = Batches(rows(n), size, seed=3)
    orders = []
    for epoch in range(3):
        parts = [batches[epoch * batches.per_epoch + i] for i in range(batches.per_epoch)]
        assert all(len(x) == size for x, _ in parts[:-1])
        assert all(torch.equal(y, x * 10) for x, y in parts)
        orders.append(torch.cat([x for x, _ in parts]))
        assert torch.equal(orders[-1].sort().values, torch.arange(n))
    assert not torch.equal(orders[0], orders[1])
    assert not torch.equal(orders[1], orders[2])


def test_the_order_depends_on_the_seed_alone():
    first, second, other = (Batches(rows(), 10, seed) for seed in (0, 0, 1))
    torch.manual_seed(5)
    for step in range(25):
        torch.rand(3)  # what else is drawn does not matter
        assert torch.equal(first[step][0], second[step][0])
    assert not torch.equal(first[0][0], other[0][0])


def test_any_step_can_be_asked_for_in_any_order():
    expected = [Batches(rows(), 10, 0)[step][0] for step in range(40)]
    batches = Batches(rows(), 10, 0)
    for step in (39, 0, 17, 22, 21, 11, 10, 3):
        assert torch.equal(batches[step][0], expected[step])


def test_asking_for_a_batch_draws_nothing_from_the_global_generator():
    batches = Batches(rows(), 10, 0)
    before = torch.get_rng_state()
    for step in range(15):
        _ = batches[step]
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("n_ranks", [2, 3])
def test_ranks_share_each_batch(n_ranks):
    whole = Batches(rows(101), 10, 0)  # the last batch has one row: too small to share, so every rank takes it
    shares = [Batches(rows(101), 10, 0, rank=rank, n_ranks=n_ranks) for rank in range(n_ranks)]
    for step in range(22):
        x = whole[step][0]
        parts = [share[step][0] for share in shares]
        if len(x) < n_ranks:
            assert all(torch.equal(part, x) for part in parts)
        else:
            assert torch.equal(torch.cat(parts).sort().values, x.sort().values)
            assert max(map(len, parts)) - min(map(len, parts)) <= 1
        means = [share.weight(step) * float(part.double().mean()) for share, part in zip(shares, parts, strict=True)]
        assert sum(means) / n_ranks == pytest.approx(float(x.double().mean()), rel=1e-12)


@pytest.mark.parametrize(("n", "size"), [(0, 10), (10, 0), (10, -1)])
def test_no_data_or_no_batch_is_an_error(n, size):
    with pytest.raises(ValueError, match="batch_size must be positive and data not empty"):
        Batches(rows(n), size, 0)
