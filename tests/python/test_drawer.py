"""colossal.Drawer: the pictures that `colossal draw` writes, as arrays, for any number of threads."""

import io
import os
import pathlib
import subprocess
import threading

import numpy
import pytest

import colossal
from colossal.drawer import Drawer
from colossal.error import Error

EXAMPLE = pathlib.Path(__file__).parents[2] / "examples/dit_shapes.toml"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of three steps that draws pictures of 16 pixels."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    changes = {
        "run.folder": str(folder),
        "run.device": "cpu",
        "model": {"hidden": 16, "ffn": 32, "layers": 2},
        "data": {"path": "builtin-shapes:40", "held_out": 0.1},
        "training": {"steps": 3, "batch_size": 8, "evaluate_batches": 0, "sample_every": 0},
        "optimizer.warmup_steps": 0,
    }
    return colossal.train(EXAMPLE, changes).folder


@pytest.fixture(scope="module")
def drawer(run):
    with Drawer(run) as drawer:
        yield drawer


def command(run, path, *words):
    """Returns the file of a star that `colossal draw` writes."""
    draw = [os.environ["COLOSSAL_BINARY"], "draw", "--from", run, "--class", "star", "--to", path, *words]
    subprocess.run(draw, check=True, capture_output=True)
    return path.read_bytes()


def test_pictures_are_those_of_the_command(run, drawer, tmp_path):
    pictures = drawer.draw("star", count=2, seed=5, steps=numpy.int64(4), guidance=numpy.float32(2), size=(16, 16))
    for picture, seed in zip(pictures, ("5", "6"), strict=True):
        picture.save(tmp_path / "own.png")
        drawn = command(run, tmp_path / "drawn.png", "--seed", seed, "--steps", "4", "--guidance", "2")
        assert (tmp_path / "own.png").read_bytes() == picture.png == drawn
    assert [picture.seed for picture in pictures] == [5, 6]
    assert (pictures[0].sampler, pictures[0].steps) == ("ddim", 4) and pictures[0].seconds > 0


def test_pictures_are_arrays(drawer):
    picture, other = drawer.draw(6, count=2, steps=2)  # the number of a class
    pixels = numpy.asarray(picture)
    assert pixels.shape == (picture.height, picture.width, 3) == (16, 16, 3)
    assert pixels.dtype == numpy.uint8
    assert pixels.tobytes() == picture.pixels != other.pixels
    assert "png" not in repr(picture)
    image = pytest.importorskip("PIL.Image")
    assert (numpy.asarray(image.open(io.BytesIO(picture.png))) == pixels).all()


def test_images_begin_drawings(run, drawer, tmp_path):
    star = drawer.draw("star", steps=2)[0]
    star.save(tmp_path / "star.png")
    begun = drawer.draw("star", steps=4, image=tmp_path / "star.png", strength=0.25)[0]
    assert begun.png == command(run, tmp_path / "drawn.png", "--steps", "4", "--image", tmp_path / "star.png",
                                "--strength", "0.25")
    assert b"Denoising strength: 0.25" in begun.png
    for given in (star, numpy.asarray(star)):
        assert drawer.draw("star", steps=4, image=given, strength=0.25)[0].png == begun.png
    for wrong in (numpy.zeros((16, 16, 4), numpy.uint8), numpy.zeros((16, 16, 3))):
        with pytest.raises(Error, match=r"a picture must be uint8 \[height, width, 3\]"):
            drawer.draw("star", image=wrong)
    with pytest.raises(Error, match="control-image must come with a ControlNet"):
        drawer.draw("star", control_image=star)
    with pytest.raises(Error, match="ip-image must come with an IP-adapter"):
        drawer.draw("star", ip_image=star)


def test_parts_are_loaded_with_the_model(run):
    with pytest.raises(Error, match="must have a ControlNet"):
        Drawer(run, control=f"{run}:0.8")
    with pytest.raises(Error, match="IP-adapter"):
        Drawer(run, ip=f"{run}:0.8")


def test_what_cannot_be_drawn_is_refused(drawer, tmp_path):
    with pytest.raises(Error, match="star"):
        drawer.draw("stra")
    with pytest.raises(Error, match=r"\[draw\] size must be"):
        drawer.draw("star", size="big")
    with pytest.raises(Error, match="sampler"):
        drawer.draw("star", sampler="dddim")
    with pytest.raises(Error, match="absent.png"):
        drawer.draw("star", image=tmp_path / "absent.png")
    with pytest.raises(TypeError):
        drawer.draw("star", step=3)
    with pytest.raises(Error, match="no file or folder"):
        Drawer(tmp_path / "absent")


def test_threads_share_a_drawer(drawer):
    drawn = {}
    wanted = {seed: drawer.draw("star", seed=seed, steps=2)[0].png for seed in range(3)}

    def draw(seed):
        drawn[seed] = drawer.draw("star", seed=seed, steps=2)[0].png

    threads = [threading.Thread(target=draw, args=(seed,)) for seed in wanted]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert drawn == wanted


def test_closed_drawers_draw_no_more(run):
    drawer = Drawer(run, precision="fp64")
    caught = []

    def draw():
        try:
            drawer.draw("star", count=1000, steps=1000)
        except Error as error:
            caught.append(str(error))

    thread = threading.Thread(target=draw)
    thread.start()
    drawer.close()
    thread.join()
    assert len(caught) == 1
    with pytest.raises(Error, match="the drawer must be open"):
        drawer.draw("star")


def test_texts_of_pictures_hold_their_options(drawer):
    picture = drawer.draw("star", steps=2)[0]
    assert b"Steps: 2, Sampler: ddim" in picture.png and picture.seed == 1
