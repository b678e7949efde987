"""Selection of variables in three simulated examples (Ke and Fan, arXiv 2210.12957, Table 4): DFP, DPF, and rivals.

Every repetition has data of its own, and its starts train one after another. Of several starts the one with the lowest
loss on its training data is taken; no other data are used to choose.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import torch

from gossamer import data, methods
from gossamer._text.tables import Table
from gossamer.data.sun1 import VARIANTS
from gossamer.evaluate import evaluate, predict_inputs, summarize
from gossamer.models import mlp
from gossamer.posterior import SingleNetwork
from gossamer.train import Training
from gossamer.types import Task
from reproductions import rivals, selection
from reproductions.baselines import BASELINES, baseline
from reproductions.parts import PartSettings, Row, StoredParts, Tick
from reproductions.rivals import RIVALS
from reproductions.selection import EXAMPLES

__all__ = ["measure", "plan", "plot", "tables"]

STARTS = 5  # Sun et al. give SPLBNN ten
BATCH = 100
OF_START = 1000  # between the seeds of two starts
MOST_SNAPSHOTS = 1000  # more than any posterior has: all of them
CONSTANT = 1e-6  # spread of the predictions of a network that no input reaches any more
METHODS = {"DFP": False, "DPF": True}  # name -> whether what is pruned may return


def plan(
    *,
    examples: str = "1,2,3",
    variants: str = "ke",
    networks: str = "paper,wide",
    settings: Literal["tuned", "released", "baselines", "rivals"] = "tuned",
    repetitions: int = 10,
    starts: int = STARTS,
    epochs: int | None = None,
    seed: int = 0,
) -> list[PartSettings]:
    """The parts: an example, a method and a network each.

    Args:
        examples: Which examples, with commas between them.
        variants: Which published forms of example 1, with commas between them: ke, ke_code, sun.
        networks: paper, wide (more hidden units, one start) or both, with a comma between them.
        settings: tuned, ours; released, the paper's hyper-parameters, noise and epochs (DFP and the paper's network
            only, from one start); baselines, boosting and a lasso on the same data; or rivals, SPLBNN and SVBNN on the
            paper's network.
        repetitions: How many sets of data.
        starts: Networks for each set of data, of which the one with the lowest training loss is taken.
        epochs: Length of the trainings; each example has its own if not given.
        seed: Seed of the first set of data; the others follow.

    Example:
        >>> [(part["method"], part["hidden"]) for part in plan(examples="1", networks="paper")]
        [('DFP', [5, 3]), ('DPF', [5, 3])]
    """
    _require_counts(repetitions=repetitions, starts=starts, epochs=1 if epochs is None else epochs, seed=seed + 1)
    numbers = [int(number) for number in _words("examples", examples, [str(number) for number in EXAMPLES])]
    forms = _words("variants", variants, list(VARIANTS))
    structures = _words("networks", networks, ["paper", "wide"])
    common: PartSettings = {"repetitions": repetitions, "seed": seed}
    if settings == "released":
        return [
            {**_common(number, form), "method": "DFP", **_released(number, epochs), **common}
            for number in numbers
            for form in (forms if number == 1 else [None])
        ]
    if settings == "baselines":
        return [
            {**_common(number, form), "method": name, "training": "baseline", "starts": 1, **common}
            for number in numbers
            for form in (forms if number == 1 else [None])
            for name in BASELINES
        ]
    if settings == "rivals":
        return [
            {**_common(number, form), "method": name, **_rival(number, name, epochs), **common}
            for number in numbers
            for form in (forms if number == 1 else [None])
            for name in RIVALS
        ]
    return [
        {**_common(number, form), "method": method, **_tuned(number, structure, starts, epochs), **common}
        for number in numbers
        for form in (forms if number == 1 else [None])
        for structure in structures
        for method in METHODS
    ]


def measure(settings: PartSettings, tick: Tick) -> list[Row]:
    """A row for each start of each repetition: loss on the training data, score on fresh ones, variables selected."""
    if settings["training"] == "baseline":
        return list(_baselines(settings, tick))
    tasks = [_task(settings, number) for number in range(settings["repetitions"])]
    if settings["method"] in RIVALS:
        return rivals.measure(settings, tasks, tick)
    steps, starts = settings["epochs"] * -(-tasks[0].n_data // settings["batch_size"]), settings["starts"]
    rows, n = [], starts * len(tasks)
    for number in range(n):
        repetition, start = divmod(number, starts)
        training = _train(settings, tasks[repetition], steps, settings["seed"] + repetition + OF_START * start)
        row = _row(training, tasks[repetition])
        rows.append({"repetition": repetition, "start": start, **row})
        tick(number + 1, n, f"loss {row['train_nll']:.3f}, {len(row['selected'])} variables selected")
    return rows


def _train(settings: PartSettings, task: Task, steps: int, seed: int) -> Training:
    options = {"preset": settings["preset"], "mode": settings["mode"], "feedback": METHODS[settings["method"]]}
    method = methods.build("em_mcmc", task, steps, update_period=settings.get("update_period"), **options)
    torch.manual_seed(seed)
    network = mlp(task.input_shape[0], settings["hidden"], task.n_outputs)
    training = Training(method, network, task, steps, batch_size=settings["batch_size"], seed=seed)
    for _ in training.run():
        pass
    return training


def _row(training: Training, task: Task) -> Row:
    """Score of the posterior, the mean over its snapshots; loss and selection of the last network."""
    prediction = predict_inputs(training.posterior(), task, task.test[0], n_draws=MOST_SNAPSHOTS)
    scores = summarize(prediction, task, task.test[1])
    last = SingleNetwork(training.model)
    train_nll = float(evaluate(last, task, n_draws=1, split="train")["nll"])
    values = prediction.probs if task.kind == "classification" else prediction.mean
    return {
        "train_nll": round(train_nll, 5),
        "score": round(float(scores["accuracy"] if "accuracy" in scores else scores["rmse"] ** 2), 5),
        "selected": rivals.selected(last.mean_network()),
        **({"dead": True} if float(values.double().std(0).max()) < CONSTANT else {}),
    }


def _baselines(settings: PartSettings, tick: Tick) -> Iterator[Row]:
    for number in range(settings["repetitions"]):
        row = baseline(settings["method"], _task(settings, number), settings["seed"] + number)
        tick(number + 1, settings["repetitions"], f"{len(row['selected'])} variables selected")
        yield {"repetition": number, "start": 0, **row}


def tables(results: StoredParts) -> dict[str, Table]:
    """A table for each example."""
    return selection.tables(results)


def plot(results: StoredParts, path: Path) -> None:
    """Score and selection of every repetition."""
    selection.plot(results, path)


def _common(number: int, form: str | None) -> PartSettings:
    return {"example": number, "data": EXAMPLES[number].data} | ({} if form is None else {"variant": form})


def _tuned(number: int, structure: str, starts: int, epochs: int | None) -> PartSettings:
    example = EXAMPLES[number]
    return {
        "training": "tuned",
        "hidden": list(example.hidden if structure == "paper" else example.wide),
        "starts": starts if structure == "paper" else 1,
        "epochs": example.epochs if epochs is None else epochs,
        "batch_size": BATCH,
        "preset": f"example{number}" + ("" if structure == "paper" else "_wide"),
        "mode": "default",
    }


def _released(number: int, epochs: int | None) -> PartSettings:
    example = EXAMPLES[number]
    return {
        "training": "released",
        "hidden": list(example.hidden),
        "starts": 1,
        "epochs": example.paper_epochs if epochs is None else epochs,
        "batch_size": 1000,
        "update_period": 10,  # an epoch: the released code chooses and prunes in its first batch
        "preset": f"paper_example{number}",
        "mode": "reference",
    }


def _rival(number: int, name: str, epochs: int | None) -> PartSettings:
    rival = RIVALS[name]
    return {
        "training": rival.training,
        "hidden": list(EXAMPLES[number].hidden),
        "starts": 1,
        "epochs": rival.epochs if epochs is None else epochs,
        "batch_size": rivals.BATCH,
        "options": dict(rival.options),
    }


def _task(settings: PartSettings, repetition: int) -> Task:
    form = {"variant": settings["variant"]} if "variant" in settings else {}
    return data.load(settings["data"], seed=settings["seed"] + repetition, **form)


def _words(flag: str, text: str, known: Sequence[str]) -> list[str]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    wrong = [word for word in words if word not in known]
    if wrong or not words:
        got = repr(wrong[0]) if wrong else "nothing"
        raise ValueError(f"--{flag} takes {', '.join(known)}, with commas between them; got {got}")
    return list(dict.fromkeys(words))


def _require_counts(**counts: int) -> None:
    for name, value in counts.items():
        if value < 1:
            least = 0 if name == "seed" else 1
            raise ValueError(f"--{name} must be at least {least}; got {value - 1 if name == 'seed' else value}")
