#!/bin/sh
# Runs one test file of the Python package: `run.sh PYTHON test_x.py`. ctest sets PYTHONPATH to the package in the build
# folder.
# Ends with status 77, which ctest reports as skipped, where pytest is missing or Python cannot import torch.
python=$1 script=$2
"$python" -c 'import pytest' 2>/dev/null || {
  echo "skipped: no pytest here; run $python -m pip install pytest"
  exit 77
}
# A CUDA build of torch that colossal.sh installed for the CPU lacks the libraries that Python's import loads.
if ! why=$("$python" -c 'import torch' 2>&1); then
  remedy="run $python -m pip install torch, or install a CPU wheel of torch"
  echo "skipped: Python cannot import torch: $(echo "$why" | tail -n 1); $remedy"
  exit 77
fi
PYTHONDONTWRITEBYTECODE=1 exec "$python" -m pytest -q -p no:cacheprovider "$script"
