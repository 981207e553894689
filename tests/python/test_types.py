"""The annotations of the package, as mypy sees them, and the stub of the binding beside the compiled module."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import colossal

HERE = Path(__file__).parent
PACKAGES = str(Path(colossal.__file__).parents[1])


def mypy(*words: str) -> "subprocess.CompletedProcess[str]":
    """Runs a tool of mypy on the package of this test."""
    environment = {**os.environ, "MYPYPATH": PACKAGES, "PYTHONPATH": PACKAGES}
    return subprocess.run([sys.executable, "-m", *words], env=environment, cwd=HERE, capture_output=True, text=True)


@pytest.fixture(autouse=True)
def is_installed() -> None:
    pytest.importorskip("mypy")


def test_annotations_are_strict() -> None:
    checked = mypy("mypy", "--config-file", "mypy.ini", "-p", "colossal")
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_stub_describes_the_binding() -> None:
    """Nothing is excepted: the stub declares the metaclass of pybind11, and __init__ of classes without a constructor.
    """
    compared = mypy("mypy.stubtest", "--mypy-config-file", "stubtest.ini", "colossal._binding")
    assert compared.returncode == 0, compared.stdout + compared.stderr
