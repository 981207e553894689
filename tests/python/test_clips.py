"""colossal.Drawer with a model of clips: a list of frames a clip."""

import pathlib

import numpy
import pytest

import colossal
from colossal.drawer import Drawer
from colossal.error import Error

EXAMPLE = pathlib.Path(__file__).parents[2] / "examples/stdit_clips.toml"


@pytest.fixture(scope="module")
def drawer(tmp_path_factory):
    """A run of two steps that draws clips of pixels."""
    if not EXAMPLE.exists():
        pytest.skip("needs examples/stdit_clips.toml")
    folder = tmp_path_factory.mktemp("runs") / "run"
    changes = {
        "run.folder": str(folder),
        "run.device": "cpu",
        "data": {"path": "builtin-shapes:24", "held_out": 0.1},
        "training": {"steps": 2, "evaluate_batches": 0, "sample_every": 0},
        "optimizer.warmup_steps": 0,
    }
    with Drawer(colossal.train(EXAMPLE, changes).folder) as drawer:
        yield drawer


def test_clips_are_lists_of_frames(drawer):
    clips = drawer.draw("a red star moves left", count=2, frames=4, fps=8, steps=2)
    assert [len(clip) for clip in clips] == [4, 4]
    assert [clip[0].seed for clip in clips] == [1, 2]
    frame = clips[0][3]
    assert numpy.asarray(frame).shape == (frame.height, frame.width, 3)
    alone = drawer.draw("a red star moves left", seed=2, frames=4, fps=8, steps=2)[0]
    assert [frame.pixels for frame in alone] == [frame.pixels for frame in clips[1]]


def test_given_frames_stay(drawer, tmp_path):
    first, last = (clip[0] for clip in drawer.draw("a star", count=2, frames=2, steps=2))
    first.save(tmp_path / "first.png")
    last.save(tmp_path / "last.png")
    clip = drawer.draw("a star", frames=5, steps=2, image=tmp_path / "first.png", last=tmp_path / "last.png")[0]
    assert clip[0].pixels == first.pixels and clip[4].pixels == last.pixels
    assert clip[2].pixels not in (first.pixels, last.pixels)


def test_what_clips_do_not_have_is_refused(drawer, tmp_path):
    with pytest.raises(Error, match="a last frame must come with the first one"):
        drawer.draw("a star", last=tmp_path / "last.png")
    with pytest.raises(Error, match="strength"):
        drawer.draw("a star", strength=0.5)
