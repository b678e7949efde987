"""Draws of a network: plain deterministic modules with weights drawn once, and statistics of batch normalisation.

The weights of a draw never saw a training batch, so its running statistics may have to be made anew.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gossamer.distributed import OwnNoise
from gossamer.layers import SparseModule, SparseWeight, replica
from gossamer.layers.delta import BASE
from gossamer.layers.swap import NOTE
from gossamer.types import identity

BatchNorm = nn.modules.batchnorm._BatchNorm


def draw(model: nn.Module, generator: torch.Generator | None = None, *, at_mean: bool = False) -> nn.Module:
    """One network with fixed weights: plain torch layers, no noise, exact zeros where nothing is active.

    It is independent of ``model``: both can be trained, saved or moved on their own.

    Args:
        model: A converted network.
        generator: Random generator of the draw.
        at_mean: Take the means instead of a draw.

    Example:
        >>> import gossamer
        >>> model = gossamer.bayesianize(nn.Sequential(nn.Linear(10, 5), nn.ReLU(), nn.Linear(5, 2)), density=0.2)
        >>> network = gossamer.draw(model)
        >>> network[0], int((network[0].weight != 0).sum())
        (Linear(in_features=10, out_features=5, bias=True), 10)
    """
    drawn = DrawnNetwork(model)
    drawn.redraw(generator, at_mean=at_mean)
    return drawn.network


class DrawnNetwork:
    """A plain copy of a converted network whose weights can be drawn again and again, in place.

    Building it copies the biases, buffers and structure once; a draw then writes only the active entries. It does not
    follow the model: after more training, build another.
    """

    network: nn.Module

    def __init__(self, model: nn.Module) -> None:
        model = unwrapped(model)
        weights = [module for module in model.modules() if isinstance(module, SparseWeight)]
        for weight in weights:
            weight.support.check_average()
        self._dense = {weight: nn.Parameter(_vacant(weight), weight.mean.requires_grad) for weight in weights}
        self._std = {weight: None if weight.std is None else weight.std.detach() for weight in weights}
        self.network = replica(model, {id(module): module.to_plain(self._dense) for module in _outermost(model)})
        _forget_conversion(self.network)
        for module in self.network.modules():
            if isinstance(module, nn.RNNBase):
                module.flatten_parameters()  # one block of memory, as cuDNN wants it; later draws are written into it

    @torch.no_grad()
    def redraw(self, generator: torch.Generator | None = None, *, at_mean: bool = False) -> nn.Module:
        """Write a fresh draw (or the means) into the network and return it."""
        for weight, dense in self._dense.items():
            values = weight.expected() if at_mean else weight.sample(generator, self._std[weight])
            values = values if weight.rest is None else weight.rest.entries(weight.support, values)
            position = weight.support.position
            if position is None:
                dense.copy_(values.view_as(dense))
                continue
            # The network may have been moved, or its weights laid out in another order, since it was built.
            flat = dense.view(-1) if dense.is_contiguous() else dense.flatten()
            flat.scatter_(0, position.to(dense.device, torch.int64), values.to(dense))
            if not dense.is_contiguous():
                dense.copy_(flat.view_as(dense))
        return self.network


@torch.no_grad()
def refresh_batchnorm(network: nn.Module, batches: Iterable[Tensor]) -> None:
    """Make the running statistics of every batch normalisation those of ``batches``, in place.

    Each becomes the plain mean over the batches. Other layers stay in evaluation mode, so nothing random happens. All
    modes are restored afterwards.

    Example:
        >>> network = nn.Sequential(nn.BatchNorm1d(1)).eval()
        >>> refresh_batchnorm(network, [torch.tensor([[1.0], [3.0]]), torch.tensor([[5.0], [7.0]])])
        >>> network[0].running_mean, network[0].running_var
        (tensor([4.]), tensor([2.]))
    """
    layers = [m for m in network.modules() if isinstance(m, BatchNorm) and m.track_running_stats]
    if not layers:
        return
    modes = [(module, module.training) for module in network.modules()]
    momenta = [layer.momentum for layer in layers]
    there = _device_of(network)
    network.eval()
    try:
        for layer in layers:
            layer.reset_running_stats()
            layer.momentum = None  # in torch, this asks for a plain mean
            layer.train()
        for batch in batches:
            network(batch.to(there))
    finally:
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum
        for module, training in modes:
            module.training = training


@dataclass(frozen=True, eq=False)
class Refresh:
    """Refreshes batch normalisation with the inputs ``x``, in batches; a posterior calls it with each draw.

    Every draw sees the same inputs, even if they are augmented at random, so two draws differ by their weights alone.
    The global random state is not changed.

    Args:
        x: Inputs, as a task stores them.
        transform: Turns a batch of them into what the network reads, augmented or not; runs on the network's device.
        batch_size: Largest number of examples at a time.
        most: How many inputs are used at most, the same for every draw. The cost of a draw is that of predicting so
            many. Of a small conv net on Fashion-MNIST 512 cost 0.001 nats against all 4,000, and 256 cost 0.004.
    """

    x: Tensor
    transform: Callable[[Tensor], Tensor] = identity
    batch_size: int = 256
    most: int = 512

    def __call__(self, network: nn.Module) -> None:
        """Refresh ``network`` in place."""
        # Examples may come sorted by class, so those that are used are drawn from all of them.
        rows = torch.randperm(len(self.x), generator=torch.Generator().manual_seed(0))[: self.most].sort().values
        # Parts of equal size count the same, and a last part of one example would have no variance.
        parts = self.x[rows.to(self.x.device)].tensor_split(max(1, -(-len(rows) // self.batch_size)))
        there = _device_of(network)
        with OwnNoise(0, there):
            refresh_batchnorm(network, (self.transform(part.to(there)) for part in parts))


def _vacant(weight: SparseWeight) -> Tensor:
    """The dense weight with nothing active, to be written into."""
    return weight.mean.detach().new_zeros(weight.support.shape) if weight.rest is None else weight.rest.copy()


def _outermost(module: nn.Module) -> list[SparseModule]:
    """The sparse modules that are not inside another one."""
    if isinstance(module, SparseModule):
        return [module]
    found = [item for child in module.children() for item in _outermost(child)]
    return list(dict.fromkeys(found))


def _forget_conversion(network: nn.Module) -> None:
    """Remove what conversion added to the user's own modules, so that the copy loads without Gossamer installed."""
    for module in network.modules():
        for name in (NOTE, BASE):
            module.__dict__.pop(name, None)
        of_files = module._state_dict_hooks, module._load_state_dict_pre_hooks
        for hooks in (*of_files, module._forward_hooks, module._forward_pre_hooks):
            for key, hook in list(hooks.items()):
                if getattr(hook, "hook", hook).__module__.startswith("gossamer."):
                    del hooks[key]


def _device_of(network: nn.Module) -> torch.device:
    return next((tensor.device for tensor in [*network.parameters(), *network.buffers()]), torch.device("cpu"))


def unwrapped(model: nn.Module) -> nn.Module:
    """The user's own module inside ``torch.compile`` and data-parallel wrappers."""
    parallel = isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel)
    for name in ("_orig_mod", "_forward_module", *(["module"] if parallel else [])):
        if isinstance(inner := getattr(model, name, None), nn.Module):
            return unwrapped(inner)
    if any(hasattr(parameter, "full_tensor") for parameter in model.parameters()):
        raise ValueError(
            "FSDP2 (fully_shard) has split the weights of this network between ranks: load its full state (by "
            "torch.distributed.checkpoint.state_dict.get_model_state_dict and StateDictOptions(full_state_dict=True)) "
            "into a network that was converted in the same way and not sharded, and draw from that one"
        )
    return model
