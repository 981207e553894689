"""The build backend of `pip install .`: the choice of torch, what is refused, and the wheel of a finished build."""

import importlib.util
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BACKEND = ROOT / "python" / "build_backend.py"


@pytest.fixture
def backend(monkeypatch):
    """The backend on a machine with all packages, in an environment without torch."""
    monkeypatch.delenv("COLOSSAL_FROM_BUILD", raising=False)
    monkeypatch.delenv("COLOSSAL_VERSION_SUFFIX", raising=False)
    monkeypatch.delenv("CMAKE_BUILD_PARALLEL_LEVEL", raising=False)
    spec = importlib.util.spec_from_file_location("build_backend", BACKEND)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.unpatched_problems_of_packages = module.problems_of_packages
    monkeypatch.setattr(module, "problems_of_packages", lambda: [])
    monkeypatch.setattr(module, "torch_of_target", lambda: None)
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    return module


def write_torch(site, version, content=""):
    (site / "torch" / "include").mkdir(parents=True)
    (site / "torch" / "__init__.py").write_text(content)
    (site / f"torch-{version}.dist-info").mkdir()
    metadata = f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n"
    (site / f"torch-{version}.dist-info" / "METADATA").write_text(metadata)


def with_target(backend, monkeypatch, site):
    monkeypatch.setattr(backend, "torch_of_target", lambda: backend.torch_in(site))


@pytest.fixture
def no_build_core(monkeypatch):
    """scikit-build-core, without requirements of its own."""
    package, build = type(sys)("scikit_build_core"), type(sys)("scikit_build_core.build")
    build.get_requires_for_build_wheel = lambda settings: ["ninja>=1.5"]
    build.build_wheel = lambda folder, settings, metadata: settings["cmake.define.LIBTORCH_ROOT"]
    monkeypatch.setitem(sys.modules, "scikit_build_core", package)
    monkeypatch.setitem(sys.modules, "scikit_build_core.build", build)


def test_requires_the_default_torch(backend, no_build_core):
    assert backend.get_requires_for_build_wheel() == ["ninja>=1.5", "torch==2.13.0"]


@pytest.mark.parametrize("version", ["2.11.0", "2.12.3", "2.15.1+cpu"])
def test_uses_a_supported_torch_of_the_environment(backend, no_build_core, monkeypatch, tmp_path, version):
    write_torch(tmp_path, version)
    with_target(backend, monkeypatch, tmp_path)
    assert backend.get_requires_for_build_wheel() == ["ninja>=1.5"]
    minor = version.rpartition(".")[0]
    assert backend.dynamic_metadata({}, {})["dependencies"] == [f"torch=={minor}.*"]
    assert backend.settings_of_build(None)["cmake.define.LIBTORCH_ROOT"] == f"{tmp_path}/torch"


@pytest.mark.parametrize("version", ["2.10.1", "2.16.0", "1.13.1", "3.0.0"])
def test_refuses_another_torch_with_both_versions(backend, no_build_core, monkeypatch, tmp_path, version):
    write_torch(tmp_path, version)
    with_target(backend, monkeypatch, tmp_path)
    with pytest.raises(SystemExit) as refused:
        backend.get_requires_for_build_wheel()
    assert f"[install] torch must be 2.11 to 2.15: got {version} in {tmp_path}/torch" in str(refused.value)


def test_refuses_it_without_isolation_too(backend, no_build_core, monkeypatch, tmp_path):
    write_torch(tmp_path / "new", "2.14.1")
    with_target(backend, monkeypatch, tmp_path / "new")
    assert backend.build_wheel("dist") == f"{tmp_path}/new/torch"
    write_torch(tmp_path / "newer", "2.16.0")
    with_target(backend, monkeypatch, tmp_path / "newer")
    with pytest.raises(SystemExit, match="torch must be 2.11 to 2.15: got 2.16.0"):
        backend.build_wheel("dist")


def test_refuses_a_torch_that_cannot_be_imported(backend, no_build_core, monkeypatch, tmp_path):
    write_torch(tmp_path, "2.13.0+cu130", "raise ImportError('libcudart.so.13: cannot open shared object file')")
    with_target(backend, monkeypatch, tmp_path)
    with pytest.raises(SystemExit) as refused:
        backend.get_requires_for_build_wheel()
    assert "(ImportError: libcudart.so.13: cannot open shared object file)" in str(refused.value)
    assert f"run {sys.executable} -m pip install torch==2.13.0, which installs what it lacks" in str(refused.value)


def test_imports_torch_outside_of_the_isolation(backend, monkeypatch, tmp_path):
    (tmp_path / "overlay").mkdir()
    (tmp_path / "overlay" / "sitecustomize.py").write_text("raise SystemExit('the isolation is active')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "overlay"))
    write_torch(tmp_path, "2.13.0")
    assert backend.problems_of_torch(backend.torch_in(tmp_path)) == []


def test_finds_the_torch_that_the_build_required(backend, monkeypatch, tmp_path):
    write_torch(tmp_path, "2.13.0")
    found = importlib.util.spec_from_file_location("torch", tmp_path / "torch" / "__init__.py")
    monkeypatch.setattr(backend.importlib.util, "find_spec", lambda name: found)
    assert backend.find_torch() == ("2.13.0", tmp_path / "torch")


def test_needs_a_torch_without_isolation(backend):
    with pytest.raises(SystemExit, match="must be installed; run pip install torch==2.13.0"):
        backend.settings_of_build(None)


def test_names_all_packages_and_torch_at_once(backend, no_build_core, monkeypatch, tmp_path):
    missing = ["g++", "cmake", "libzstd-dev", "ninja-build", "python3-venv", "python3-dev"]
    monkeypatch.setattr(backend, "problems_of_packages", backend.unpatched_problems_of_packages)
    monkeypatch.setattr(backend, "run_script", lambda *arguments: missing)
    monkeypatch.setattr(backend, "headers_package", lambda: "python3.12-dev")
    write_torch(tmp_path, "2.9.0")
    with_target(backend, monkeypatch, tmp_path)
    with pytest.raises(SystemExit) as refused:
        backend.get_requires_for_build_wheel()
    packages, torch = str(refused.value).splitlines()
    assert packages.endswith(": apt-get install -y g++ libzstd-dev python3.12-dev")
    assert "got 2.9.0" in torch


def test_asks_the_setup_script(backend, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    missing = backend.run_script("packages", "--missing")
    assert "g++" in missing and "libboost-dev" in missing
    assert int(backend.run_script("jobs")[0]) >= 1


def test_passes_settings_of_the_user(backend, monkeypatch, tmp_path):
    write_torch(tmp_path, "2.13.0")
    with_target(backend, monkeypatch, tmp_path)
    monkeypatch.setattr(backend, "run_script", lambda *arguments: ["7"])
    assert backend.settings_of_build(None)["build.tool-args"] == "-j7"
    settings = backend.settings_of_build({"cmake.define.COLOSSAL_CUDA": "OFF", "build.tool-args": "-j1"})
    assert settings["cmake.define.COLOSSAL_CUDA"] == "OFF" and settings["build.tool-args"] == "-j1"
    monkeypatch.setenv("CMAKE_BUILD_PARALLEL_LEVEL", "3")
    assert "build.tool-args" not in backend.settings_of_build(None)


def test_appends_the_suffix_of_a_nightly(backend, monkeypatch):
    release = backend.version()
    monkeypatch.setenv("COLOSSAL_VERSION_SUFFIX", ".dev20261127")
    assert backend.version() == release + ".dev20261127"


def test_supports_the_versions_of_the_other_scripts(backend):
    script, module = (ROOT / "colossal.sh").read_text(), (ROOT / "cmake" / "FindLibTorch.cmake").read_text()
    assert f"\ntorch_version={backend.DEFAULT_TORCH}\n" in script
    assert f'is_older "$version" {backend.OLDEST[0]}.{backend.OLDEST[1]} ' in script
    above = f"{backend.NEWEST[0]}.{backend.NEWEST[1] + 1}"
    assert f'is_older "$version" {above};' in script
    assert f"VERSION_LESS {backend.OLDEST[0]}.{backend.OLDEST[1]} " in module
    assert f"VERSION_GREATER_EQUAL {above})" in module


def test_refuses_a_build_without_the_module(backend, no_build_core, monkeypatch, tmp_path):
    monkeypatch.setenv("COLOSSAL_FROM_BUILD", str(tmp_path))
    with pytest.raises(SystemExit, match="must be a build with COLOSSAL_PYTHON=ON: got "):
        backend.get_requires_for_build_wheel()


@pytest.fixture
def finished_build(tmp_path):
    """A build folder whose installation has a component `python` and another one."""
    source, build = tmp_path / "source", tmp_path / "build"
    package = build / "python" / "colossal"
    package.mkdir(parents=True)
    source.mkdir()
    (package / "_build.py").write_text('VERSION = "4.5.6.dev7"\nTORCH_VERSION = "2.12.1"\n')
    (package / "program").write_text("#!/bin/sh\n")
    (source / "CMakeLists.txt").write_text(f"""
        cmake_minimum_required(VERSION 3.25)
        project(fake LANGUAGES NONE)
        install(FILES {package}/_build.py DESTINATION colossal COMPONENT python EXCLUDE_FROM_ALL)
        install(PROGRAMS {package}/program DESTINATION colossal COMPONENT python EXCLUDE_FROM_ALL)
        install(FILES {package}/program DESTINATION bin)
    """)
    subprocess.run(["cmake", "-S", source, "-B", build], check=True, stdout=subprocess.DEVNULL)
    return build


def test_packs_a_finished_build(finished_build, tmp_path):
    pytest.importorskip("scikit_build_core")
    code = "import sys; sys.path.insert(0, 'python'); import build_backend; build_backend.build_wheel(sys.argv[1])"
    environment = {**os.environ, "COLOSSAL_FROM_BUILD": str(finished_build)}
    command = [sys.executable, "-c", code, tmp_path]
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.startswith("pycolossal-4.5.6.dev7-cp3") and wheel.name.endswith("-linux_x86_64.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        metadata = archive.read("pycolossal-4.5.6.dev7.dist-info/METADATA").decode()
        command = archive.read("pycolossal-4.5.6.dev7.dist-info/entry_points.txt").decode()
        mode = archive.getinfo("colossal/program").external_attr >> 16
    assert names == {"colossal/_build.py", "colossal/program"}
    assert mode & 0o111, "the program is not executable"
    assert "Name: pycolossal\n" in metadata and "Requires-Dist: torch==2.12.*\n" in metadata
    assert "colossal = colossal_command:main" in command
