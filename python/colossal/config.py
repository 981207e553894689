"""Configs for `initialize()`: a TOML file or a mapping, with changes over it."""

import os
from collections.abc import Iterator, Mapping, Sequence
from numbers import Integral, Real
from typing import Union

from . import _binding
from .error import Error

Scalar = Union[bool, int, float, str]
Value = Union[Scalar, list[Scalar]]
Source = Union[str, "os.PathLike[str]", Mapping[str, object]]
"""A config: the path of a TOML file, or a mapping whose keys are dotted (`"optimizer.schedule.name"`) or nested."""


def _scalar(key: str, value: object) -> Scalar:
    """Returns `value` as one of the four types of the binding. Numbers of numpy are accepted, and paths as text."""
    if isinstance(value, (bool, str)):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    if isinstance(value, os.PathLike):
        path: str = os.fspath(value)
        return path
    kind = type(value).__name__
    raise Error("config", f"`{key}` must be a bool, int, float, str, path or a list of these: got {kind}")


def _flattened(values: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, Value]]:
    for name, value in values.items():
        if not isinstance(name, str):
            raise Error("config", f"keys must be str: got {name!r} in `{prefix or 'the config'}`")
        key = f"{prefix}.{name}" if prefix else name
        if isinstance(value, Mapping):
            yield from _flattened(value, key)
        elif isinstance(value, Sequence) and not isinstance(value, str):
            yield key, [_scalar(f"{key}[{i}]", element) for i, element in enumerate(value)]
        else:
            yield key, _scalar(key, value)


def flatten(values: Mapping[str, object]) -> dict[str, Value]:
    """Returns the values by dotted key. Errors ("config"): a key that is no text or occurs twice, a value of a wrong
    type."""
    flat: dict[str, Value] = {}
    for key, value in _flattened(values):
        if key in flat:
            raise Error("config", f"`{key}` must be given once: got a dotted and a nested key; leave one of them out")
        flat[key] = value
    return flat


def read(source: Source, changes: Mapping[str, object], ranks: int) -> tuple[_binding.Config, list[str]]:
    """Reads `source` and lays `changes` over it. Returns the config and notices for the user.

    Defaults differ from those of the command in three keys: `parallel.data` is `ranks`, `training.batch_size` is one
    row per rank and micro-batch, and `training.steps` has none.

    Errors: those of the command. "training": no `training.steps`, which every schedule but `constant` depends on; no
    `training.batch_size`, which `optimizer.learning_rate_scaling` depends on.
    """
    path = "" if isinstance(source, Mapping) else os.fspath(source)
    values = {**(flatten(source) if isinstance(source, Mapping) else {}), **flatten(changes)}
    config, given, notices = _binding.read_config(path, values)
    if "parallel.data" not in given and "parallel.auto" not in given:
        values["parallel.data"] = ranks
    if "training.batch_size" not in given:
        if config.learning_rate_scaling != "none":
            raise Error("training", "training.batch_size must be given with optimizer.learning_rate_scaling: got none; "
                        "add training.batch_size to the config")
        values["training.batch_size"] = ranks * config.accumulate
    if "training.steps" not in given:
        if config.schedule != "constant":
            raise Error("training", "training.steps must be given unless the schedule is constant: got none; add "
                        "training.steps to the config")
        values["training.steps"] = max(100, config.warmup_steps)  # a warm-up must fit; nothing else depends on it
        notices = []  # about a warm-up that the default number of steps shortens
    config, _, late = _binding.read_config(path, values)
    return config, notices + [notice for notice in late if notice not in notices]
