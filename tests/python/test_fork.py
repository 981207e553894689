"""What has threads or ranks refuses to be used in a forked child, by name; its close() does nothing there."""

import os
import signal
import sys
from collections.abc import Callable

import pytest
import tiny_models
import torch

import colossal
from colossal.engine import Engine
from colossal.error import Error


def in_child(use: Callable[[], object]) -> str:
    """Runs a function in a forked child and returns the message of its error, or "" without one."""
    reader, writer = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        signal.alarm(30)  # ends a child that waits for a thread which it does not have
        message = "another error"
        try:
            use()
            message = ""
        except Error as error:
            message = str(error)
        finally:
            os.write(writer, message.encode())
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        message = pipe.read().decode()
    assert os.waitpid(child, 0)[1] == 0, "the child waited for ever"
    return message


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    folder = tiny_models.add_tokenizer(tiny_models.llama(tmp_path_factory.mktemp("llama")))
    with Engine(folder, kv_cache="8MiB") as engine:
        yield engine


def test_engines_and_requests_name_themselves(engine):
    request = engine.submit("ab", max_tokens=200)
    for name, use in {
        "an engine": lambda: engine.generate("ab"),
        "an engine ": lambda: engine.max_length,
        "a request": lambda: request.result(),
        "a request ": lambda: list(request),
        "a request  ": lambda: request.cancel(),
    }.items():
        assert f"[engine] {name.strip()} must be used in the process that made it: got process" in in_child(use)
    assert in_child(engine.close) == ""
    assert request.result().ended in ("length", "end"), "the parent goes on"


def test_trainings_and_worlds_name_themselves(world):
    module = torch.nn.Linear(2, 2)
    training = colossal.initialize(world, module, {"training.steps": 5})
    tensors = training.named_tensors()
    next(tensors)
    for use in (training.zero_grad, training.step, lambda: training.save("none"), lambda: next(tensors)):
        assert "[training] a training must be used in the process that made it: got process" in in_child(use)
    assert "[launch] a world must be used in the process that made it" in in_child(world.barrier)
    assert in_child(lambda: (training.close(), world.close(), repr(world))) == ""
    training.zero_grad()
    training.backward(module(torch.ones(1, 2)).sum())
    training.step()
