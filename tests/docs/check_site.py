"""Reads every page of the site as `./colossal.sh docs` does: a warning of Sphinx, or a link that leads nowhere, is an
error.

Writes no pages and leaves out the reference of C++, which needs Doxygen and takes minutes. Ends with status 77 where
Sphinx is missing.
"""
import importlib.util
import os
import subprocess
import sys

missing = [name for name in ("sphinx", "myst_parser", "furo", "breathe", "sphinxcontrib")
           if importlib.util.find_spec(name) is None]
if missing:
    print("skipped: the site needs",
          ", ".join(missing) + "; ./colossal.sh test installs tests/interop/requirements.txt")
    sys.exit(77)
words = ["-W", "--keep-going", "-q", "-b", "dummy", "-c", "docs/site", "-t", "without_cpp"]
temporary = os.environ["COLOSSAL_TEMP_DIR"]
command = [sys.executable, "-m", "sphinx", *words, "-d", f"{temporary}/doctrees", ".", f"{temporary}/site"]
sys.exit(subprocess.run(command, cwd=os.environ["COLOSSAL_SOURCE_DIR"], check=False).returncode)
