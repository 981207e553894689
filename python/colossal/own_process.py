"""Use of an object in the process that made it alone."""

import os

from .error import Error


class OwnProcess:
    """The process that made an object. A child that `os.fork()` or multiprocessing forks from it has a copy of the
    object, but not the threads and ranks that the object works with."""

    def __init__(self, component: str, name: str, advice: str) -> None:
        self._process = os.getpid()
        self._component = component
        self._name = name
        self._advice = advice

    @property
    def is_this(self) -> bool:
        """True in the process that made the object, False in a forked child."""
        return os.getpid() == self._process

    def require(self) -> None:
        """Raises `Error` in a forked child."""
        if not self.is_this:
            raise Error(self._component, f"{self._name} must be used in the process that made it: got process "
                        f"{os.getpid()}, a fork of process {self._process}; {self._advice}")
