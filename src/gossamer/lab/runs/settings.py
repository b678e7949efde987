"""The settings of a run, as ``config.toml`` holds them, and what the data choose where they leave something open.

A table is trained as :mod:`gossamer.estimators` train it; these need scikit-learn, and are imported only for one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, get_type_hints

import numpy as np
import torch

from gossamer import data, methods, models
from gossamer._text.names import refuse_foreign_code, unknown
from gossamer.data.own.columns import Columns
from gossamer.data.own.record import columns_of, task_of
from gossamer.data.uci import Standardize
from gossamer.files.schema import check_type
from gossamer.posterior import LEAST_HELD_OUT
from gossamer.train.divergence import OnNan
from gossamer.types import Task

Device = Literal["auto", "cpu", "cuda"]
Precision = Literal["auto", "32", "bf16"]
TaskKind = Literal["classification", "regression"]

MAX_SEED = 2**32  # the order of an epoch multiplies it, and torch must still accept the product
CHECKPOINT_SECONDS = 30.0
USUAL = {"epochs": 100, "batch_size": 64, "rounds": 1}  # where none are given, and the data are no table
FORMER = frozenset({"fused"})  # settings that runs of earlier versions recorded, and that have no effect any more
OF_DATA = ("n_val", "target", "drop", "task", "image_size")  # settings that the loader of the data takes


@dataclass(frozen=True)
class Settings:
    """Everything that determines a run: on a CPU, the same settings and machine give the same numbers to the bit.

    On a GPU the kernels of convolutions are chosen by timing them, so that two runs may differ in rounding.

    Args:
        method: Name of the method.
        data: Name of the data set, or your own: a file of a table or of arrays, a folder of images with a
            sub-folder per class, or module:function.
        model: Name of the network, or your own as module:factory; one that fits the data if not given.
        epochs: Passes over the training data; 100 if not given, and for a table as many as the estimators take.
        batch_size: Examples per step; 64 if not given, and for a table as many as the estimators take.
        rounds: At most so often all epochs, while the loss falls at their end, each at half the rate of the one before;
            1 if not given, and for a table without epochs as the estimators train.
        seed: Seed of the order of the examples, the first active weights and all noise.
        device: Where to train; auto takes a GPU if there is one.
        precision: Precision of the arithmetic; bf16 is mixed with float32, and auto is bf16 on a GPU, otherwise 32.
        capture: Whether to capture the steps as CUDA graphs, where GPUs train and the method allows it.
        ranks: Processes that train together. All but the first run the calling program again, as torchrun does.
        data_dir: Folder of the data files; $GOSSAMER_DATA or data/ if not given.
        n_val: Training examples held out for choices, 0 to train on all; if not given as the data set says, but none
            if these are fewer than 500 and the run calibrates.
        n_train: Training examples to use, the same for every seed; all if not given.
        target: Column of a table that is to be predicted.
        drop: Columns of a table to leave out, with commas between them.
        task: What the targets of own data are; by their values if not given.
        image_size: Height and width that the images of a folder are resized to.
        n_draws: Networks drawn for the final numbers.
        calibrate: Whether to fit the width of the posterior and a temperature of its logits on the held-out examples,
            if there are at least 500.
        on_nan: What to do where inputs, the loss or a gradient are not finite: stop, skip the batch, or rollback to the
            weights of up to 50 steps before.
        options: Options of the method; those left out are added with their defaults.

    Example:
        >>> Settings("ssvi", "digits", epochs=5, options={"density": 0.1}).epochs
        5
    """

    method: str
    data: str
    model: str | None = None
    epochs: int | None = None
    batch_size: int | None = None
    rounds: int | None = None
    seed: int = 0
    device: Device = "auto"
    precision: Precision = "auto"
    capture: bool = True
    ranks: int = 1
    data_dir: str | None = None
    n_val: int | None = None
    n_train: int | None = None
    target: str | None = None
    drop: str | None = None
    task: TaskKind | None = None
    image_size: int | None = None
    n_draws: int = 20
    calibrate: bool = True
    on_nan: OnNan = "stop"
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Reject what cannot work before anything is loaded or written."""
        for name, hint in get_type_hints(Settings).items():
            check_type(name, getattr(self, name), hint)
        for name in ("epochs", "batch_size", "rounds", "ranks", "n_draws"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1; got {value}")
        if not 0 <= self.seed < MAX_SEED:
            raise ValueError(f"seed must be from 0 to {MAX_SEED - 1}; got {self.seed}")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise ValueError("device cuda was asked for, but torch sees no CUDA device: use device cpu")
        methods.find(self.method)  # raises an error for an unknown one, and so do the next
        if data.own_kind(self.data) is not None:  # the run may be continued in another folder
            object.__setattr__(self, "data", str(Path(self.data).expanduser().absolute()))
        self._check_data()
        if self.model is not None:
            models.find(self.model)
        known = methods.options_of(self.method)
        for name, value in self.options.items():
            if name not in known:
                raise ValueError(unknown(f"option of {self.method}", name, known))
            check_type(f"{name} of {self.method}", value, known[name][0])
        if data.may_choose(self.data):  # what is left open is chosen when the data are known
            return
        # A run records all of them, because the next version may have other defaults.
        left = {name: value for name, value in USUAL.items() if getattr(self, name) is None}
        for name, value in {**left, "options": with_defaults(self.method, self.options)}.items():
            object.__setattr__(self, name, value)

    def to_config(self) -> dict[str, Any]:
        """As a dictionary for ``config.toml``."""
        return asdict(self)

    @classmethod
    def from_config(cls, config: Mapping[str, Any], *, recorded: bool = False) -> Settings:
        """From the dictionary of a ``config.toml``; an unknown key is an error that names the nearest.

        So is code of the user's own, ``module:function``, unless it is named again by ``names.trusting``. Where a run
        of any version ``recorded`` it, all options are there, some perhaps under former names.
        """
        refuse_foreign_code("it", config)
        if recorded:
            config = {key: value for key, value in config.items() if key not in FORMER}
        known = [item.name for item in fields(cls)]
        for key in config:
            if key not in known:
                raise ValueError(unknown("key", key, known))
        for key in ("method", "data"):
            if key not in config:
                raise ValueError(f"the key {key!r} is missing")
        check_type("method", config["method"], str)
        if recorded and isinstance(options := config.get("options"), Mapping):
            config = {**config, "options": methods.as_recorded(config["method"], options)}
        if recorded:  # the first runs did not calibrate, and later ones had one round and these numbers
            config = {"calibrate": False, **USUAL, **config}
            if isinstance(options := config.get("options", {}), Mapping):
                config["options"] = with_defaults(config["method"], options)
        return cls(**config)

    def load_task(self) -> Task:
        """The data, of the training examples as many as were asked for."""
        task = data.load(self.data, self.data_dir, **self._data_options())
        if self.calibrate and self.n_val is None and len(task.val[1]) < LEAST_HELD_OUT:
            task = _with_held_out(task)
        if self.n_train is None:
            return task
        x, y = task.train
        if not 1 <= self.n_train <= len(y):
            raise ValueError(f"n_train must be from 1 to the {len(y)} training examples; got {self.n_train}")
        rows = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))[: self.n_train]
        record = task.record and {**task.record, "sizes": {**task.record["sizes"], "train": self.n_train}}
        return task._replace(train=(x[rows], y[rows]), record=record)

    @property
    def data_name(self) -> str:
        """The data in a word: their name, or that of the file without its folder and ending."""
        kind = data.own_kind(self.data)
        return self.data if kind is None else Path(self.data).stem if kind != "images" else Path(self.data).name

    def _data_options(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in OF_DATA if getattr(self, name) is not None}

    def _check_data(self) -> None:
        """Reject options that the loader of the data does not take."""
        known = data.options_of(self.data)
        for name in self._data_options():
            if name not in known:
                own = ": it has a validation split of its own" if name == "n_val" else ""
                kept = " (with calibrate=False that split is never trained on)" if own else ""
                raise ValueError(f"{self.data_name} takes no {name}{own}; leave it out{kept}")

    @property
    def is_open(self) -> bool:
        """Whether something is left to be chosen by the data."""
        known = methods.options_of(self.method)
        return None in (self.epochs, self.batch_size, self.rounds) or not known.keys() <= self.options.keys()

    def is_on_gpu(self) -> bool:
        """Whether the device asked for is a GPU here."""
        return self.device == "cuda" or (self.device == "auto" and torch.cuda.is_available())

    def is_bf16(self) -> bool:
        """Whether the precision asked for is bfloat16 here."""
        return self.precision == "bf16" or (self.precision == "auto" and self.is_on_gpu())

    def model_name(self, task: Task) -> str:
        """The network asked for; otherwise a residual network for colour images and an MLP for everything else."""
        is_colour_image = len(task.input_shape) == 3 and task.input_shape[0] == 3
        return self.model or ("resnet18" if is_colour_image else "mlp")


def _with_held_out(task: Task) -> Task:
    """The task with its held-out examples moved into the training data."""
    n = len(task.val[1])
    if not n or task.total_weight is not None:  # weights have a mean of one over the training examples alone
        return task
    x, y = (torch.cat(pair) for pair in zip(task.train, task.val, strict=True))
    sizes = {"train": len(y), "val": 0}
    record = task.record and {**task.record, "sizes": {**task.record["sizes"], **sizes}}
    return task._replace(train=(x, y), val=(task.val[0][:0], task.val[1][:0]), record=record)


def with_defaults(method: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """All options of a method: those given, and the defaults of the others."""
    return {name: default for name, (_, default) in methods.options_of(method).items()} | dict(options)


def is_table(task: Task) -> bool:
    """Whether inputs are rows of numbers, standardised column by column."""
    return isinstance(task.transform, Standardize) and task.test[0].dim() == 2


def prepared(settings: Settings) -> tuple[Settings, Task]:
    """Settings and data of a new run, with everything chosen that was left open."""
    task = settings.load_task()
    if is_table(task) and task.record is not None:
        task = with_inputs(task, {"selected": _selected(task)})
    return suited(settings, task), task


def with_inputs(task: Task, record: Mapping[str, Any]) -> Task:
    """The task whose networks read the inputs that were selected once, if any were."""
    if task.record is None or "selected" not in record:
        return task
    return task_of({**task.record, "selected": record["selected"]}, task.train, task.val, task.test)


def suited(settings: Settings, task: Task) -> Settings:
    """The settings with what was left open: the recipe of the estimators for tables, defaults for everything else."""
    if not settings.is_open:
        return settings
    usual, options = dict[str, Any](USUAL), settings.options
    if is_table(task):
        usual, options = _by_recipe(settings, task)
    elif task.record is not None and len(task.input_shape) == 3 and settings.model is None:
        usual["model"] = "pooled_conv_net"  # images of any size, in minutes on a CPU; a twentieth of it is too little
        options = {**({"density": 0.2} if "density" in methods.options_of(settings.method) else {}), **options}
    chosen = {name: value for name, value in usual.items() if getattr(settings, name) is None}
    return replace(settings, **chosen, options=with_defaults(settings.method, options))


def _by_recipe(settings: Settings, task: Task) -> tuple[dict[str, Any], dict[str, Any]]:
    from gossamer.estimators import SparseBayesRegressor
    from gossamer.estimators.plan import has_one_rate, method_options, recipe_of

    one_rate = has_one_rate(settings.method, settings.options, task.likelihood)
    recipe, n = recipe_of("predict", one_rate, task.has_numbers), task.n_data
    model = settings.model or ("table_one_noise" if one_rate and task.has_numbers else "table")
    network = models.build(model, task.input_shape, task.n_outputs)
    n_weights = sum(parameter.numel() for parameter in network.parameters() if parameter.dim() > 1)
    options = method_options(settings.method, {}, settings.options, recipe, n_weights, n)
    options = members_of(settings.method, SparseBayesRegressor.members) | options
    batch_size = settings.batch_size or recipe.batch_size(n)
    epochs = -(-recipe.steps(n, batch_size) // -(-n // batch_size))
    rounds = recipe.rounds if settings.epochs is None else 1
    return {"model": model, "batch_size": batch_size, "epochs": epochs, "rounds": rounds}, options


def members_of(method: str, count: int) -> dict[str, int]:
    """The option for so many members of a method that has one by default: others have members of their own, or none."""
    return {"members": count} if methods.options_of(method).get("members", (int, 0))[1] == 1 else {}


def _selected(task: Task) -> list[int]:
    """The inputs that predict the target: data handling, which is the same for all methods and seeds."""
    from gossamer.estimators import SparseBayesClassifier, SparseBayesRegressor
    from gossamer.estimators.base import inputs_that_predict
    from gossamer.estimators.table import Rows

    record, (x, y) = task.record or {}, task.train
    columns = columns_of(record) if "columns" in record else Columns(x.shape[1])
    kind = SparseBayesRegressor if task.has_numbers else SparseBayesClassifier
    rows = Rows(x.double().numpy(), y.reshape(len(y), -1).double().numpy(), np.ones(len(y)))
    return inputs_that_predict(kind(random_state=0), columns, rows, task.n_outputs)
