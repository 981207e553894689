"""A model that a thread of its own runs in this process: what `Engine` and `Drawer` hold."""

import json
import logging
import os
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Generic, Protocol, TypeVar

from .own_process import OwnProcess

WAIT = 0.1  #: seconds between two looks for Ctrl-C


class _Held(Protocol):
    def notices(self) -> list[str]: ...
    def close(self) -> None: ...


Held = TypeVar("Held", bound=_Held)


class LocalModel(Generic[Held]):
    """An object of the library that runs a model, from the arguments of the class that holds it.

    `given` are all arguments of its ``__init__``. `make` gets those that are not None as JSON, where ``folder`` is
    ``from``. The notices of the object are logged. It is closed before the interpreter ends, at the latest.
    """

    def __init__(self, make: Callable[[str], Held], given: Mapping[str, Any], own: OwnProcess) -> None:
        options: dict[str, Any] = {"from": os.fspath(given["folder"])}
        own_names = ("self", "folder")
        options |= {name: value for name, value in given.items() if name not in own_names and value is not None}
        if "adapter" in options:
            options["adapter"] = [os.fspath(options["adapter"])]
        self._own = own
        self._held = make(json.dumps(options, default=plain))
        weakref.finalize(self, _close, self._held, own)
        log(self._held.notices())

    @property
    def held(self) -> Held:
        """The object, in the process that made it. Raises `Error` in a forked child."""
        self._own.require()
        return self._held

    def close(self) -> None:
        """Closes the object. Does nothing in a forked child."""
        _close(self._held, self._own)


def log(notices: list[str]) -> None:
    """Logs lines for the user."""
    for notice in notices:
        logging.getLogger("colossal").warning(notice)


def plain(value: Any) -> str | int | float:
    """Returns a value of a type that JSON lacks: a number of another library as int or float, others as text."""
    if hasattr(value, "__index__"):
        return int(value.__index__())
    if hasattr(value, "__float__"):
        return float(value)
    return os.fspath(value) if isinstance(value, os.PathLike) else str(value)


def _close(held: _Held, own: OwnProcess) -> None:
    if own.is_this:  # a child has no thread of the model to wait for
        held.close()
