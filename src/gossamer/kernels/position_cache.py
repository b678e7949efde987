"""What is derived from a tensor of positions: kept while the positions are what they were, dropped with them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from torch import Tensor

__all__ = ["Derived"]

Value = TypeVar("Value")


class Derived(Generic[Value]):
    """Up to ``most`` values for each tensor of positions; the oldest goes first.

    Example:
        >>> import torch
        >>> counts, position = Derived[int](most=2), torch.tensor([1, 4, 5])
        >>> counts.get(position, "even", lambda: int((position % 2 == 0).sum()))
        1
        >>> counts.get(position, "even", lambda: 1 / 0)
        1
        >>> position[0] = 2
        >>> counts.get(position, "even", lambda: int((position % 2 == 0).sum()))
        2
        >>> len(counts)
        1
        >>> del position
        >>> len(counts)
        0
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._entries: dict[int, _Entry[Value]] = {}  # by the address of the positions

    def get(self, position: Tensor, key: Hashable, make: Callable[[], Value]) -> Value:
        """The value for this key, made if there is none for the positions as they are now."""
        if position.is_inference():  # such a tensor does not say when it is written to
            return make()
        address = position.data_ptr()
        entry = self._entries.get(address)
        if entry is None or not entry.serves(position):
            entry = self._entries[address] = _Entry(position, self._entries)
        values = entry.values
        value = values.get(key)
        if value is None:
            value = make()
            if len(values) >= self.most:
                del values[next(iter(values))]
            values[key] = value
        return value

    def of(self, position: Tensor) -> list[Value]:
        """All that is kept for these positions."""
        entry = self._entries.get(position.data_ptr())
        return [] if entry is None or not entry.serves(position) else list(entry.values.values())

    def __len__(self) -> int:
        """For how many tensors something is kept."""
        return len(self._entries)


class _Entry(Generic[Value]):
    def __init__(self, position: Tensor, entries: dict[int, _Entry[Value]]) -> None:
        self.address = position.data_ptr()
        self.version = position._version
        self.size = len(position)
        self.values: dict[Hashable, Value] = {}
        own = weakref.ref(self)  # not self: what is derived goes at once, not when the garbage collector comes by
        address = self.address

        def forget(_: object) -> None:
            if entries.get(address) is own():
                entries.pop(address, None)

        self.owner = weakref.ref(position, forget)

    def serves(self, position: Tensor) -> bool:
        """Whether this is the same memory, not written to since: its owner lives, so it cannot be somebody else's."""
        owner = self.owner()
        same = owner is position or (owner is not None and owner.data_ptr() == position.data_ptr())
        return same and self.version == position._version and self.size == len(position)
