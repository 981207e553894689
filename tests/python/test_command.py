"""The entry point `colossal` of an installed package, with a script in place of the compiled program."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SOURCES = Path(__file__).resolve().parents[2] / "python"


@pytest.fixture
def site(tmp_path):
    """site-packages with torch, and with a package that refuses to be imported."""
    site = tmp_path / "site-packages"
    package = site / "colossal"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise AssertionError('the package was imported')\n")
    program = package / "colossal"
    program.write_text('#!/bin/sh\necho "$0|$LD_LIBRARY_PATH|$#|$1|$2"\nexit 3\n')
    program.chmod(0o755)
    write_torch(site)
    shutil.copy(SOURCES / "colossal_command.py", site)
    return site


def write_torch(folder):
    (folder / "torch" / "lib").mkdir(parents=True)
    (folder / "torch" / "__init__.py").write_text("raise AssertionError('torch was imported')\n")


def run(*path, libraries=""):
    folders = [str(folder) for folder in path]
    code = f"import sys; sys.path[:0] = {folders!r}; import colossal_command; colossal_command.main()"
    environment = {**os.environ, "LD_LIBRARY_PATH": libraries}
    return subprocess.run([sys.executable, "-c", code, "train", "a b"], capture_output=True, text=True, env=environment)


def test_becomes_the_program(site):
    finished = run(site)
    assert finished.returncode == 3, finished.stderr
    assert finished.stdout == f"{site}/colossal/colossal||2|train|a b\n"


def test_shows_a_torch_of_another_folder(site, tmp_path):
    shutil.rmtree(site / "torch")
    write_torch(tmp_path / "system")
    finished = run(site, tmp_path / "system", libraries="/opt/lib")
    libraries = f"{tmp_path}/system/torch/lib:/opt/lib"
    assert finished.stdout == f"{site}/colossal/colossal|{libraries}|2|train|a b\n", finished.stderr


def test_names_a_program_that_is_missing(site):
    (site / "colossal" / "colossal").unlink()
    finished = run(site)
    assert finished.returncode == 1
    assert "[program] cannot start " in finished.stderr and "install the package again" in finished.stderr
