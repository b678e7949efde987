"""Networks for other runtimes: ONNX files and programs of ``torch.export``, for batches of any size.

Three graphs can be made of a posterior: its mean network, one that draws noise at each call, and one that holds several
drawn networks and combines their predictions. None of them needs Gossamer to run. A file says how many networks and
numbers it holds and what its classes are called: in ONNX as the model's metadata, otherwise in ``gossamer.json`` in it.
"""

import contextlib
import json
import logging
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from gossamer import __version__, kernels
from gossamer._text.names import needs
from gossamer.layers import CurvatureWeight, GaussianWeight, replica, sparse_weights
from gossamer.posterior import InLayers, LocalPasses, Prediction
from gossamer.posterior.draw import unwrapped
from gossamer.posterior.frozen import FrozenDraws, frozen
from gossamer.types import Likelihood, OfOneDraw, Posterior, Task, identity

__all__ = ["export"]

Format = Literal["onnx", "torch-export"]
What = Literal["mean", "noise", "draws"]

LARGEST_FILE = 2**31 - 2**20  # bytes of weights: protobuf, and with it one ONNX file, ends at 2 GiB
OPSET = 18
NOTES = "gossamer.json"  # beside the program, in a file of torch.export
SUFFIX = {"onnx": ".onnx", "torch-export": ".pt2"}


def export(
    posterior: Posterior | nn.Module,
    file: Path | str,
    x: Tensor | Sequence[Tensor] | None = None,
    *,
    format: Format = "onnx",
    what: What = "mean",
    n_draws: int = 16,
    likelihood: Likelihood | None = None,
    task: Task | None = None,
) -> Path:
    """Write a network that runs without Gossamer, for batches of any size.

    Args:
        posterior: What :func:`gossamer.fit` or :func:`gossamer.lab.load_run` returned, or a network.
        file: Where to, an ``.onnx`` or a ``.pt2`` file.
        x: A batch of two or more examples, as the network reads them; not needed with ``task``.
        format: ``"onnx"``, for onnxruntime and others (``gossamer[onnx]``), or ``"torch-export"``, a program that
            ``torch.export.load(file).module()`` runs.
        what: ``"mean"`` is the network at the means of its weights, ``"noise"`` a network that draws noise for each
            output at each call, and ``"draws"`` holds ``n_draws`` networks, drawn now, whose predictions it combines.
        n_draws: How many networks ``"draws"`` holds.
        likelihood: ``Categorical()`` makes the outputs ``probs`` and ``entropy``, with ``mutual_information`` for
            draws; ``Gaussian(…)`` makes them ``mean`` and ``std``, with ``epistemic_std``. ``None`` leaves the outputs
            as they are, those of draws stacked.
        task: The graph then reads inputs as the task stores them (bytes of images) and answers in the units of its
            targets; the likelihood is that of the task.

    Example:
        >>> import tempfile, gossamer
        >>> model = gossamer.bayesianize(nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3)), density=0.2)
        >>> x, path = torch.randn(2, 8), Path(tempfile.mkdtemp()) / "network.pt2"
        >>> likelihood = gossamer.likelihoods.Categorical()
        >>> file = export(model, path, x, format="torch-export", what="draws", likelihood=likelihood)
        >>> sorted(torch.export.load(file).module()(torch.randn(5, 8)))
        ['entropy', 'mutual_information', 'probs']
    """
    _check(Path(file), format, what, n_draws)
    if task is not None:
        x, likelihood = task.test[0][:2] if x is None else x, likelihood or task.likelihood
    if x is None:
        raise ValueError("export needs x, a batch of examples as the network reads them, or the task")
    args = (x,) if isinstance(x, Tensor) else tuple(x)
    if any(len(part) < 2 for part in args):
        raise ValueError("x must have two examples or more: with one, the size of the batch would be fixed")
    known = InLayers().posterior(posterior) if isinstance(posterior, nn.Module) else posterior
    networks = _networks(known, what, n_draws)
    graph = _Graph(networks, likelihood, task, what, known.temperature).eval()
    there = next((tensor.device for tensor in graph.parameters()), args[0].device)
    args = tuple(part.to(there) for part in args)
    with torch.no_grad():
        outputs = graph(*args)
    names = list(outputs) if isinstance(outputs, dict) else ["output"]
    n_networks = known.n_drawn(n_draws) if what == "draws" else 1
    notes = _notes(graph, what, n_networks, () if task is None else task.class_names)
    with kernels.use("dense"), torch.no_grad(), _quiet():  # products by operators that every runtime has
        try:
            batch = torch.export.Dim("batch")
            program = torch.export.export(graph, args, dynamic_shapes=(({0: batch},) * len(args),))  # of *args
            if format == "onnx":
                _write_onnx(program, Path(file), len(args), names, notes)
            else:
                for node in program.graph.nodes:
                    node.meta.pop("stack_trace", None)  # which has paths of this machine
                torch.export.save(program, file, extra_files={NOTES: json.dumps(notes)})
        except OSError:
            raise
        except Exception as error:  # torch has a dozen kinds, of the tracer and of the translator
            reason = " ".join(str(error).split())[:300]
            advice = "; try format='torch-export'" if format == "onnx" else ""
            raise ValueError(
                f"torch cannot export this network as {format} ({type(error).__name__}: {reason}){advice}"
            ) from error
    return Path(file)


class _Graph(nn.Module):
    """Networks behind one call: inputs as a task stores them -> the prediction of all networks."""

    def __init__(
        self,
        networks: list[nn.Module],
        likelihood: Likelihood | None,
        task: Task | None,
        what: What,
        temperature: float,
    ) -> None:
        super().__init__()
        self.temperature = temperature  # of the logits
        self.networks, self.likelihood, self.what = nn.ModuleList(networks), likelihood, what
        self.transform: Callable[[Tensor], Tensor] = identity if task is None else task.transform
        self.units = (0.0, 1.0) if task is None else (task.target_mean, task.target_std)

    def forward(self, *args: Tensor) -> Tensor | dict[str, Tensor]:
        inputs = [self.transform(part) for part in args]
        outputs = torch.cat([network(*inputs) for network in self.networks])
        if self.likelihood is None:
            return outputs if self.what == "draws" else outputs[0]
        prediction, differ = Prediction(outputs / self.temperature, self.likelihood), self.what == "draws"
        if prediction.has_numbers:
            mean, std = self.units
            found = {"mean": prediction.mean * std + mean, "std": prediction.std * std}
            return found | ({"epistemic_std": prediction.epistemic_std * std} if differ else {})
        found = {"probs": prediction.probs, "entropy": prediction.entropy}
        return found | ({"mutual_information": prediction.mutual_information} if differ else {})


def _networks(posterior: Posterior, what: What, n_draws: int) -> list[nn.Module]:
    if what == "mean":
        return [OfOneDraw(frozen(posterior))]
    if what == "draws":
        fixed = posterior.fixed(n_draws)
        if fixed is not None:
            return [FrozenDraws(fixed)]
        # A draw is valid until the next is taken, so each is copied.
        return [OfOneDraw(replica(network)) for network in posterior.draws(n_draws)]
    model = unwrapped(posterior.model)
    in_layers = isinstance(posterior, InLayers | LocalPasses) and sparse_weights(model)
    if not in_layers or posterior.refresh is not None:
        raise ValueError(
            f"a {type(posterior).__name__} has no noise that one graph could draw at each call (it needs layers with "
            "Gaussian weights, and batch normalisation that is not refreshed): export draws of it, what='draws'"
        )
    # A curvature and what it is known from take twice the bytes of a standard deviation.
    stand_ins = {
        id(w): GaussianWeight(w.support, w.mean.detach(), w.std.detach(), w.prior_std, w.mode, w.noise)
        for w in model.modules()
        if type(w) is CurvatureWeight
    }
    return [OfOneDraw(next(iter(LocalPasses(replica(model, stand_ins, share=True)).draws(1))))]


def _notes(graph: _Graph, what: What, n_networks: int, class_names: Sequence[str]) -> dict[str, str]:
    """What a file says about itself, as the texts that ONNX wants."""
    tensors = [*graph.parameters(), *graph.buffers()]
    numbers = {
        "gossamer": __version__,
        "what": what,
        "networks": n_networks,
        "numbers": sum(tensor.numel() for tensor in tensors),
        "bytes": sum(tensor.nbytes for tensor in tensors),
    }
    names = {"class_names": json.dumps(list(class_names))} if class_names else {}
    return {name: str(value) for name, value in numbers.items()} | names


def _write_onnx(
    program: torch.export.ExportedProgram, file: Path, n_inputs: int, outputs: list[str], notes: dict[str, str]
) -> None:
    from onnx_ir.passes.common import NameFixPass

    inputs = ["x"] if n_inputs == 1 else [f"x{i}" for i in range(n_inputs)]
    options: dict[str, Any] = {"input_names": inputs, "output_names": outputs, "opset_version": OPSET}
    translated = torch.onnx.export(program, dynamo=True, verbose=False, **options)
    assert translated is not None
    NameFixPass()(translated.model)  # a value inside the graph may have the name of an output
    _plain(translated.model)
    translated.model.metadata_props.update(notes)
    translated.save(file, external_data=sum(tensor.nbytes for tensor in program.state_dict.values()) > LARGEST_FILE)


def _plain(model: Any) -> None:
    """Without what the translator notes for its own debugging, paths of this machine among it; the batch is ``batch``.

    ``model`` is one of ``onnx_ir``.
    """
    from onnx_ir.passes.common import ClearMetadataAndDocStringPass

    ClearMetadataAndDocStringPass()(model)
    model.metadata_props.clear()
    graph = model.graph
    symbol = re.compile(rf"\b{re.escape(str(graph.inputs[0].shape[0]))}\b")
    made = (value for node in graph.all_nodes() for value in node.outputs)
    for value in (*graph.inputs, *graph.initializers.values(), *made):
        value.metadata_props.clear()
        for i, size in enumerate(value.shape or ()):
            if not isinstance(size, int):
                value.shape[i] = symbol.sub("batch", str(size))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without what torch's exporter says about itself."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


def _check(file: Path, format: str, what: str, n_draws: int) -> None:
    for name, value, known in (("format", format, get_args(Format)), ("what", what, get_args(What))):
        if value not in known:
            raise ValueError(f"{name} must be one of {', '.join(map(repr, known))}; got {value!r}")
    if n_draws < 1:
        raise ValueError(f"n_draws must be at least 1; got {n_draws}")
    if file.suffix != SUFFIX[format]:
        raise ValueError(f"a file of the format {format} is called …{SUFFIX[format]}; got {file}")
    if not file.absolute().parent.is_dir():
        raise FileNotFoundError(f"{file.parent} does not exist: make this folder first, or give another file")
    if format == "onnx":
        needs("onnx", "onnxscript", extra="onnx")
