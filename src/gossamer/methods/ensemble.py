"""Deep ensembles (Lakshminarayanan et al., NeurIPS 2017) of any method: members from other seeds predict together.

    p(y | x) = Σ_k p_k(y | x)/K

The members are trained one after another, each from initial weights and an order of the examples of its own, and p_k is
what its method alone would predict. The length of the training is that of all members together: K members of E epochs
each take K · E epochs, so a comparison at the same number of epochs is one at the same cost.
"""

from dataclasses import replace
from typing import Any

from gossamer import methods
from gossamer._text.names import unknown
from gossamer.types import Method, Task

__all__ = ["ensemble"]


def ensemble(
    task: Task,
    steps: int,
    *,
    member: str = "sgd",
    members: int = 5,
    member_options: dict[str, Any] | None = None,
    fresh: bool = True,
) -> Method:
    """An ensemble of networks trained by one method, whose posteriors are mixed.

    Args:
        steps: Length of the training of all members together; each has an equal share.
        member: Name of the method.
        members: K, how many networks.
        member_options: Options of the method, by name.
        fresh: Whether members after the first start from other random weights: of a network that is built anew from
            another seed, as a run does and ``fit(build=…)``, otherwise by ``reset_parameters`` of its layers, if the
            given weights follow that law. If not, all start from those of the given network, such as pretrained ones,
            and differ by the order of the examples and by noise.
    """
    if not 1 <= members <= steps:
        raise ValueError(f"members must be between 1 and the number of steps; got {members} members in {steps} steps")
    options, known = member_options or {}, methods.options_of(member)
    for name in options:
        if name not in known:
            raise ValueError(unknown(f"option of {member}", name, known))
    return of_members(methods.build(member, task, steps // members, **options), members, fresh=fresh)


def of_members(method: Method, members: int, *, fresh: bool = True, shares_steps: bool = True) -> Method:
    """The ensemble of ``members`` networks trained by ``method``, which was built for the steps of one of them.

    Whether the training is as long as one of them or as all, :attr:`gossamer.types.Method.shares_steps` says.
    """
    if members < 1:
        raise ValueError(f"members counts from 1; got {members}")
    if method.members > 1:
        raise ValueError("an ensemble of ensembles is an ensemble with more members: raise members")
    parts: dict[str, Any] = {"members": members, "fresh": fresh, "shares_steps": shares_steps}
    return replace(method, **parts, adapt=lambda network: replace(method.suited_to(network), **parts, adapt=None))
