"""What a sparse network costs on several devices, as closed forms: bytes, messages, seconds and memory.

Every rank holds all active weights (they are averaged, not split), so that memory does not shrink with ranks. In a step
the ranks average the gradients of the active means and the estimates of their curvature; an update of the subspace
sends proposals, a bit per weight and the means of candidates (``gossamer.sparsity.candidates``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from gossamer.sparsity.candidates import AT_ONCE

__all__ = [
    "Link",
    "Message",
    "Network",
    "Portion",
    "portions",
    "sent",
    "step_messages",
    "step_seconds",
    "transfer_seconds",
    "update_bytes",
    "update_messages",
]

FLOAT = INDEX = 4  # bytes of a float32, and of a position in a weight of up to 2³¹ entries


@dataclass(frozen=True)
class Network:
    """``layers`` linear layers of ``width`` × ``width`` weights and ``width`` biases.

    Example:
        >>> Network(10, 10_000).weights, Network(10, 10_000).active
        (1000000000, 10000000)
    """

    layers: int
    width: int
    density: float = 0.01

    @property
    def weights(self) -> int:
        """N, the weights of the dense network."""
        return self.layers * self.width**2

    @property
    def active(self) -> int:
        """n, those that are active."""
        return self.layers * max(1, round(self.density * self.width**2))

    @property
    def biases(self) -> int:
        """Parameters that stay dense."""
        return self.layers * self.width

    def exchanged(self, rate: float) -> int:
        """k, the entries that an update exchanges."""
        return self.layers * int(rate * (self.active // self.layers))


@dataclass(frozen=True)
class Link:
    """What joins a rank to the next: each of R ranks sends to one neighbour while it receives from the other."""

    bytes_per_second: float
    latency: float  # seconds from one rank to the next


class Message(NamedTuple):
    """A collective operation, and the bytes of the tensor that a rank gives to it."""

    kind: Literal["all_reduce", "all_gather", "broadcast"]
    size: int


def step_messages(network: Network) -> list[Message]:
    """Of a training step: gradients of means and biases; estimates of the curvature, and which weights were used.

    ``DistributedDataParallel`` cuts the first into buckets of 25 MB, which does not change the bytes.
    """
    gradients = FLOAT * (network.active + network.biases)
    return [Message("all_reduce", gradients), Message("all_reduce", FLOAT * (network.active + network.layers))]


class Portion(NamedTuple):
    """Neighbouring layers whose candidates ranks look for together, and what their gradients make of it.

    ``proposed`` counts the entries that any rank proposes: k ≤ proposed ≤ R k. ``candidates`` are the entries that
    reach the bound on some rank: k or more, and in the worst case all. Both depend on the gradients.
    """

    layers: int
    proposed: int
    candidates: int


def portions(network: Network) -> list[int]:
    """How many layers each portion has.

    Example:
        >>> portions(Network(10, 1000)), portions(Network(2, 10_000))
        ([4, 4, 2], [1, 1])
    """
    each = max(1, AT_ONCE // network.width**2)
    return [min(each, network.layers - start) for start in range(0, network.layers, each)]


def update_messages(network: Network, rate: float, seen: Sequence[Portion]) -> list[Message]:
    """Of an update beside its step."""
    k, bits = network.exchanged(rate) // network.layers, math.ceil(network.width**2 / 8)
    of_portions = [
        [
            Message("all_gather", INDEX * k * portion.layers),
            Message("all_reduce", FLOAT * portion.proposed),
            Message("all_gather", bits * portion.layers),  # a bit per weight
            Message("all_reduce", FLOAT * portion.candidates),
        ]
        for portion in seen
    ]
    return [
        Message("all_reduce", FLOAT * network.layers),  # which weights were used
        Message("all_reduce", FLOAT),  # whether all gradients are finite
        *(message for portion in of_portions for message in portion),
        Message("broadcast", network.active),  # which entries stay, a byte each
    ]


def update_bytes(network: Network, per_entry: float) -> float:
    """Scratch of an update on ranks: the gradients of all weights, and so much per entry of the largest portion."""
    return FLOAT * network.weights + per_entry * max(portions(network)) * network.width**2


def sent(message: Message, ranks: int) -> float:
    """Bytes that a rank sends to its neighbour, by rings.

    Example:
        >>> sent(Message("all_reduce", 800), 4), sent(Message("all_gather", 800), 4), sent(Message("broadcast", 800), 4)
        (1200.0, 2400, 800)
    """
    if ranks == 1:
        return 0
    rounds = {"all_reduce": 2 * (ranks - 1) / ranks, "all_gather": ranks - 1, "broadcast": 1}
    return rounds[message.kind] * message.size


def transfer_seconds(messages: Sequence[Message], ranks: int, link: Link) -> float:
    """Time of messages one after another: bytes over the bandwidth, and a latency for every hop."""
    hops = {"all_reduce": 2 * (ranks - 1), "all_gather": ranks - 1, "broadcast": ranks - 1}
    return sum(sent(one, ranks) / link.bytes_per_second + hops[one.kind] * link.latency for one in messages)


def step_seconds(network: Network, compute: float, ranks: int, link: Link, crowding: float = 1.0) -> float:
    """A step: the computation of a rank's rows, then its messages; DDP overlaps the two, which is not counted.

    ``crowding`` is by how much processes of one machine wait for its cores, which also do the work of their messages.
    """
    return crowding * (compute + transfer_seconds(step_messages(network), ranks, link))
