"""Draws of a network: plain deterministic modules with weights drawn once."""

import torch
from torch import Tensor, nn

from gossamer.layers import SparseModule, SparseWeight, replica
from gossamer.layers.delta import BASE
from gossamer.layers.swap import NOTE


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
