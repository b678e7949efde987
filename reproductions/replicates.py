"""One method on several data sets at once: a stack is trained, network r on data r.

The step is that of every training, with the optimizer, learning rate, penalty and rules of the method; only the product
of a layer and the sum of the losses are the stack's. The gradients of a sum are those of its terms, so every network is
trained as if alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from gossamer.layers import GaussianWeight, sparse_weights
from gossamer.likelihoods import Categorical
from gossamer.train import EagerSteps, take_step
from gossamer.types import Method, Split, Task, as_penalty
from reproductions.stack import Stack, stack

__all__ = ["Replicates", "Tables"]


class Tables(NamedTuple):
    """The same split of several sets of data: inputs ``(R, n, columns)``, targets ``(R, n, …)``."""

    x: Tensor
    y: Tensor

    @classmethod
    def of(cls, splits: Sequence[Split]) -> Tables:
        """From a split of each set."""
        return cls(torch.stack([x for x, _ in splits]), torch.stack([y for _, y in splits]))

    def to(self, device: torch.device | str) -> Tables:
        """The same on another device."""
        return Tables(self.x.to(device), self.y.to(device))

    def columns(self, columns: Tensor) -> Tables:
        """Only some columns of the inputs."""
        return self if len(columns) == self.x.shape[2] else self._replace(x=self.x[:, :, columns])


class Replicates:
    """Networks in training side by side.

    Args:
        method: As for one of them. Its ``prepare`` is not called, since a stack is sparse already; a method that would
            make the weights Gaussian there is rejected.
        networks: One plain network per data set, or n of them.
        tasks: The data sets, of one size and one likelihood.
        batch_size: Examples per step and network.
        seeds: Seed of the order of the examples, one per data set.
        device: Where to train.

    Example:
        >>> from gossamer import methods
        >>> from gossamer.data import sun1
        >>> from gossamer.models import mlp
        >>> tasks = [sun1.load(n_train=50, n_test=10, seed=seed) for seed in range(3)]
        >>> method = methods.build("em_mcmc", tasks[0], steps=50)
        >>> training = Replicates(method, [mlp(1000, (5, 3), 1) for _ in tasks], tasks, batch_size=25, seeds=range(3))
        >>> _ = training.advance()
        >>> training.outputs(Tables.of([task.val for task in tasks])).shape, training.step
        (torch.Size([3, 1000, 1]), 1)
    """

    def __init__(
        self,
        method: Method,
        networks: Sequence[nn.Module] | Stack,
        tasks: Sequence[Task],
        *,
        batch_size: int,
        seeds: Sequence[int],
        device: torch.device | str = "cpu",
    ) -> None:
        self.method, self.likelihood = method, tasks[0].likelihood
        self.model = (networks if isinstance(networks, Stack) else stack(networks)).to(device)
        prepared = sparse_weights(method.prepare(self.model.network(0)))
        if any(isinstance(weight, GaussianWeight) for weight in prepared.values()):
            raise ValueError(
                "a stack trains one value per weight, this method a Gaussian: train its networks one by one"
            )
        self.train = Tables.of([task.train for task in tasks]).to(device)
        self.batch_size, self.seeds = batch_size, list(seeds)
        self.per_epoch = -(-self.train.x.shape[1] // batch_size)
        self.optimizer = method.optimizer(self.model)
        self.rules = method.rules(self.model, self.optimizer)
        self._steps = EagerSteps(self.model, self.optimizer, self._objective, as_penalty(method.penalty))
        self.step = 0
        self._read = self.model.first.read()
        self._orders = torch.empty(0)
        self._epoch = -1

    def advance(self) -> Tensor:
        """One step of every network; returns the mean of their losses, penalties included."""
        rates = [self.method.lr(self.step)] * len(self.optimizer.param_groups)
        x, y = self._batch()
        self.step += 1
        nll, penalty = take_step(self._steps, self.rules, self.step, rates, x, y)
        self._forget_inputs()
        return (nll + penalty) / self.model.first.n

    def _objective(self, x: Tensor, y: Tensor) -> Callable[[], Tensor]:
        def total() -> Tensor:
            # Batches are of one size, so the sum of the mean losses is the mean over all, times the networks.
            output = self.model(x)
            targets = y.repeat_interleave(len(output) // len(y), 0)
            return len(output) * self.likelihood.loss(output.flatten(0, 1), targets.flatten(0, 1))

        return total

    def losses(self, tables: Tables) -> Tensor:
        """Mean negative log-likelihood of each network on its own data, ``(R,)``."""
        return self._losses(self.outputs(tables), tables.y)

    @torch.no_grad()
    def train_losses(self) -> Tensor:
        """The same on all of its training data."""
        return self._losses(self.model(self.train.x), self.train.y)

    @torch.no_grad()
    def outputs(self, tables: Tables) -> Tensor:
        """Outputs of every network, ``(R, n, out)``, for inputs with all their columns."""
        output: Tensor = self.model(tables.columns(self.model.first.read()).x)
        return output

    @torch.no_grad()
    def predictions(self, tables: Tables) -> Tensor:
        """Outputs, or probabilities of classes: what is averaged over networks of a posterior."""
        output = self.outputs(tables)
        return output.softmax(-1) if isinstance(self.likelihood, Categorical) else output

    def _losses(self, output: Tensor, y: Tensor) -> Tensor:
        targets = y.repeat_interleave(len(output) // len(y), 0)
        return torch.stack([self.likelihood.loss(one, own) for one, own in zip(output, targets, strict=True)])

    def _batch(self) -> tuple[Tensor, Tensor]:
        epoch, index = divmod(self.step, self.per_epoch)
        n = self.train.x.shape[1]
        if epoch != self._epoch:  # as gossamer.train.Batches orders an epoch, for each seed
            generators = [torch.Generator().manual_seed(seed * 1_000_003 + epoch) for seed in self.seeds]
            orders = torch.stack([torch.randperm(n, generator=generator) for generator in generators])
            self._orders = orders.to(self.train.x.device)
            self._epoch = epoch
        rows = self._orders[:, index * self.batch_size : (index + 1) * self.batch_size]
        pairs = list(zip(self.train.x, self.train.y, rows, strict=True))
        x = torch.stack([x.index_select(0, row) for x, _, row in pairs])
        return x, torch.stack([y.index_select(0, row) for _, y, row in pairs])

    def _forget_inputs(self) -> None:
        """Leave the columns out of the training data that no network reads any more."""
        columns = self.model.first.read()
        if len(columns) < len(self._read):
            place = torch.searchsorted(self._read, columns)
            self.train = self.train.columns(place)
            self._read = columns
