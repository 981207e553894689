"""Pictures and clips drawn in this process, by a pipeline of diffusers or a run whose model draws."""

import dataclasses
import json
import os
from types import TracebackType
from typing import Any

from . import _binding
from .error import Error
from .local_model import WAIT, LocalModel, log, plain
from .own_process import OwnProcess


@dataclasses.dataclass(frozen=True)
class Picture:
    """A drawn picture, or a frame of a clip. ``numpy.asarray(picture)`` is its pixels, [height, width, 3] of uint8."""

    width: int
    height: int
    seed: int  #: with which it is drawn alone
    sampler: str
    steps: int
    seconds: float  #: the picture's share of the time, or that of a clip up to this frame
    #: the file that `colossal draw` writes, with the options in it; that of a frame has none
    png: bytes = dataclasses.field(repr=False)
    pixels: bytes = dataclasses.field(repr=False)  #: red, green and blue of each pixel, row by row

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return {"version": 3, "shape": (self.height, self.width, 3), "typestr": "|u1", "data": self.pixels}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the PNG file."""
        with open(path, "wb") as file:
            file.write(self.png)


_PICTURES = ("image", "mask", "control_image", "ip_image", "last")  #: options that are files or arrays


def _is_array(value: Any) -> bool:
    return value is not None and not isinstance(value, (str, os.PathLike))


def _png(picture: Any) -> bytes:
    """Returns the PNG file of an array of uint8, [height, width, 3] or [height, width]."""
    import numpy

    array = numpy.asarray(picture)
    if array.ndim == 2:
        array = numpy.stack([array] * 3, axis=2)
    if array.dtype != numpy.uint8 or array.ndim != 3 or array.shape[2] != 3:
        raise Error("draw", f"a picture must be uint8 [height, width, 3]: got {array.dtype} {list(array.shape)}")
    return _binding.encode_png(array.shape[1], array.shape[0], array.tobytes())


class Drawer:
    """A pipeline of diffusers, or a run whose model draws, that draws pictures in this process.

    One thread of the drawer's own runs the model, for one call of `draw` after another. `close`, or the end of a
    ``with`` block, frees it.

    The options are those of `colossal draw`: `precision` is the dtype of weights and activations, `memory_device` and
    `memory_host` bound the memory for weights, `memory_disk` is a folder for what does not fit. Of a run with
    training.ema the average of the weights is used, and with `no_ema` the last ones. `control` is a ControlNet,
    ``"FOLDER:0.8"``, and `ip` an IP-adapter in that form. `embedding` are files of learned words; `vae` and
    `text_encoder` replace those of the folder.

    Errors: `colossal.Error` with the command's message.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        adapter: str | os.PathLike[str] | None = None,
        control: str | os.PathLike[str] | None = None,
        ip: str | os.PathLike[str] | None = None,
        embedding: str | os.PathLike[str] | list[str] | None = None,
        vae: str | os.PathLike[str] | None = None,
        text_encoder: str | os.PathLike[str] | None = None,
        base: str | os.PathLike[str] | None = None,
        no_ema: bool | None = None,
        precision: str | None = None,
        quantize: str | None = None,
        group_size: int | None = None,
        device: str | None = None,
        memory_device: str | int | None = None,
        memory_host: str | int | None = None,
        memory_disk: str | os.PathLike[str] | None = None,
    ) -> None:
        given = dict(locals())
        own = OwnProcess("draw", "a drawer", "make a drawer in the child, or start it with the method spawn")
        self._model = LocalModel(_binding.Drawer, given, own)

    def draw(
        self,
        prompt: str | int,
        *,
        negative: str | None = None,
        count: int | None = None,
        size: str | tuple[int, int] | None = None,
        seed: int | None = None,
        steps: int | None = None,
        sampler: str | None = None,
        spacing: str | None = None,
        karras: bool | None = None,
        eta: float | None = None,
        guidance: float | None = None,
        rescale: float | None = None,
        clip_skip: int | None = None,
        image: Any = None,
        strength: float | None = None,
        mask: Any = None,
        control_image: Any = None,
        ip_image: Any = None,
        tiles: bool | None = None,
        frames: int | None = None,
        fps: float | None = None,
        last: Any = None,
        approximate: str | None = None,
    ) -> list[Any]:
        """Returns `count` pictures, each a `Picture`, in order. Picture k, from 0, has the seed `seed` + k.

        A model of clips draws `count` clips in place of them, each a list of `frames` pictures. `fps` is the rate that
        the model is told, `image` then the first frame of the clips, and `last` the last one.

        `prompt` is the caption or, for a model of classes, the name or number of the class. `size` is a width and a
        height in pixels. `image`, `mask`, `control_image`, `ip_image` and `last` are paths of PNG or JPEG files, or
        arrays of uint8, [height, width, 3] or of gray [height, width]. `control_image` needs a drawer with `control`,
        and `ip_image`, a picture that those drawn shall resemble, one with `ip`.
        The other options are those of `colossal draw`, with its defaults: `seed` is 1, `steps` 25.
        Words of a caption that the model does not read become a warning of the logger ``colossal``. Ctrl-C ends the
        drawing after its step.
        """
        given = dict(locals())
        del given["self"]
        given["prompt"] = str(prompt)
        if isinstance(size, tuple):
            given["size"] = "x".join(str(int(side)) for side in size)
        files = {name: _png(given[name]) for name in _PICTURES if _is_array(given[name])}
        given |= {name: name for name in files}  # an option then names the file among these
        options = {name.replace("_", "-"): value for name, value in given.items() if value is not None}
        drawing = self._model.held.draw(json.dumps(options, default=plain), files)
        drawn = None
        try:
            while drawn is None:
                drawn = drawing.next(WAIT)
        finally:
            drawing.cancel()
        pictures, notices, of_clip = drawn
        log(notices)
        made = [Picture(*picture) for picture in pictures]
        if not of_clip:
            return made
        return [made[first : first + of_clip] for first in range(0, len(made), of_clip)]

    def close(self) -> None:
        """Ends unfinished drawings and frees the model. Does nothing in a forked child."""
        self._model.close()

    def __enter__(self) -> "Drawer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
