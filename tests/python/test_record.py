"""The record of a training loop: the files of a run folder, and a report of them."""

import json
from pathlib import Path

import pytest
import torch

import colossal
import ranks
from colossal import program

CONFIG = {"training.steps": 4, "optimizer.warmup_steps": 0, "precision.mode": "fp64"}


def rows(folder: str) -> list[dict[str, float]]:
    return [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]


def step(training: colossal.Training, tokens: int) -> float:
    """Makes a step with another loss and weight on each rank. Returns the mean by weights over all ranks."""
    training.zero_grad()
    rank = training.world.rank
    loss = training.module(torch.full((2, 4), 1.0 + rank, dtype=torch.float64)).square().mean()
    training.backward(loss, weight=tokens + rank)
    training.step()
    total = training.mean(float(tokens + rank))
    return training.mean((tokens + rank) * training.loss) / total


def recorded(world: colossal.World, folder: str) -> None:
    module = torch.nn.Linear(4, 3)
    training = colossal.initialize(world, module, CONFIG)
    assert training.resume(folder) is None
    training.record(folder)
    losses = []
    for _ in range(2):
        losses.append(step(training, 5))
        training.note(eval_loss=2.5 + world.rank, score=7)
        with pytest.raises(colossal.Error, match=r"\[metrics\].*score"):
            training.note(score=8)
    training.save(folder)
    losses.append(step(training, 5))
    training.close()
    if world.rank == 0:
        found = rows(folder)
        assert [row["step"] for row in found] == [1, 2, 3]
        assert [row["loss"] for row in found] == pytest.approx(losses, rel=1e-12)
        assert [(row.get("eval_loss"), row.get("score")) for row in found] == [(2.5, 7), (2.5, 7), (None, None)]
        assert all(row["learning_rate"] > 0 and row["grad_norm"] > 0 and row["seconds"] > 0 for row in found)
    world.barrier()

    training = colossal.initialize(world, torch.nn.Linear(4, 3), CONFIG)
    with pytest.raises(colossal.Error, match=r"\[run\].*already holds a checkpoint.*resume\(\) before record\(\)"):
        training.record(folder)
    with pytest.raises(colossal.Error, match="right after step"):
        training.record(folder + "/other")
        training.note(score=1)
    resumed = training.resume(folder)
    assert resumed is not None and resumed.step == 2
    training.record(folder)
    step(training, 5)
    training.close()
    if world.rank == 0:
        assert [row["step"] for row in rows(folder)] == [1, 2, 3]
        lines = (Path(folder) / "history.jsonl").read_text().splitlines()
        starts = [json.loads(line)["start"] for line in lines]
        assert [(start["kind"], start["after"]) for start in starts] == [("new", 0), ("resume", 2)]


def test_steps_are_recorded(world: colossal.World, tmp_path: Path) -> None:
    recorded(world, str(tmp_path / "one"))
    ranks.run(recorded, 2, str(tmp_path / "two"))


def test_resume_after_record_continues_the_record(world: colossal.World, tmp_path: Path) -> None:
    training = colossal.initialize(world, torch.nn.Linear(4, 3), CONFIG)
    training.record(tmp_path)
    step(training, 1)
    training.save(tmp_path)
    step(training, 1)
    training.resume(tmp_path)
    step(training, 1)
    training.close()
    assert [row["step"] for row in rows(str(tmp_path))] == [1, 2]


def test_the_record_has_a_report(world: colossal.World, tmp_path: Path) -> None:
    training = colossal.initialize(world, torch.nn.Linear(4, 3), CONFIG)
    training.record(tmp_path)
    for _ in range(3):
        step(training, 1)
    training.close()
    program.run(["report", str(tmp_path), f"--output={tmp_path}/report.html"])
    page = (tmp_path / "report.html").read_text()
    assert [record["step"] for record in colossal.Run(tmp_path).metrics] == [1, 2, 3]
    assert "Linear" in page and "Gradient norm" in page
