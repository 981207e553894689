"""The build backend of `pip install .`: scikit-build-core, with checks before it and the choice of torch.

The package works beside one minor version of torch only, the one that it was built with:

- If the environment that pip installs into has a torch 2.11 to 2.15, the build uses that one and downloads no other.
- Otherwise the build requires torch 2.13.0.

Environment variables:

- COLOSSAL_FROM_BUILD: a build folder of CMake with COLOSSAL_PYTHON=ON. The wheel holds that build; nothing is compiled;
- COLOSSAL_VERSION_SUFFIX: appended to the version, such as .dev20261127.

Settings of scikit-build-core work as `pip install . -C NAME=VALUE`.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import runpy
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, Optional, Union

DEFAULT_TORCH = "2.13.0"
OLDEST, NEWEST = (2, 11), (2, 15)
SUPPORTED = f"{OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}"
# Packages that pip brings if they are missing, or that it does not need.
PACKAGES_OF_PIP = ("cmake", "ninja-build", "python3-venv")
ROOT = Path(__file__).resolve().parents[1]

Settings = Optional[Mapping[str, Union[str, list[str]]]]


class Torch(NamedTuple):
    """An installed torch."""

    version: str  # without the label of the build, such as +cpu
    folder: Path  # of the package: it has include/ and lib/

    def minor(self) -> str:
        return ".".join(self.version.split(".")[:2])


# The hooks that pip calls. scikit-build-core is imported in them, so that a refusal needs nothing else.


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    """Refuses what cannot be built, before pip downloads torch. Returns the requirements beside scikit-build-core."""
    from scikit_build_core.build import get_requires_for_build_wheel

    refuse_problems()
    required = [] if find_torch() else [f"torch=={DEFAULT_TORCH}"]
    return [*get_requires_for_build_wheel(dict(config_settings or {})), *required]


def prepare_metadata_for_build_wheel(metadata_directory: str, config_settings: Settings = None) -> str:
    from scikit_build_core.build import prepare_metadata_for_build_wheel

    return prepare_metadata_for_build_wheel(metadata_directory, settings_of_build(config_settings))


def build_wheel(wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None) -> str:
    from scikit_build_core.build import build_wheel

    refuse_problems()  # again, because a build without isolation calls this hook alone
    return build_wheel(wheel_directory, settings_of_build(config_settings), metadata_directory)


def get_requires_for_build_sdist(config_settings: Settings = None) -> list[str]:
    return []


def build_sdist(sdist_directory: str, config_settings: Settings = None) -> str:
    from scikit_build_core.build import build_sdist

    return build_sdist(sdist_directory, dict(config_settings or {}))


# What scikit-build-core calls for the dynamic fields of pyproject.toml.


def dynamic_metadata(settings: Mapping[str, Any], project: Mapping[str, Any]) -> dict[str, Any]:
    torch = find_torch()
    required = f"torch=={torch.minor()}.*" if torch else f"torch>={OLDEST[0]}.{OLDEST[1]},<{NEWEST[0]}.{NEWEST[1] + 1}"
    return {"version": version(), "dependencies": [required]}


def dynamic_wheel(settings: Mapping[str, Any]) -> dict[str, bool]:
    return {"dependencies": True}  # a source archive leaves open which torch it will be built with


# The choice of torch.


def find_torch() -> Torch | None:
    """The torch of the finished build or of the target; else the one that this process could import."""
    build = finished_build()
    if build is not None:
        return Torch(build["TORCH_VERSION"], Path())
    target = torch_of_target()
    if target is not None:
        return target
    spec = importlib.util.find_spec("torch")  # does not import it
    if spec is None or spec.origin is None:
        return None
    return torch_in(Path(spec.origin).parents[1])


def torch_of_target() -> Torch | None:
    """The torch of the environment that the wheel is for. sysconfig names its folders inside pip's isolation, too."""
    paths = sysconfig.get_paths()
    return torch_in(Path(paths["purelib"])) or torch_in(Path(paths["platlib"]))


def torch_in(site: Path) -> Torch | None:
    found = next(iter(importlib.metadata.distributions(name="torch", path=[str(site)])), None)
    if found is None or not (site / "torch" / "include").is_dir():
        return None
    return Torch(found.version.partition("+")[0], site / "torch")


def refuse_problems() -> None:
    """Ends the build if the environment or the system lacks something. Names everything at once."""
    if finished_build() is not None:
        return
    problems = [*problems_of_packages(), *problems_of_torch(torch_of_target())]
    if problems:
        refuse(problems)


def problems_of_torch(torch: Torch | None) -> list[str]:
    if torch is None:
        return []
    if not OLDEST <= tuple(int(part) for part in torch.minor().split(".")) <= NEWEST:
        return [
            f"torch must be {SUPPORTED}: got {torch.version} in {torch.folder}; install one of these versions there, "
            "or install into another environment"
        ]
    # Without the environment variables: pip's isolation hides the environment by PYTHONPATH.
    code = f"import sys; sys.path.insert(0, {str(torch.folder.parent)!r}); import torch"
    tried = subprocess.run([sys.executable, "-E", "-c", code], capture_output=True, text=True, check=False)
    if tried.returncode == 0:
        return []
    why = (tried.stderr.strip().splitlines() or [f"exit status {tried.returncode}"])[-1]
    return [
        f"Python cannot import torch {torch.version} in {torch.folder.parent} ({why}); run "
        f"{sys.executable} -m pip install torch=={torch.version}, which installs what it lacks, and start again"
    ]


# The packages of the system, and the build.


def problems_of_packages() -> list[str]:
    """Names all packages that are missing at once. The list and its checks are those of colossal.sh."""
    missing = [name for name in run_script("packages", "--missing") if name not in PACKAGES_OF_PIP]
    if not missing:
        return []
    missing = [headers_package() if name == "python3-dev" else name for name in missing]
    return [
        "packages are missing (names of Debian); run this as root and start again: "
        f"apt-get install -y {' '.join(missing)}"
    ]


def headers_package() -> str:
    """Debian's package with Python.h. python3-dev belongs to the python3 of the system."""
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return "python3-dev" if os.path.realpath("/usr/bin/python3").endswith(name) else f"{name}-dev"


def run_script(*arguments: str) -> list[str]:
    """Returns the words that a command of colossal.sh prints."""
    command = ["bash", str(ROOT / "colossal.sh"), *arguments]
    environment = {**os.environ, "PYTHON": sys.executable}
    return subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout.split()


def settings_of_build(config_settings: Settings) -> dict[str, str | list[str]]:
    """The settings of scikit-build-core: those of the user over those that this machine and its torch ask for."""
    folder = os.environ.get("COLOSSAL_FROM_BUILD")
    if folder is not None:
        build = str(Path(folder).resolve())
        settings = {"cmake.source-dir": "python/from_build", "build-dir": f"{build}/wheel"}
        settings["cmake.define.COLOSSAL_BUILD"] = build
        return {**settings, **(config_settings or {})}
    torch = find_torch()
    if torch is None:
        refuse([f"without isolation, torch {SUPPORTED} must be installed; run pip install torch=={DEFAULT_TORCH}"])
    settings = {"cmake.define.LIBTORCH_ROOT": str(torch.folder)}
    settings["cmake.define.COLOSSAL_VERSION_SUFFIX"] = os.environ.get("COLOSSAL_VERSION_SUFFIX", "")
    if "CMAKE_BUILD_PARALLEL_LEVEL" not in os.environ:
        settings["build.tool-args"] = f"-j{run_script('jobs')[0]}"
    return {**settings, **(config_settings or {})}


def finished_build() -> dict[str, Any] | None:
    """What CMake wrote about the package of the build in COLOSSAL_FROM_BUILD; None without that variable."""
    folder = os.environ.get("COLOSSAL_FROM_BUILD")
    if folder is None:
        return None
    written = Path(folder) / "python" / "colossal" / "_build.py"
    if not written.is_file():
        refuse([f"COLOSSAL_FROM_BUILD must be a build with COLOSSAL_PYTHON=ON: got {folder}, which has no {written}"])
    return runpy.run_path(str(written))


def version() -> str:
    build = finished_build()
    if build is not None:
        return str(build["VERSION"])
    found = re.search(r"project\(colossal VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text())
    assert found, "CMakeLists.txt names no version"
    return found[1] + os.environ.get("COLOSSAL_VERSION_SUFFIX", "")


def refuse(problems: list[str]) -> NoReturn:
    """Ends the build with messages instead of a trace of calls."""
    raise SystemExit("\n".join(f"[install] {problem}" for problem in problems))
