"""Configuration files: read by ``--config``, printed by ``--print_config``."""

from __future__ import annotations

import json
import shlex
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

from gossamer import methods
from gossamer.cli.errors import UsageError
from gossamer.names import unknown
from gossamer.record.toml import to_toml
from gossamer.runs.settings import Settings, options_of

__all__ = ["as_flags", "known_method", "print_config", "read_config"]


def read_config(path: Path) -> dict[str, Any]:
    """The keys of a TOML or YAML file, the options of the method among the others."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}: {getattr(error, 'strerror', None) or 'it is not text'}") from error
    try:
        if path.suffix in (".yaml", ".yml"):
            import yaml

            content = yaml.safe_load(text) or {}
        else:
            content = tomllib.loads(text)
    except Exception as error:  # of two parsers, each with its own
        raise UsageError(f"{path} is broken: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict) or not isinstance(content.get("options", {}), dict):
        raise UsageError(f"{path} must hold keys and values")
    if isinstance(content.get("methods"), dict):
        raise UsageError(f"{path} is a recipe: gossamer compare {shlex.quote(str(path))} trains it")
    options = content.pop("options", {})
    content.pop("format", None)
    return {**content, **options}


def as_flags(path: Path, content: dict[str, Any], method: str) -> list[str]:
    """The keys of a file as flags of a method; an unknown key is an error that names the nearest."""
    known = [item.name for item in fields(Settings) if item.name != "options"] + list(options_of(method)) + ["out"]
    for key in content:
        if key.replace("-", "_") not in known:
            raise UsageError(f"{path}: {unknown('key', key, known)}")
    return [f"--{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in content.items()]


def known_method(name: str) -> str:
    """The name, if a method has it."""
    try:
        methods.find(name)
    except ValueError as error:
        raise UsageError(str(error)) from None
    return name


def print_config(settings: Settings) -> None:
    """Everything a run of these settings is told, as TOML that ``--config`` reads; what is not set, as a comment."""
    plain = settings.to_config()
    options = plain.pop("options")
    print(
        to_toml(plain) + _unset(plain) + "\n" + to_toml({"options": options}).strip("\n") + "\n" + _unset(options),
        end="",
    )


def _unset(values: dict[str, Any]) -> str:
    names = [name for name, value in values.items() if value is None]
    return f"# not set: {', '.join(names)}\n" if names else ""
