#!/bin/sh
# Runs one interop script: `run.sh x_interop.py`. Uses the project's .venv where there is one. The script finds
#   COLOSSAL_BINARY, COLOSSAL_SOURCE_DIR   set by ctest
#   COLOSSAL_TEMP_DIR                      an empty folder of its own, removed afterwards
# and ends with status 77 to be reported as skipped (interop.need() does so when a package is missing).
script=$1
python=$COLOSSAL_SOURCE_DIR/.venv/bin/python
[ -x "$python" ] || python=python3
command -v "$python" >/dev/null || { echo "skipped: no python3 here"; exit 77; }
# A CUDA build of torch that colossal.sh installed for the CPU lacks the libraries that Python's import loads.
if grep -qE '"(torch|transformers)"|import (torch|transformers)' "$script" &&
  "$python" -c 'import importlib.util as u, sys; sys.exit(not u.find_spec("torch"))' &&
  ! why=$("$python" -c 'import torch' 2>&1); then
  echo "skipped: Python cannot import torch: $(echo "$why" | tail -n 1); install a CPU wheel of torch into .venv," \
    "or all of this one with $python -m pip install torch"
  exit 77
fi
COLOSSAL_TEMP_DIR=$(mktemp -d)
export COLOSSAL_TEMP_DIR
trap 'rm -rf "$COLOSSAL_TEMP_DIR"' EXIT
PYTHONDONTWRITEBYTECODE=1 "$python" "$script"
