"""What predictions cost beside dense networks, which ``python -m benchmarks.predictions`` writes to ``results``.

Three tables: 20 draws in passes of the plain network in torch, milliseconds of networks to deploy beside dense torch
and dense onnxruntime, and the estimators beside scikit-learn's network of the same widths. All ways take turns in one
thread; ratios are taken within a round.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.environment import surroundings
from benchmarks.networks import wide_mlp
from benchmarks.pages import STUDY
from benchmarks.timing import THREAD, Work, alternate
from gossamer import SparseBayesRegressor, export
from gossamer.files.atomic import json_by_rows, write_atomically
from gossamer.models import conv_net, mlp, resnet18
from gossamer.posterior import frozen, predict
from gossamer.sparsity.convert import bayesianize

__all__ = ["main"]

DENSITY, N_DRAWS, ROUNDS = 0.05, 20, 5
MLP, CONV = "MLP 64-128-128-10", "conv net 16-32"
WIDE, BLOCK, RESNET = "MLP 784-1024-1024-10", "transformer block, 512 wide", "ResNet-18"


def _block() -> nn.Module:
    return nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True, dropout=0.0)


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    MLP: (lambda: mlp(64, (128, 128)), (64,), 128),
    CONV: (conv_net, (1, 8, 8), 128),
    WIDE: (wide_mlp, (784,), 128),
    BLOCK: (_block, (64, 512), 8),
}
DEPLOYED = {WIDE: (wide_mlp, (784,)), RESNET: (resnet18, (3, 32, 32))}


def main() -> None:
    """Measure, and write both tables."""
    torch.set_num_threads(1)
    content: dict[str, Any] = {
        "format": 1,
        "kind": STUDY,
        "environment": {**surroundings(THREAD), "date": str(date.today())},
        "tables": {
            "predictions": {
                "head": ["network", "batch", "plain pass, ms", "20 draws / pass", "mean / pass"],
                "rows": [_passes(name, *case) for name, case in NETWORKS.items()],
                "n_labels": 1,
            },
            "latency": {
                "head": ["network", "batch", *_WAYS],
                "rows": [row for name, case in DEPLOYED.items() for row in _latencies(name, *case)],
                "n_labels": 1,
            },
            "estimators": {
                "head": ["table", "rows", "MLPRegressor, ms", "predict / it", "with std / it", "interval / it"],
                "rows": [_estimator(name, *data) for name, data in _tables().items()],
                "n_labels": 1,
            },
        },
    }
    write_atomically(Path("results/predictions.json"), json_by_rows(content))


def _passes(name: str, build: Callable[[], nn.Module], shape: tuple[int, ...], batch: int) -> list[str]:
    plain, model, x = *_pair(build), torch.randn(batch, *shape)
    works: dict[str, Work] = {
        "plain": _quietly(plain, x),
        "draws": lambda: predict(model, x, N_DRAWS),
        "mean": lambda: predict(model, x, kind="mean"),
    }
    times = alternate(works, ROUNDS)
    return [
        name,
        str(batch),
        _milliseconds(times["plain"]),
        *(_ratio(times, way, "plain") for way in ("draws", "mean")),
    ]


_WAYS = ("torch, dense, ms", "onnxruntime, dense, ms", "mean, ms", "20 draws, ms", "ONNX file of the mean, ms")


def _latencies(name: str, build: Callable[[], nn.Module], shape: tuple[int, ...]) -> Iterator[list[str]]:
    plain, model = _pair(build)
    with tempfile.TemporaryDirectory() as folder:
        files = {way: Path(folder) / f"{number}.onnx" for number, way in enumerate((_WAYS[1], _WAYS[4]))}
        for network, file in zip((plain, model), files.values(), strict=True):
            export(network, file, torch.randn(2, *shape))
        for batch in (1, 8, 64):
            x = torch.randn(batch, *shape)
            works = {_WAYS[0]: _quietly(plain, x), _WAYS[2]: _quietly(frozen(model), x)}
            works |= {_WAYS[3]: _quietly(frozen(model, N_DRAWS), x)}
            works |= {way: _session(file, x) for way, file in files.items()}
            times = alternate(works, 3)
            yield [name, str(batch), *(_milliseconds(times[way]) for way in _WAYS)]


def _tables() -> dict[str, tuple[Any, Any]]:
    from sklearn.datasets import load_diabetes, make_friedman1

    return {
        "diabetes": load_diabetes(return_X_y=True),
        "Friedman 1": make_friedman1(1000, noise=1.0, random_state=0),
    }


def _estimator(name: str, X: Any, y: Any, rows: int = 1000) -> list[str]:
    """A thousand rows, some of them several times."""
    from sklearn.neural_network import MLPRegressor

    ours = SparseBayesRegressor(random_state=0).fit(X, y)
    plain = MLPRegressor(hidden_layer_sizes=ours.hidden, early_stopping=True, random_state=0).fit(X, y)
    x = np.resize(X, (rows, X.shape[1]))
    works: dict[str, Work] = {
        "plain": lambda: plain.predict(x),
        "mean": lambda: ours.predict(x),
        "std": lambda: ours.predict(x, return_std=True),
        "interval": lambda: ours.predict_interval(x),
    }
    times = alternate(works, ROUNDS)
    ratios = (_ratio(times, way, "plain") for way in ("mean", "std", "interval"))
    return [name, str(rows), _milliseconds(times["plain"]), *ratios]


def _pair(build: Callable[[], nn.Module]) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    return build().eval(), bayesianize(build(), density=DENSITY)


def _quietly(network: nn.Module, x: Tensor) -> Work:
    def work() -> None:
        with torch.no_grad():
            network(x)

    return work


def _session(file: Path, x: Tensor) -> Work:
    import onnxruntime  # type: ignore[import-untyped]

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    given = {session.get_inputs()[0].name: x.numpy()}
    return lambda: session.run(None, given)


def _milliseconds(times: list[float]) -> str:
    value = statistics.median(times)
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _ratio(times: Mapping[str, list[float]], way: str, base: str) -> str:
    return f"{statistics.median(own / plain for own, plain in zip(times[way], times[base], strict=True)):.2g}"


if __name__ == "__main__":
    main()
