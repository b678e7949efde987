"""The space that a sweep searches: for each option of the method or setting of the run, the values it may take."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from gossamer import data, methods
from gossamer._text.names import unknown
from gossamer.files.schema import check_type, parse_value
from gossamer.lab.runs.settings import USUAL, Settings, with_defaults
from gossamer_sweep.record import RANGE

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

FIXED = {"method", "data", "data_dir", "device", "ranks", "n_val", "calibrate", "target", "drop", "task", "options"}
"""Settings that cannot be searched: they say what is measured, or where."""

EXAMPLES = "lr=log:1e-4..1e-1 (a range), density=0.01..0.1 or density=0.01,0.05,0.1 (values)"


@dataclass(frozen=True)
class Dimension:
    """What one option may be: the text that says so, Optuna's distribution, and the values of which that has texts."""

    text: str
    distribution: BaseDistribution
    values: Mapping[str, Any] = field(default_factory=dict)

    def value(self, kept: Any) -> Any:
        """The value of which Optuna keeps a number or a text."""
        return self.values[kept] if self.values else kept

    def __str__(self) -> str:
        return self.text


Space = Mapping[str, Dimension]


def read_space(method: str, told: Sequence[str] | Mapping[str, Any]) -> dict[str, Dimension]:
    """The space from texts ``NAME=VALUES``, or from a table of a TOML file, where a list holds the values.

    ``log:1e-4..1e-1`` and ``0.1..0.9`` are ranges, of whole numbers where the option is one; ``a,b,c`` are values.

    Example:
        >>> space = read_space("ssvi", ["lr=log:1e-4..1e-1", "members=1..5", "removal=snr,magnitude"])
        >>> str(space["lr"]), space["members"].distribution, list(space["removal"].values)
        ('log:0.0001..0.1', IntDistribution(high=5, log=False, low=1, step=1), ['snr', 'magnitude'])
    """
    if not isinstance(told, Mapping):
        pairs = [text.partition("=") for text in told]
        if broken := [name for name, equals, _ in pairs if not equals]:
            raise ValueError(f"--search {broken[0]}: write NAME=VALUES, as in {EXAMPLES}")
        names = [_plain(name) for name, _, _ in pairs]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"--search {twice[0]} is given twice: leave one out")
        told = {name: text for name, _, text in pairs}
    if not told:
        raise ValueError(f"a sweep needs something to search: --search {EXAMPLES}")
    return {_plain(name): _dimension(_plain(name), value, _kind(method, _plain(name))) for name, value in told.items()}


def with_values(settings: Settings, chosen: Mapping[str, Any]) -> Settings:
    """The settings with values of settings and of options of the method.

    Example:
        >>> with_values(Settings("ssvi", "digits"), {"epochs": 3, "density": 0.2}).options["density"]
        0.2
    """
    of_run = {name: value for name, value in chosen.items() if name in _settings()}
    of_method = {name: value for name, value in chosen.items() if name not in of_run}
    return replace(settings, **of_run, options={**settings.options, **of_method})


def command_of(settings: Settings, always: Collection[str] = ()) -> str:
    """The command that trains these settings, as a shell takes it; what has its default is only told ``always``.

    Example:
        >>> print(command_of(Settings("ssvi", "two_moons", epochs=5, options={"lr": 0.01, "optimizer": "adam"})))
        gossamer train ssvi two_moons --epochs 5 --lr 0.01 --optimizer adam
    """
    usual: dict[str, Any] = {item.name: item.default for item in fields(Settings)}
    if not data.may_choose(settings.data):  # otherwise what is left out is chosen by the data
        usual |= with_defaults(settings.method, USUAL)
    config = settings.to_config()
    told = {key: value for key, value in config.items() if key not in ("method", "data", "options")}
    flags = []
    for key, value in (told | config["options"]).items():
        if value != usual.get(key) or key in always:
            flags += [f"--{key}", value if isinstance(value, str) else json.dumps(value)]
    return shlex.join(["gossamer", "train", settings.method, settings.data, *flags])


def _kind(method: str, name: str) -> Any:
    hints = get_type_hints(Settings)
    known = {key: hints[key] for key in _settings() if key not in FIXED}
    known |= {key: kind for key, (kind, _) in methods.options_of(method).items()}
    if name in FIXED:
        raise ValueError(f"--search {name}: this cannot be searched, all trials have the same {name}")
    if name not in known:
        raise ValueError(f"--search: {unknown(f'option of {method} or setting', name, known)}")
    return known[name]


def _settings() -> list[str]:
    return [item.name for item in fields(Settings)]


def _plain(name: str) -> str:
    return name.strip().replace("-", "_")


def _dimension(name: str, value: Any, kind: Any) -> Dimension:
    from optuna.distributions import CategoricalDistribution

    found = RANGE.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is not None:
        return _range(name, bool(found[1]), float(found[2]), float(found[3]), kind)
    if isinstance(value, str) and (value.startswith("log:") or ".." in value):
        raise ValueError(f"--search {name}={value}: a range is LOW..HIGH or log:LOW..HIGH, as in {EXAMPLES}")
    try:
        values = _listed(name, value, kind)
    except ValueError as error:
        raise ValueError(f"--search {error}") from error
    if len(values) < 2:
        raise ValueError(f"--search {name}={value}: one value leaves no choice, give it as --{name}")
    texts = [one if isinstance(one, str) else json.dumps(one) for one in values]
    if len(set(texts)) < len(texts):
        raise ValueError(f"--search {name}={value}: a value stands there twice")
    return Dimension(",".join(texts), CategoricalDistribution(texts), dict(zip(texts, values, strict=True)))


def _listed(name: str, value: Any, kind: Any) -> list[Any]:
    if isinstance(value, str):
        texts = re.split(r",(?![^\[]*\])", value)  # not inside of a list
        try:
            return [parse_value(text.strip(), kind) for text in texts]
        except ValueError as error:
            raise ValueError(f"{name} {error}") from error
    values = value if isinstance(value, list) else [value]
    for one in values:
        check_type(name, one, kind)
    return values


def _range(name: str, log: bool, low: float, high: float, kind: Any) -> Dimension:
    from optuna.distributions import FloatDistribution, IntDistribution

    kinds = get_args(kind) or (kind,)
    ends = f"{'log:' * log}{low:g}..{high:g}"
    text = f"--search {name}={ends}"
    if not {int, float} & set(kinds):
        raise ValueError(f"{text}: {name} is no number, give its values with commas")
    whole = float not in kinds
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ValueError(f"{text}: the first number must be below the second")
    if log and low <= 0:
        raise ValueError(f"{text}: a range of logarithms begins above 0")
    if whole and not (low.is_integer() and high.is_integer()):
        raise ValueError(f"{text}: {name} is a whole number, and so are the ends of its range")
    return Dimension(ends, IntDistribution(int(low), int(high), log) if whole else FloatDistribution(low, high, log))
