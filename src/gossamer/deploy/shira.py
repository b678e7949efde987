"""Adapters of PEFT's kind SHiRA (Bhardwaj et al. 2024): the means of an adapted network in PEFT's files, and back.

A SHiRA layer is W₀ + Δ, too, and Δ has r (n_in + n_out) entries, with one r for all layers. Layers with fewer changes
get more entries, which are zero; they are left out when an adapter is read.
"""

import json
import re
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from gossamer.adaptation import adapt
from gossamer.files import schema
from gossamer.files.atomic import write_atomically
from gossamer.layers import DeltaWeight, SparseModule, sparse_weights
from gossamer.layers.weight import resize

__all__ = ["read_shira", "write_shira"]

CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"
PREFIX, VALUES, WHERE = "base_model.model.", ".shira_weight", ".shira_indices"


def write_shira(model: nn.Module, folder: Path | str) -> Path:
    """Write the means of an adapted network as an adapter: ``peft.PeftModel.from_pretrained(base, folder)`` reads it.

    Layers that train as a whole, such as a head, become its ``modules_to_save``.

    Raises:
        ValueError: For what such an adapter cannot hold: changes of other layers than ``nn.Linear``, biases.
    """
    layers, held = {}, set[int]()
    for name, module in model.named_modules():
        if isinstance(module, SparseModule) and any(isinstance(one, DeltaWeight) for one in module.children()):
            if nn.Linear not in module.replaces:
                raise ValueError(f"SHiRA knows changes of nn.Linear alone, and {name} is none: leave it out of targets")
            layers[name] = module.named_weights()["weight"]
            held.add(id(layers[name].mean))
    if not layers:
        raise ValueError("write_shira takes a network that gossamer.adapt has made; this one has no changes of layers")
    rest = {name: one for name, one in model.named_parameters() if one.requires_grad and id(one) not in held}
    heads = sorted({name.rpartition(".")[0] for name in rest})
    if inside := [name for name in heads if name in layers or not name]:
        raise ValueError(f"SHiRA cannot hold the bias of {inside[0]!r}, whose weight it changes: leave it out of dense")
    r = max(-(-weight.support.n_active // sum(weight.shape)) for weight in layers.values())
    tensors = {PREFIX + name: one.detach().contiguous() for name, one in rest.items()}
    for name, weight in layers.items():
        position, values = _filled(weight, r * sum(weight.shape), name)
        tensors[PREFIX + name + VALUES] = values
        tensors[PREFIX + name + WHERE] = torch.stack(torch.unravel_index(position, weight.shape)).int()
    targets = "|".join(map(re.escape, layers))  # a list would match the ends of names, too
    config = {"peft_type": "SHIRA", "r": r, "target_modules": targets, "modules_to_save": heads or None}
    Path(folder).mkdir(parents=True, exist_ok=True)
    write_atomically(Path(folder) / TENSORS, save_tensors({name: one.cpu() for name, one in tensors.items()}))
    write_atomically(Path(folder) / CONFIG, json.dumps(config, indent=2))
    return Path(folder)


def _filled(weight: Any, n: int, name: str) -> tuple[Tensor, Tensor]:
    """``n`` positions, those of the changes among them, and what is there."""
    if n > weight.support.size:
        raise ValueError(
            f"{name} is too small for a SHiRA adapter of as many entries as the largest: lower the density"
        )
    position = weight.support.positions(weight.mean.device).long()
    spare = torch.ones(weight.support.size, dtype=torch.bool, device=position.device)
    spare[position] = False
    every, order = torch.cat([position, spare.nonzero().flatten()[: n - len(position)]]).sort()
    return every, torch.cat([weight.mean.detach(), weight.mean.new_zeros(n - len(position))])[order]


def read_shira(folder: Path | str, model: nn.Module, **options: Any) -> nn.Module:
    """A plain network adapted as an adapter of kind SHiRA says, which is where its means start.

    ``options`` are those of :func:`gossamer.adapt`, such as ``init_std``; the adapter gives targets, dense and density.
    """
    fix = "give the folder of a SHiRA adapter, as PEFT or write_shira wrote it"
    config, file = schema.read(Path(folder) / CONFIG, dict[str, Any], fix), Path(folder) / TENSORS
    try:
        tensors = load_tensors(schema.read_bytes(file))
    except SafetensorError as error:
        raise ValueError(f"{file} is broken: {error}; {fix}") from error
    names = sorted(name.removeprefix(PREFIX) for name in tensors)  # a file has no order
    layers = [name.removesuffix(VALUES) for name in names if name.endswith(VALUES)]
    if config.get("peft_type") != "SHIRA" or not layers:
        raise ValueError(f"{folder} holds an adapter of kind {config.get('peft_type')!r}; {fix}")
    rest = [name for name in names if not name.endswith((VALUES, WHERE))]
    entries = {name: _entries(tensors, name, model, file) for name in layers}
    share = sum(len(one) for one, _ in entries.values()) / sum(
        model.get_parameter(f"{name}.weight").numel() for name in layers
    )
    model = adapt(model, share, targets=lambda name, _: name in entries, dense=rest, **options)
    weights: dict[str, Any] = sparse_weights(model)
    with torch.no_grad():
        for name, (position, values) in entries.items():
            weight, std = weights[name], weights[name].std[:1].clone()
            weight.support.check(position)
            resize(weight, len(position))
            weight.support.set_position(position)
            weight.mean.copy_(values)
            weight.set_std(std.expand(len(position)))
        for name in rest:
            model.get_parameter(name).copy_(tensors[PREFIX + name])
    return model


def _entries(tensors: dict[str, Tensor], name: str, model: nn.Module, file: Path) -> tuple[Tensor, Tensor]:
    """Sorted positions and values of a layer, without those that are zero."""
    layer = dict(model.named_modules()).get(name)
    shape = tuple(getattr(getattr(layer, "weight", None), "shape", (0,)))
    values, where = tensors[PREFIX + name + VALUES], tensors.get(PREFIX + name + WHERE)
    if len(shape) != 2 or where is None or values.dim() != 1 or where.shape != (2, len(values)):
        raise ValueError(f"{file}: {name} is no linear layer of this network, or has no positions: give its base model")
    (rows, columns), (n_rows, n_columns) = where.long(), shape
    if not bool(((rows >= 0) & (rows < n_rows) & (columns >= 0) & (columns < n_columns)).all()):
        raise ValueError(f"{file}: {name} has positions outside of its shape {shape}: give its base model")
    kept = values != 0
    kept |= ~kept.any()  # of an adapter before its training
    position, order = (rows * n_columns + columns)[kept].sort()
    return position, values[kept][order]
