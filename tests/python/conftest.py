"""Fixtures of the tests of the Python package. PYTHONPATH must name the folder that holds `colossal`."""

from collections.abc import Iterator

import pytest
import torch

import colossal


@pytest.fixture(scope="session")
def world() -> Iterator[colossal.World]:
    """A world of this process alone."""
    torch.set_num_threads(1)
    with colossal.launch(device="cpu") as alone:
        yield alone


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)
