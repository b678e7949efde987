"""A network as a structure of objects: replace some of them wherever the network refers to them, or copy the network.

Networks refer to their layers not only as registered children, but also from lists, tuples, dictionaries, bound methods
and partial functions. And they hold what nobody can copy: a lock, an open file, an activation with its graph.
"""

from __future__ import annotations

import copy
import re
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import is_dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _WrappedHook

from gossamer.layers.support import Support
from gossamer.layers.weight import SparseWeight

__all__ = ["Rewiring", "replica", "rewire"]

CONTAINERS = (list, dict, set, deque)


class Rewiring:
    """Finds objects inside attributes and gives back the same attributes with others in their place.

    A value that holds none of them comes back as it is. Containers, dataclasses and modules are changed in place, once
    :meth:`commit` is called, or copied.

    Args:
        replaced: What takes the place of an object, by the ``id`` of the object.
        in_place: Whether lists, dictionaries and closures are changed rather than copied.
    """

    def __init__(self, replaced: Mapping[int, Any], *, in_place: bool) -> None:
        self.replaced, self.in_place = replaced, in_place
        self.refused: list[str] = []  # references that cannot be followed, by name
        self._changes: list[Callable[[], object]] = []
        self._visited: dict[int, tuple[Any, Any]] = {}  # with the object itself, which keeps its id from being reused

    def __call__(self, value: Any, path: str = "") -> Any:
        """``value`` with everything replaced; ``path`` is its name in messages."""
        if id(value) in self.replaced:
            return self.replaced[id(value)]
        if isinstance(value, str | bytes | int | float | complex | Tensor | type(None) | type):
            return value
        if id(value) not in self._visited:
            self._visited[id(value)] = value, value  # a structure that contains itself ends here
            self._visited[id(value)] = value, self._rebuilt(value, path)
        return self._visited[id(value)][1]

    def commit(self) -> None:
        """Carry out the changes in place."""
        for change in self._changes:
            change()

    def _rebuilt(self, value: Any, path: str) -> Any:
        if isinstance(value, CONTAINERS):
            return self._container(value, path)
        if isinstance(value, tuple | frozenset):
            return self._immutable(value, path)
        if isinstance(value, types.MethodType):
            return self._method(value, path)
        if isinstance(value, partial):
            function, args = self(value.func, path), self(value.args, path)
            keywords = {name: self(item, path) for name, item in value.keywords.items()}
            same = function is value.func and args is value.args and _same(keywords, value.keywords)
            return value if same else _repartial(value, function, args, keywords)
        if isinstance(value, weakref.ReferenceType):
            target = self.replaced.get(id(value()), value)
            return value if target is value else None if target is None else weakref.ref(target)
        if isinstance(value, _WrappedHook) and value.with_module:
            owner = self.replaced.get(id(value.module()))
            return value if owner is None else _WrappedHook(self(value.hook, path), owner)
        if isinstance(value, types.FunctionType):
            return self._closure(value, path)
        if isinstance(value, nn.Module | types.SimpleNamespace) or is_dataclass(value):
            return self._object(value, path)
        return value

    def _container(self, value: Any, path: str) -> Any:
        if isinstance(value, dict):
            if any(id(key) in self.replaced for key in value):
                self.refused.append(f"{path} (as a key)")
            items: Any = {key: self(item, f"{path}[{key!r}]") for key, item in value.items()}
            same = _same(items, value)
        else:
            items = [self(item, f"{path}[{i}]") for i, item in enumerate(value)]
            same = all(new is old for new, old in zip(items, value, strict=True))
        if same:
            return value
        if self.in_place:
            self._changes.append(partial(_refill, value, items))
            return value
        return _refill(copy.copy(value), items)

    def _immutable(self, value: Any, path: str) -> Any:
        items = [self(item, f"{path}[{i}]") for i, item in enumerate(value)]
        if all(new is old for new, old in zip(items, value, strict=True)):
            return value
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)

    def _method(self, value: types.MethodType, path: str) -> Any:
        owner = self.replaced.get(id(value.__self__))
        if owner is None:
            return value
        if type(owner) is type(value.__self__):
            return types.MethodType(value.__func__, owner)
        if value.__name__ in ("forward", nn.Module.__call__.__name__):
            return getattr(owner, value.__name__)
        self.refused.append(f"{path} (its method {value.__name__})")
        return value

    def _closure(self, value: types.FunctionType, path: str) -> Any:
        for cell in (value.__closure__ or ()) if self.in_place else ():
            try:
                held = cell.cell_contents
            except ValueError:  # a name that has no value yet
                continue
            new = self(held, f"{path} (a variable of it)")
            if new is not held:
                self._changes.append(partial(setattr, cell, "cell_contents", new))
        return value

    def _object(self, value: Any, path: str) -> Any:
        held = vars(value) if hasattr(value, "__dict__") else {}
        changed = {name: new for name, item in held.items() if (new := self(item, f"{path}.{name}")) is not item}
        if not changed:
            return value
        if self.in_place:
            self._changes.append(partial(value.__dict__.update, changed))
            return value
        twin = object.__new__(type(value)) if isinstance(value, nn.Module) else copy.copy(value)
        twin.__dict__.update(held | changed)
        return twin


def rewire(model: nn.Module, replaced: Mapping[int, nn.Module]) -> None:
    """Put modules in the place of others, by ``id``, wherever ``model`` refers to them; all of it, or an error.

    Example:
        >>> model = nn.Module()
        >>> model.first = nn.Linear(2, 2)
        >>> model.order = [model.first]
        >>> rewire(model, {id(model.first): nn.Identity()})
        >>> model.first, model.order
        (Identity(), [Identity()])
    """
    rewiring = Rewiring(replaced, in_place=True)
    rewiring(model, "model")
    for name, module in model.named_modules():
        if id(module) in replaced:  # attributes of the new module may refer to others that are replaced
            rewiring(replaced[id(module)], f"model.{name}")
    if rewiring.refused:
        names = sorted({re.sub(r"\._modules\['(.*?)'\]", r".\1", name) for name in rewiring.refused})
        raise ValueError(
            f"layers to convert are also referred to by {', '.join(names)}, where they cannot be replaced and the old "
            "layers would go on computing: remove the reference before the conversion, or exclude the layer"
        )
    rewiring.commit()


def replica(model: nn.Module, stand_ins: Mapping[int, Any] | None = None, *, share: bool = False) -> nn.Module:
    """A copy of the structure of ``model``: modules, parameters, buffers, and the containers that hold them.

    Everything else a module has as an attribute (locks, files, cached tensors) is shared with the original.

    Args:
        model: Any network.
        stand_ins: What takes the place of modules or parameters, by ``id``, and is not copied; may be ``None``.
        share: Share the parameters and buffers too: then only modes, hooks and containers are the copy's own.

    Example:
        >>> import threading
        >>> model = nn.Linear(2, 2)
        >>> model.lock = threading.Lock()
        >>> twin = replica(model)
        >>> twin.lock is model.lock, twin.weight is model.weight, torch.equal(twin.weight, model.weight)
        (True, False, True)
    """
    replaced: dict[int, Any] = dict(stand_ins or {})
    originals = [module for module in _outside(model, replaced) if not isinstance(module, torch.jit.ScriptModule)]
    for module in _outside(model, dict(replaced)):
        scripted = isinstance(module, torch.jit.ScriptModule)  # its attributes live in C++
        replaced[id(module)] = copy.deepcopy(module) if scripted else object.__new__(type(module))
    for module in [] if share else originals:
        for tensor in (*module._parameters.values(), *module._buffers.values()):
            if tensor is not None and id(tensor) not in replaced:
                is_parameter = isinstance(tensor, nn.Parameter) or tensor.is_leaf
                replaced[id(tensor)] = copy.deepcopy(tensor) if is_parameter else tensor.detach().clone()
    rewiring = Rewiring(replaced, in_place=False)
    for module in originals:
        state = module.__getstate__() if isinstance(module, SparseWeight | Support) else vars(module)
        replaced[id(module)].__dict__.update({name: _fresh(rewiring(item)) for name, item in state.items()})
    twin: nn.Module = replaced[id(model)]
    return twin


def _outside(module: nn.Module, stand_ins: Mapping[int, Any]) -> Iterator[nn.Module]:
    """All modules that are not, and are not inside of, one with a stand-in; each once."""
    seen: set[int] = set()
    stack = [module]
    while stack:
        item = stack.pop()
        if id(item) in stand_ins or id(item) in seen:
            continue
        seen.add(id(item))
        yield item
        stack.extend(child for child in item._modules.values() if child is not None)


def _fresh(value: Any) -> Any:
    """Containers copied, all else shared: what a pass appends to a list of the copy must not reach the original."""
    if type(value) is dict or type(value).__name__ in ("OrderedDict", "defaultdict"):
        return _refill(copy.copy(value), {key: _fresh(item) for key, item in value.items()})
    if type(value) in (list, set, deque):
        return _refill(copy.copy(value), [_fresh(item) for item in value])
    return value


def _same(new: dict[Any, Any], old: dict[Any, Any]) -> bool:
    return all(new[key] is item for key, item in old.items())


def _refill(container: Any, items: Any) -> Any:
    container.clear()
    container.extend(items) if isinstance(container, list | deque) else container.update(items)
    return container


def _repartial(value: Any, function: Any, args: Any, keywords: Any) -> Any:
    twin = partial(function, *args, **keywords)
    twin.__dict__.update(vars(value))
    return twin
