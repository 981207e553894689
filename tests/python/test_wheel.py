"""The wheel of this build: its content, an installation beside torch, and the removal of that installation."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("COLOSSAL_BINARY", "")).parent

pytestmark = pytest.mark.skipif(not (BUILD / "python").is_dir(), reason="no build with the module in COLOSSAL_BINARY")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    for module in ("scikit_build_core", "auditwheel"):
        pytest.importorskip(module)
    folder = tmp_path_factory.mktemp("dist")
    made = run(sys.executable, ROOT / "python" / "make_wheel.py", BUILD, folder)
    assert made.returncode == 0, made.stdout + made.stderr
    return Path(made.stdout.strip())


def run(*command, **settings):
    words = [str(word) for word in command]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(words, env=environment, capture_output=True, text=True, **settings)


def test_runs_on_this_system_and_newer_ones(wheel):
    major, minor = re.search(r"-manylinux_(\d+)_(\d+)_x86_64\.whl$", wheel.name).groups()
    libc = os.confstr("CS_GNU_LIBC_VERSION").split()[1]
    assert [int(major), int(minor)] <= [int(part) for part in libc.split(".")]


def test_carries_no_library_of_torch(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    programs = {"colossal/colossal", "colossal/colossal-torch", "colossal/builtin_text.gz"}
    assert programs | {"colossal/_build.py", "colossal_command.py"} <= set(names)
    assert any(name.startswith("pycolossal.libs/libzstd") for name in names)
    assert not [name for name in names if re.search("torch_|libc10|libgomp|libcud", name)]


def test_has_relative_run_paths_and_no_debug_information(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    for file in [tmp_path / "colossal" / "colossal-torch", *(tmp_path / "colossal").glob("_binding*.so")]:
        dynamic = run("readelf", "-d", file).stdout
        (path,) = re.findall(r"(?:RPATH|RUNPATH).*\[(.*)\]", dynamic)
        assert path.startswith("$ORIGIN/../torch/lib"), path
        assert all(folder.startswith("$ORIGIN/") for folder in path.split(":")), path
        assert ".debug_info" not in run("readelf", "-S", "-W", file).stdout


@pytest.fixture
def environment(tmp_path):
    """An environment with pip, and with the torch of this Python in its site-packages."""
    venv.create(tmp_path / "env", with_pip=True)
    (site,) = (tmp_path / "env" / "lib").glob("python*/site-packages")
    torch = Path(importlib.util.find_spec("torch").origin).parent
    (site / "torch").symlink_to(torch)
    for metadata in torch.parent.glob("torch-*.dist-info"):
        (site / metadata.name).symlink_to(metadata)
    # What torch imports. The package itself is found in `site`, which comes first.
    (site / "others.pth").write_text(f"{torch.parent}\n")
    return tmp_path / "env"


def files_of(folder):
    return {path.relative_to(folder) for path in folder.rglob("*") if "__pycache__" not in path.parts}


def own_tests_pass(environment, folder):
    """Runs tests of the package on what the wheel has installed, with the pytest of this Python."""
    (folder / "is_installed.py").write_text(
        "import colossal, torch\n"
        "from colossal import _binding\n"
        "for module in (colossal, _binding):\n"
        f"    assert module.__file__.startswith({str(environment)!r}), module.__file__\n"
    )
    chosen = ["build.py", "checkpoint.py", "text.py", "training.py::test_checkpoints_resume_bitwise"]
    files = [f"{ROOT}/tests/python/test_{name}" for name in chosen]
    command = [environment / "bin" / "python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "is_installed"]
    variables = {name: value for name, value in os.environ.items() if not name.startswith("COLOSSAL_")}
    variables |= {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    words = [str(word) for word in [*command, *files]]
    tested = subprocess.run(words, env=variables, capture_output=True, text=True, cwd=folder)
    assert tested.returncode == 0, tested.stdout + tested.stderr


def test_installs_and_uninstalls_without_a_trace(wheel, environment, tmp_path):
    before = files_of(environment)
    installed = run(environment / "bin" / "pip", "install", "--no-index", "--no-deps", wheel)
    assert installed.returncode == 0, installed.stderr
    version = wheel.name.split("-")[1]
    assert run(environment / "bin" / "colossal", "--version").stdout == f"colossal {version}\n"
    info = run(environment / "bin" / "colossal", "info", "--no-measure")  # starts colossal-torch
    assert info.returncode == 0, info.stderr
    imported = run(environment / "bin" / "python", "-c", "import colossal; print(colossal.__file__)", cwd=tmp_path)
    assert imported.stdout.startswith(str(environment)), imported.stderr
    own_tests_pass(environment, tmp_path)
    removed = run(environment / "bin" / "pip", "uninstall", "-y", "pycolossal")
    assert removed.returncode == 0, removed.stderr
    assert files_of(environment) == before
    shutil.rmtree(environment)
