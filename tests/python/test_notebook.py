"""colossal.train in a notebook: progress is one line, a run shows its report, and an interrupt saves."""

import pytest

nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")
nbformat = pytest.importorskip("nbformat")

SETUP = """
import colossal.run, pathlib
pathlib.Path("text.txt").write_text("To be, or not to be, that is the question. " * 200)
config = {
    "run.folder": "run",
    "model": {"name": "llama-tiny", "layers": 1, "hidden": 32, "heads": 2, "kv_heads": 2, "positions": 32},
    "data": {"path": "text.txt", "tokenizer": "bytes", "sequence": 32},
    "training": {"steps": 4, "batch_size": 2, "sample_tokens": 0},
}
"""
TRAIN = "colossal.run.train(config)"
INTERRUPTED = """
import os, signal
try:
    colossal.run.train(config, {"run.folder": "long", "training.steps": 1_000_000},
                       on_step=lambda record: record["step"] == 2 and os.kill(os.getpid(), signal.SIGINT))
except KeyboardInterrupt:
    print("interrupted")
"""
RESUMED = """
from colossal.checkpoint import read_progress
print(read_progress("long")["step"] >= 2)
"""


def test_notebooks_train_and_are_interrupted(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    cells = [nbformat.v4.new_code_cell(text) for text in (SETUP, TRAIN, INTERRUPTED, RESUMED)]
    notebook = nbformat.v4.new_notebook(cells=cells)
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": tmp_path}}).execute()
    trained, interrupted, resumed = (_outputs(cell) for cell in notebook.cells[1:])
    assert "step 4/4" in trained["stderr"] and "step 1/4" not in trained["stderr"].split("\r")[-1]
    assert "<iframe" in trained["text/html"]
    assert interrupted["stdout"] == "interrupted\n"
    assert "--resume to continue" in interrupted["stderr"]
    assert resumed["stdout"] == "True\n"


def _outputs(cell):
    """Returns the text of each stream and of each form of the value."""
    texts = {}
    for output in cell.outputs:
        if output.output_type == "stream":
            texts[output.name] = texts.get(output.name, "") + output.text
        else:
            texts.update(output.get("data", {}))
    return texts
