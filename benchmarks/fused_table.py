"""What the fused kernels of a GPU save, layer by layer and in a whole step: the table of ``benchmarks/fused.py``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gossamer.tables import Table

__all__ = ["KIND", "fused_table"]

KIND = "fused"


def fused_table(content: Mapping[str, Any]) -> Table:
    """A row for each kind of layer and one for the step, from what the benchmark wrote.

    Example:
        >>> layer = {"count": 4, "ms_cudnn": 0.26, "ms_chosen": 0.13, "plan": "triton forward"}
        >>> steps = {"never": {"ms": 4.4, "quartiles": [4.4, 4.4]}, "auto": {"ms": 4.0, "quartiles": [4.0, 4.0]}}
        >>> print(fused_table({"times": {"3x3 64": layer}, "steps": steps}).to_text())
        Fused kernels, ResNet-18
        A layer's forward pass and gradients, alone; the step is that of a training, everything included.
        <BLANKLINE>
        layer       fused    in the network  cuDNN, ms  chosen, ms  faster
        3x3 64      forward               4      0.260       0.130   2.00x
        whole step                               4.400       4.000   1.10x
    """
    rows = [
        [name, _parts(row["plan"]), str(row["count"]), _ms(row["ms_cudnn"]), _ms(row["ms_chosen"]), _ratio(row)]
        for name, row in content["times"].items()
        if "plan" in row
    ]
    never, auto = content["steps"]["never"]["ms"], content["steps"]["auto"]["ms"]
    rows.append(["whole step", "", "", _ms(never), _ms(auto), f"{never / auto:.2f}x"])
    return Table(
        "Fused kernels, ResNet-18",
        "A layer's forward pass and gradients, alone; the step is that of a training, everything included.",
        ["layer", "fused", "in the network", "cuDNN, ms", "chosen, ms", "faster"],
        rows,
        n_labels=2,
    )


def _ms(value: float) -> str:
    return f"{value:.3f}"


def _ratio(row: Mapping[str, Any]) -> str:
    return f"{row['ms_cudnn'] / row['ms_chosen']:.2f}x"


def _parts(plan: str) -> str:
    return plan.removeprefix("triton ") if plan.startswith("triton ") else "–"
