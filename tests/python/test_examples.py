"""The programs of examples/python run."""

import sys
from pathlib import Path

import ranks

EXAMPLES = Path(__file__).parents[2] / "examples" / "python"


def test_gpt2_trains_and_continues(tmp_path: Path) -> None:
    program = [sys.executable, str(EXAMPLES / "train_gpt2.py"), "--folder", str(tmp_path), "--rows", "1", "--steps"]
    printed = ranks.start([*program, "2"], 2)[0]
    assert "step    1  loss 5." in printed, "an untrained model guesses among 256 bytes: ln 256 = 5.5"
    assert (tmp_path / "gpt2" / "model.safetensors").exists()
    assert "continues after step 2" in ranks.start([*program, "3"], 1)[0], "on another number of ranks"
