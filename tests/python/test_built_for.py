"""The check of torch's version, which runs before the binding is loaded."""

import importlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SOURCES = Path(__file__).resolve().parents[2] / "python"


@pytest.fixture
def site(tmp_path):
    """A folder with a package that was built for torch 2.13.0 and has nothing else than the check."""
    package = tmp_path / "checked"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "_build.py").write_text('TORCH_VERSION = "2.13.0"\n')
    shutil.copy(SOURCES / "colossal" / "built_for.py", package)
    return tmp_path


@pytest.fixture
def built_for(site, monkeypatch):
    monkeypatch.syspath_prepend(site)
    yield importlib.import_module("checked.built_for")
    for name in [name for name in sys.modules if name.startswith("checked")]:
        del sys.modules[name]


@pytest.mark.parametrize("found", ["2.13.0", "2.13.1", "2.13.2+cpu", "2.13.0a0+git1234"])
def test_accepts_the_same_minor_version(built_for, found):
    built_for.check(found)


@pytest.mark.parametrize("found", ["2.14.1+cu130", "2.12.0", "2.1.3", "3.13.0"])
def test_refuses_another_minor_version(built_for, found):
    with pytest.raises(ImportError) as refused:
        built_for.check(found)
    version = found.partition("+")[0]
    assert f"built for torch 2.13, this environment has {version}; run pip install " in str(refused.value)
    assert "--no-build-isolation --no-deps --force-reinstall CHECKOUT, or install torch==2.13.*" in str(refused.value)


def test_reads_the_version_without_importing_torch(site):
    torch = site / "torch"
    torch.mkdir()
    (torch / "__init__.py").write_text("raise AssertionError('torch was imported')\n")
    metadata = site / "torch-2.14.1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.14.1\n")
    code = f"import sys; sys.path.insert(0, {str(site)!r}); from checked import built_for; built_for.check()"
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert finished.returncode == 1
    message = finished.stderr.splitlines()[-1]
    assert message.startswith("ImportError: [install] built for torch 2.13, this environment has 2.14.1; ")


def test_passes_a_torch_without_metadata(built_for, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(Path(built_for.__file__).parents[1])])
    built_for.check()
