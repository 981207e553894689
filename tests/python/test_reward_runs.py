"""Functions that score answers, with runs of the program: tiny GRPO runs that are scored, fail and continue."""

import json
import os
import threading

import pytest

from colossal.error import Error
from colossal.run import Run, train

STEPS, PROMPTS, ANSWERS = 3, 4, 4


@pytest.fixture(scope="module", autouse=True)
def one_thread_per_rank():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    """Returns the path of lines for rollouts."""
    file = tmp_path_factory.mktemp("data") / "prompts.jsonl"
    own = {"max_tokens": 6, "extra": {"level": [1, None]}}
    lines = [{"prompt": f"say {i}:", "answer": str(i)} | own for i in range(10)]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def config_of(prompts, folder):
    """Returns a run over bytes that draws with random weights, so that answers differ. It saves no checkpoint.

    All starts multiply with one library, because only a checkpoint keeps the one that was measured as faster.
    """
    return {
        "run": {"folder": str(folder), "device": "cpu", "matmul": "mkl"},
        "model": {"name": "llama-tiny", "layers": 1, "hidden": 32, "heads": 2, "kv_heads": 2, "positions": 32},
        "data": {"path": str(prompts), "tokenizer": "bytes", "sequence": 32, "held_out": 0},
        "alignment.method": "grpo",
        "rollout": {"prompts": PROMPTS, "answers": ANSWERS, "max_tokens": 6},
        "precision.mode": "fp32",
        "optimizer": {"warmup_steps": 0, "learning_rate": 5e-3},
        "training": {"steps": STEPS, "sample_tokens": 0, "save_every": 0},
    }


@pytest.fixture
def config(prompts, tmp_path):
    return config_of(prompts, tmp_path / "run")


def value_of(answer):
    return len(answer["completion"].encode()) / 8


def score(answer):
    """Scores by the number of the answer: with a number, without a score, with a dict, with a scalar."""
    number = int(answer["id"].split("/")[2])
    value = value_of(answer)
    if number == 0:
        return value
    if number == 1:
        return None
    if number == 2:
        return {"score": value, "scores": {"size": value, "two": 2}, "text": f"seen {answer['answer']}"}
    return True


class Asked:
    """A function that notes what it was asked, by id, and in which thread."""

    def __init__(self, function=score):
        self.answers, self.threads, self._function = [], set(), function

    def __call__(self, answer):
        self.answers.append(answer)
        self.threads.add((os.getpid(), threading.current_thread()))
        return self._function(answer)

    @property
    def ids(self):
        return {answer["id"] for answer in self.answers}


def rollouts(run):
    return [answer for step in range(1, STEPS + 1) for answer in run.rollouts(step)]


@pytest.fixture(scope="module")
def whole(prompts, tmp_path_factory):
    """Returns the metrics of an undisturbed run, its answers, and the function that was asked."""
    asked = Asked()
    run = train(config_of(prompts, tmp_path_factory.mktemp("whole") / "run"), reward=asked)
    return run.metrics, rollouts(run), asked


def test_functions_see_each_answer_once_with_its_line(whole):
    _, answers, asked = whole
    by_id = {answer["id"]: answer for answer in asked.answers}
    assert len(asked.answers) == len(answers) == STEPS * PROMPTS * ANSWERS
    for answer in answers:
        assert set(answer["line"]) == {"prompt", "answer", "max_tokens", "extra"}
        assert by_id[answer["id"]] == {**answer["line"], "id": answer["id"], "completion": answer["completion"]}
    assert asked.threads == {(os.getpid(), threading.current_thread())}


def test_scores_are_stored_and_become_metrics(whole):
    metrics, answers, _ = whole
    for answer in answers:
        value = value_of(answer)
        wanted = [(value, ""), (None, ""), (value, f"seen {answer['line']['answer']}"), (1, "")][answer["number"]]
        assert answer["is_scored"] and (answer["score"], answer["text"]) == wanted
    for record in metrics:
        own = [answer for answer in answers if answer["step"] == record["step"]]
        scores = [answer["score"] for answer in own if answer["score"] is not None]
        assert record["reward"] == record["reward_function"] == pytest.approx(sum(scores) / len(scores))
        assert record["reward_size"] == pytest.approx(sum(value_of(own[i]) for i in range(2, 16, 4)) / PROMPTS)
        assert record["reward_two"] == 2


def test_exceptions_end_the_run_which_continues_without_a_checkpoint(whole, config, capsys):
    calls = []

    def fail(answer):
        calls.append(answer["id"])
        if len(calls) == PROMPTS * ANSWERS + 6:
            raise LookupError("no entry for " + answer["id"])
        return score(answer)

    with pytest.raises(LookupError) as caught:
        train(config, reward=fail)
    failed = calls[PROMPTS * ANSWERS + 5]
    assert str(caught.value) == f"no entry for {failed}"
    assert f"LookupError: no entry for {failed}" in capsys.readouterr().err
    stopped = Run(config["run"]["folder"])
    assert not list(stopped.folder.glob("checkpoints/step-*")) and len(stopped.metrics) == 1
    scored = {answer["id"] for step in (1, 2) for answer in stopped.rollouts(step) if answer["is_scored"]}
    assert failed not in scored and len(scored) > PROMPTS * ANSWERS

    metrics, answers, before = whole
    asked = Asked()
    run = train(config, resume=True, reward=asked)
    assert failed in asked.ids and scored & asked.ids == set()
    assert scored | asked.ids == before.ids
    assert rollouts(run) == answers
    for name in ("loss", "reward", "reward_function", "grad_norm"):
        assert [record[name] for record in run.metrics] == [record[name] for record in metrics]


def test_ranks_and_verifiers_share_the_function_of_this_process(whole, config):
    asked = Asked()
    changes = {"parallel.data": 2, "training.steps": 1, "reward": {"verifiers": ["length"], "weights": [0.5]}}
    run = train(config, changes, reward=asked)
    answers = run.rollouts(1)
    assert asked.threads == {(os.getpid(), threading.current_thread())}
    assert asked.ids == {answer["id"] for answer in answers} and len(asked.answers) == PROMPTS * ANSWERS
    assert [answer["ids"] for answer in answers] == [answer["ids"] for answer in whole[1][: PROMPTS * ANSWERS]]
    for answer in answers:
        assert answer["scores"]["length"] == 1  # all of them have at most 6 tokens
        by_function = [value_of(answer), None, value_of(answer), 1][answer["number"]]
        assert answer["score"] == (None if by_function is None else by_function + 0.5)
    assert {"reward_length", "reward_function"} <= set(run.metrics[0])


def test_methods_that_draw_nothing_refuse_functions(config):
    del config["rollout"]
    with pytest.raises(Error, match='needs a method that draws answers: got alignment.method = "sft"') as caught:
        train(config, {"alignment.method": "sft"}, reward=score)
    assert caught.value.component == "reward"
