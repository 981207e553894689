"""Compares the torch of this environment with the one that the package was built for.

The C++ interface of torch changes with each minor version. Beside another one, loading the binding ends with an
undefined symbol or reads wrong memory. So `colossal/__init__.py` calls check() before it loads the binding.
"""

from __future__ import annotations

import importlib.metadata

from . import _build


def check(found: str | None = None) -> None:
    """Raises ImportError unless the minor version of torch is the one that this package was built for.

    `found` is the version of torch; None = that of the distribution `torch` which Python finds. Torch is not imported.
    A torch without the metadata of a distribution passes.
    """
    if found is None:
        try:
            found = importlib.metadata.version("torch")
        except importlib.metadata.PackageNotFoundError:
            return
    found = found.partition("+")[0]
    wanted = ".".join(_build.TORCH_VERSION.split(".")[:2])
    if found.split(".")[:2] == wanted.split("."):
        return
    raise ImportError(
        f"[install] built for torch {wanted}, this environment has {found}; run pip install --no-build-isolation "
        f"--no-deps --force-reinstall CHECKOUT, or install torch=={wanted}.*"
    )
