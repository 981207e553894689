"""colossal.train: one process per rank, records as they are written, output of Python, Ctrl-C."""

import json
import logging
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from colossal.checkpoint import load, read_progress
from colossal.error import Error
from colossal.run import Run, train


@pytest.fixture(autouse=True)
def one_thread_per_rank(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.fixture
def config(tmp_path):
    """A run of four steps, as a mapping with nested and dotted keys."""
    (tmp_path / "text.txt").write_text("To be, or not to be, that is the question. " * 200)
    return {
        "run.folder": str(tmp_path / "run"),
        "model": {"name": "llama-tiny", "layers": 1, "hidden": 32, "heads": 2, "kv_heads": 2, "positions": 32},
        "data": {"path": tmp_path / "text.txt", "tokenizer": "bytes", "sequence": 32},
        "optimizer.warmup_steps": 0,
        "training": {"steps": 4, "batch_size": 2, "sample_tokens": 8, "sample_prompt": "To"},
    }


LONG = {"training.steps": 1_000_000, "training.save_every": 0}


def test_runs_return_their_records(config, capfd, caplog):
    caplog.set_level(logging.INFO, "colossal")
    records = []
    run = train(config, {"parallel.data": 2}, on_step=records.append)
    assert [record["step"] for record in records] == [1, 2, 3, 4]
    assert run.metrics == records
    assert load(run.folder, numpy=True)
    assert "2 rank(s)" in caplog.text
    assert any(record.levelno == logging.INFO for record in caplog.records)
    assert "<iframe" in run._repr_html_() and "&lt;" in run._repr_html_()
    assert Run(run.folder.parent)._repr_html_() is None


def test_runs_without_rollouts_say_so(tmp_path):
    with pytest.raises(Error, match="must be a run that learns from its own answers") as raised:
        Run(tmp_path).rollouts(12)
    assert raised.value.component == "rollouts"


def test_output_goes_to_streams_of_python(config, capsys):
    train(config)
    captured = capsys.readouterr()
    assert captured.out.startswith("\nTo")  # the sample
    assert "step 4/4" in captured.err
    assert " I  " not in captured.err  # the log


def test_files_and_changes_are_the_same_as_mappings(config, tmp_path):
    changes = {"training": {"steps": 2}, "optimizer.schedule.name": "constant", "data.threads": 1}
    (tmp_path / "train.toml").write_text("[training]\nsteps = 9\n")
    wanted = [record["loss"] for record in train(config, changes).metrics]
    again = train(tmp_path / "train.toml", config | {"run.folder": str(tmp_path / "other")} | {"training.steps": 2,
                  "training.batch_size": 2, "optimizer.schedule.name": "constant", "data.threads": 1,
                  "training": {"sample_tokens": 0}})  # fmt: skip
    assert [record["loss"] for record in again.metrics] == wanted


def test_resumed_runs_pass_on_new_records_only(config):
    train(config)
    records = []
    run = train(config, {"training.steps": 6}, resume=True, on_step=records.append)
    assert [record["step"] for record in records] == [5, 6]
    assert [record["step"] for record in run.metrics] == [1, 2, 3, 4, 5, 6]
    records.clear()
    train(config, overwrite=True, on_step=records.append)
    assert [record["step"] for record in records] == [1, 2, 3, 4]


def test_errors_are_those_of_the_command(config):
    with pytest.raises(Error, match=r"^\[config\] unknown key `parallel.zer`, did you mean `parallel.zero`\?"):
        train(config, {"parallel.zer": 1})
    with pytest.raises(Error) as caught:
        train(config, {"data.path": "/nowhere"})
    assert caught.value.component == "data" and "/nowhere" in str(caught.value)
    train(config)
    with pytest.raises(Error, match="--resume"):
        train(config)
    with pytest.raises(Error, match="excludes"):
        train(config, resume=True, overwrite=True)


def test_exceptions_of_on_step_save_and_end_the_run(config):
    def fail(record):
        raise ValueError(record["step"])

    with pytest.raises(ValueError):
        train(config, LONG, on_step=fail)
    assert read_progress(config["run.folder"])["step"] > 0


@pytest.mark.parametrize("ranks", [1, 2])
def test_ctrl_c_saves_and_raises(config, ranks, capsys):
    seen = []

    def interrupt(record):
        seen.append(record["step"])
        if len(seen) == 3:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(config, LONG | {"parallel.data": ranks}, on_step=interrupt)
    assert "--resume to continue" in capsys.readouterr().err
    step = read_progress(config["run.folder"])["step"]
    assert step >= 3
    records = []
    changes = LONG | {"training.steps": step + 2, "parallel.data": ranks}
    train(config, changes, resume=True, on_step=records.append)
    assert [record["step"] for record in records] == [step + 1, step + 2]


def test_the_run_ends_with_its_python(config, tmp_path):
    program = (
        "import json, sys; from colossal.run import train\n"
        f"train(*json.loads({json.dumps([config, LONG], default=str)!r}))\n"
    )
    python = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    metrics = pathlib.Path(config["run.folder"]) / "metrics.jsonl"
    _wait(lambda: metrics.exists() and metrics.stat().st_size > 0)
    python.kill()
    python.wait()

    def has_ended():
        size = metrics.stat().st_size
        time.sleep(0.5)
        return metrics.stat().st_size == size

    _wait(has_ended)
    assert read_progress(config["run.folder"])["step"] > 0  # it saved


def _wait(done):
    limit = time.monotonic() + 60
    while not done():
        assert time.monotonic() < limit
        time.sleep(0.05)


def test_ranks_of_a_launcher_train_together(config):
    changes = {"parallel.data": 2, "training.steps": 3}
    program = (
        "import json; from colossal.run import train\n"
        f"run = train(*json.loads({json.dumps([config, changes], default=str)!r}))\n"
        "print(len(run.metrics))\n"
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = os.environ | {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            env=common | {"RANK": str(rank), "LOCAL_RANK": str(rank), "MASTER_PORT": str(port)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    assert [rank.communicate(timeout=120)[0].splitlines()[-1] for rank in ranks] == ["3", "3"]
    assert [rank.returncode for rank in ranks] == [0, 0]


def test_threads_may_train(config, tmp_path):
    runs = []

    def work(i):
        runs.append(train(config, {"run.folder": str(tmp_path / str(i))}))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len(run.metrics) for run in runs] == [4, 4]
