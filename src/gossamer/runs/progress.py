"""An epoch in words."""

from __future__ import annotations

from typing import Any

__all__ = ["describe"]


def describe(row: dict[str, Any], epochs: int) -> str:
    """The row of an epoch in words.

    Example:
        >>> row = {"epoch": 2, "loss": 0.5, "kl": 0.01, "density": 0.05, "val_accuracy": 0.931}
        >>> describe(row | {"examples_per_second": 12000}, epochs=5)
        'epoch 2/5  loss 0.500  val accuracy 93.1%  KL 0.010  density 5.0%  12,000 examples/s'
    """
    parts = [f"epoch {row['epoch']}/{epochs}", f"loss {row['loss']:.3f}"]
    if "val_accuracy" in row:
        parts.append(f"val accuracy {row['val_accuracy']:.1%}")
    elif "val_rmse" in row:
        parts.append(f"val rmse {row['val_rmse']:.3f}")
    parts += [f"KL {row['kl']:.3f}", f"density {row['density']:.1%}", f"{row['examples_per_second']:,.0f} examples/s"]
    return "  ".join(parts)
