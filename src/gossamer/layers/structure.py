"""A network as a structure of objects: replace some of them wherever the network refers to them, or copy the network.

Networks refer to their layers not only as registered children, but also from containers, bound methods and partial
functions. And they hold things that cannot be copied: a lock, an open file, an activation with its graph.
"""

import contextlib
import copy
import gc
import types
import weakref
from collections import deque
from collections.abc import Callable, Container, Iterator, Mapping
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.module import _WrappedHook

from gossamer.layers.support import Support

CALLS = ("forward", nn.Module.__call__.__name__)  # the methods that a layer and what replaces it share


def rewire(model: nn.Module, replaced: Mapping[int, nn.Module]) -> None:
    """Put modules in the place of others, by ``id``, wherever ``model`` refers to them; all of it, or an error."""
    refused = sorted(_unreachable(model, replaced))
    if refused:
        raise ValueError(
            f"layers to convert are also referred to by {', '.join(refused)}, where they cannot be replaced and the "
            "old layers would go on computing: remove the reference before the conversion, or exclude the layer"
        )
    seen: set[int] = set()

    def renewed(value: Any) -> Any:
        value = replaced.get(id(value), value)  # whose attributes may refer to others that are replaced
        if isinstance(value, types.MethodType) and id(value.__self__) in replaced:
            return getattr(replaced[id(value.__self__)], value.__name__)
        if isinstance(value, tuple | set | frozenset):
            items = [renewed(item) for item in value]
            same = all(new is old for new, old in zip(items, value, strict=True))
            return value if same else type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
        if isinstance(value, partial):
            attributes, keywords = renewed(vars(value)), renewed(value.keywords)
            twin = partial(renewed(value.func), *renewed(value.args), **keywords)
            twin.__dict__.update(attributes)
            return value if (twin.func, twin.args) == (value.func, value.args) else twin
        if isinstance(value, nn.Module | list | dict | deque) and id(value) not in seen:
            seen.add(id(value))
            place: Any = vars(value) if isinstance(value, nn.Module) else value
            for key, item in list(place.items() if isinstance(place, dict) else enumerate(place)):
                if (new := renewed(item)) is not item:
                    place[key] = new
        return value

    renewed(model)


def _unreachable(model: nn.Module, replaced: Mapping[int, nn.Module]) -> set[str]:
    """Names of the attributes with references to ``replaced`` that :func:`rewire` cannot change."""
    modules = {id(module) for module in model.modules()}
    return {
        ".".join(filter(None, ("model", name, attribute)))
        for name, module in model.named_modules()
        for attribute, value in vars(replaced.get(id(module), module)).items()
        if any(id(item) in replaced for part in _walk(value, modules) for item in _fixed(part))
    }


def _fixed(value: Any) -> Iterator[Any]:
    """What an object refers to where it cannot be replaced: keys, other methods, variables and attributes."""
    if isinstance(value, dict):
        yield from value
    elif isinstance(value, types.MethodType) and value.__name__ not in CALLS:
        yield value.__self__
    elif _held(value) is None:
        for item in _hidden(value):
            yield item
            yield from () if isinstance(item, nn.Module) else _held(item) or ()


def _hidden(value: Any) -> Iterator[Any]:
    if isinstance(value, weakref.ReferenceType):
        yield value()
    for cell in getattr(value, "__closure__", None) or ():
        with contextlib.suppress(ValueError):  # a name that has no value yet
            yield cell.cell_contents
    yield from getattr(value, "__dict__", {}).values()


def replica(model: nn.Module, stand_ins: Mapping[int, Any] | None = None, *, share: bool = False) -> nn.Module:
    """A copy of the structure of ``model``: modules, parameters, buffers, and the containers that hold them.

    Everything else a module has as an attribute (locks, files, cached tensors) is shared with the original.

    Args:
        model: Any network.
        stand_ins: What takes the place of modules or parameters, by ``id``, and is not copied; may be ``None``.
        share: Share the parameters and buffers too: then only modes, hooks and containers are the copy's own.

    Example:
        >>> import threading, torch
        >>> model = nn.Linear(2, 2)
        >>> model.lock = threading.Lock()
        >>> twin = replica(model)
        >>> twin.lock is model.lock, twin.weight is model.weight, torch.equal(twin.weight, model.weight)
        (True, False, True)
    """
    memo: dict[int, Any] = dict(stand_ins or {})  # of the deep copy: whatever is in it is not copied
    modules = {id(module) for module in model.modules()}
    tensors = {id(t) for m in model.modules() for t in (*m._parameters.values(), *m._buffers.values())}
    for value in _walk(model, memo):
        if isinstance(value, types.MethodType) and id(value.__self__) in memo:
            memo[id(value)] = getattr(memo[id(value.__self__)], value.__name__)
        elif isinstance(value, Tensor) and id(value) in tensors and not share:
            if not (value.is_leaf or isinstance(value, nn.Parameter)):
                memo[id(value)] = value.detach().clone()
        elif isinstance(value, nn.Module) and modules.isdisjoint(map(id, value.modules())):
            memo[id(value)] = value  # a module that is only referred to
        elif _held(value) is None:
            memo[id(value)] = value
    twin = copy.deepcopy(model, memo)
    for module in twin.modules():
        if isinstance(module, Support):
            module.origin = None  # made to follow its original, entries and positions together
    return twin


class Identity:
    """What a network consists of, to see later whether it is still the same objects.

    Nothing is kept alive but what cannot be referred to weakly. Modes, the numbers in tensors and all that is inside of
    ``opaque`` modules may change.
    """

    def __init__(self, model: nn.Module, opaque: type[nn.Module]) -> None:
        self.gone: list[object] = []  # references to what is no more: another object may have its id
        self.alive: list[object] = []
        # What it holds, where in this are containers, and which of these are modules.
        self.levels: list[tuple[list[int], list[int], list[int]]] = []
        seen, level, modules = {id(model)}, [model], [0]
        while level:
            held = _referents(level, modules)
            opened = {id(one): i for i, one in enumerate(held) if isinstance(one, _CONTAINERS)}
            inside = [i for own, i in opened.items() if own not in seen and not isinstance(held[i], opaque)]
            seen.update(opened)
            self.alive += [_reference(one, self.gone.append) for one in held]
            level = [held[i] for i in inside]
            modules = [i for i, one in enumerate(level) if isinstance(one, nn.Module)]
            self.levels.append((list(map(id, held)), inside, modules))

    def is_of(self, model: nn.Module) -> bool:
        """Whether ``model`` still consists of the same objects."""
        level, modules = [model], [0]
        for ids, inside, modules_inside in self.levels:
            held = _referents(level, modules)
            if list(map(id, held)) != ids:
                return False
            level, modules = [held[i] for i in inside], modules_inside
        return not self.gone


_CONTAINERS = (nn.Module, dict, list, tuple, set, frozenset, deque, partial, types.MethodType, _WrappedHook)


def _referents(level: list[Any], modules: list[int]) -> list[Any]:
    """What objects hold, ``modules`` without their mode: the garbage collector says it faster than Python could ask."""
    level = level.copy()
    for i in modules:
        level[i] = dict(vars(level[i]), training=None)
    return gc.get_referents(*level)


def _reference(value: Any, gone: Callable[[object], None]) -> object:
    if type(value) in (dict, list, tuple, set, frozenset):  # what it holds is looked at instead
        return None
    try:
        return weakref.ref(value, gone)
    except TypeError:  # of a kind that has no weak references
        return value


def _walk(start: Any, stop: Container[int]) -> Iterator[Any]:
    """``start`` and all that it holds, each once; what is in ``stop``, by ``id``, is not entered."""
    seen: set[int] = set()
    stack = [start]
    while stack:
        value = stack.pop()
        if id(value) in stop or id(value) in seen:
            continue
        seen.add(id(value))
        yield value
        if id(value) not in stop:  # where it may have been put meanwhile
            stack.extend(_held(value) or ())


def _held(value: Any) -> Any:
    """What a module or a container holds, which is copied with it; ``None`` for anything else."""
    if isinstance(value, nn.Module):
        return vars(value).values()
    if isinstance(value, dict):
        return value.values()
    if isinstance(value, list | tuple | set | frozenset | deque):
        return value
    if isinstance(value, partial):
        return value.func, value.args, value.keywords, vars(value)
    if isinstance(value, types.MethodType):
        return (value.__self__,)
    return (value.hook,) if isinstance(value, _WrappedHook) else None
