"""The command `colossal` of an installed package.

It is a module of its own, because importing anything from the package `colossal` imports torch.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import NoReturn


def main() -> NoReturn:
    """Replaces this process with the compiled program, with the same arguments."""
    package = Path(__file__).resolve().parent / "colossal"
    program = package / "colossal"
    if not (package.parent / "torch").is_dir():
        _show_torch_elsewhere()
    try:
        os.execv(program, [str(program), *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"colossal: [program] cannot start {program}: {error.strerror}; install the package again")


def _show_torch_elsewhere() -> None:
    """The program looks for torch beside the package. A torch of the system, say, is in another folder of sys.path."""
    torch = importlib.util.find_spec("torch")  # does not import it
    if torch is not None and torch.origin is not None:
        folders = [str(Path(torch.origin).parent / "lib"), os.environ.get("LD_LIBRARY_PATH", "")]
        os.environ["LD_LIBRARY_PATH"] = ":".join(folder for folder in folders if folder)
