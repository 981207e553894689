"""Checkpoints as tensors: of any layout, whole, in this process.

With ``numpy=True`` the files are read without torch, so a machine that only evaluates needs none.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, overload

from .error import Error

if TYPE_CHECKING:
    import numpy
    import torch

Folder = str | os.PathLike[str]

_NUMPY = {"Double": "<f8", "Float": "<f4", "Half": "<f2", "BFloat16": "<u2", "Long": "<i8", "Int": "<i4",
          "Short": "<i2", "Char": "i1", "Byte": "u1", "Bool": "?"}  # fmt: skip
_MAX_HEADER = 100 << 20  # bytes of the table of a file, as readers of safetensors allow


@overload
def load(folder: Folder, step: int | None = None, numpy: Literal[False] = False) -> dict[str, torch.Tensor]: ...
@overload
def load(folder: Folder, step: int | None = None, *, numpy: Literal[True]) -> dict[str, numpy.ndarray[Any, Any]]: ...
def load(folder: Folder, step: int | None = None, numpy: bool = False) -> Any:
    """Returns all tensors of a checkpoint by name, whole and on the CPU, whatever layout saved it.

    `folder` is a run folder, the folder of its checkpoints, or that of `save`. `step` selects a checkpoint; None = the
    newest complete one. Names begin with `model.` for parameters; the others are states of the optimizer.

    With `numpy`, values are arrays and torch is not imported; bf16 becomes fp32. Checksums are then not compared, and
    dtypes that numpy lacks (fp8) are errors.

    Errors: `colossal.Error` ("checkpoint") for a folder without the checkpoint and for damaged files.
    """
    path = _path_of(folder, step)
    if numpy:
        return _load_arrays(path)
    from . import _binding

    return dict(_binding.load_checkpoint(str(path)))


def save(folder: Folder, step: int, tensors: Mapping[str, torch.Tensor], progress: Mapping[str, Any]) -> None:
    """Writes a checkpoint of one rank, which `load` and, with the names of a run, any layout reads.

    It becomes visible when it is complete, and replaces a checkpoint of the same step. Other steps stay. In a run
    folder it is written beside the run's own checkpoints. `progress` is what `read_progress` returns: JSON. To change
    weights of a run that is resumed later, pass the progress of the checkpoint that the tensors come from.

    Errors: `colossal.Error` for a step below 0, a tensor without elements, a full disk, a folder that cannot be written
    to, or one that another run is writing to.
    """
    from . import _binding

    if step < 0:
        raise Error("checkpoint", f"step must be at least 0: got {step}")
    empty = next((name for name, value in tensors.items() if value.numel() == 0), None)
    if empty is not None:  # a checkpoint stores blocks, of which this one has none
        shape = list(tensors[empty].shape)
        raise Error("checkpoint", f"{empty} must have an element: got the shape {shape}; leave it out")
    _binding.save_checkpoint(str(_steps_folder(folder)), step, list(tensors.items()), json.dumps(dict(progress)))


def read_progress(folder: Folder, step: int | None = None) -> dict[str, Any]:
    """Returns the progress of a checkpoint: what `save` got, or the state of the trainer. Reads no tensor.

    Errors: those of `load`.
    """
    progress: dict[str, Any] = _manifest(_path_of(folder, step))["progress"]
    return progress


def _steps_folder(folder: Folder) -> pathlib.Path:
    inside = pathlib.Path(folder) / "checkpoints"
    return inside if inside.is_dir() else pathlib.Path(folder)


def _path_of(folder: Folder, step: int | None) -> pathlib.Path:
    """Returns the folder of a complete checkpoint."""
    steps = _steps_folder(folder)
    names = os.listdir(steps) if steps.is_dir() else []
    numbers = [int(found[1]) for found in map(re.compile(r"step-(\d{6,})").fullmatch, names) if found]
    complete = sorted(number for number in numbers if (_of_step(steps, number) / "manifest.json").is_file())
    if not complete:
        shown = os.fspath(folder)
        raise Error("checkpoint", f"{shown} holds no complete checkpoint; name a run folder or its checkpoints")
    if step is not None and step not in complete:
        raise Error("checkpoint", f"{steps} has no complete checkpoint of step {step}; it has {complete}")
    return _of_step(steps, complete[-1] if step is None else step)


def _of_step(folder: pathlib.Path, step: int) -> pathlib.Path:
    return folder / f"step-{step:06d}"


def _manifest(path: pathlib.Path) -> dict[str, Any]:
    try:
        manifest = json.loads((path / "manifest.json").read_bytes())
        if manifest["format"] == "colossal checkpoint" and isinstance(manifest["progress"], dict):
            return dict(manifest)
        raise ValueError("it is not that of a checkpoint")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Error("checkpoint", f"{path / 'manifest.json'} cannot be read: {error}") from error


class _File:
    """The tensors in a safetensors file, which is mapped to memory."""

    def __init__(self, path: pathlib.Path) -> None:
        with open(path, "rb") as file:
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        size = int.from_bytes(self._bytes[:8], "little")
        if size > min(_MAX_HEADER, len(self._bytes) - 8):
            raise ValueError("its table is longer than the file")
        self._begin = 8 + size
        self._table = json.loads(self._bytes[8 : self._begin])

    def array(self, name: str, dtype: str) -> numpy.ndarray[Any, Any]:
        """Returns the values of a tensor in one dimension. Errors: ValueError, KeyError."""
        import numpy

        first, last = self._table[name]["data_offsets"]
        data = memoryview(self._bytes)[self._begin + first : self._begin + last]
        if len(data) != last - first:
            raise ValueError(f"it ends before {name}")
        return numpy.frombuffer(data, dtype)


def _load_arrays(path: pathlib.Path) -> dict[str, numpy.ndarray[Any, Any]]:
    import numpy

    arrays: dict[str, numpy.ndarray[Any, Any]] = {}
    filled: dict[str, int] = {}
    files: dict[int, _File] = {}
    where = path / "manifest.json"
    try:
        for row in _rows(_manifest(path)):
            name, rank, shape = row["name"], row["rank"], tuple(row["shape"])
            if row["dtype"] not in _NUMPY:
                raise ValueError(f"{name} has the dtype {row['dtype']}, which numpy lacks; leave out numpy=True")
            is_bf16 = row["dtype"] == "BFloat16"
            if name not in arrays:
                arrays[name] = numpy.empty(shape, "<f4" if is_bf16 else _NUMPY[row["dtype"]])
            where = path / f"rank-{rank:05d}.safetensors"
            if rank not in files:
                files[rank] = _File(where)
            block = f"{name}@{','.join(map(str, row['start']))}"
            values = files[rank].array(block, _NUMPY[row["dtype"]])
            if is_bf16:
                values = (values.astype("<u4") << 16).view("<f4")
            box = tuple(slice(start, start + size) for start, size in zip(row["start"], row["size"], strict=True))
            arrays[name][box] = values.reshape(row["size"])
            filled[name] = filled.get(name, 0) + values.size
            where = path / "manifest.json"
        for name, array in arrays.items():
            if filled[name] != array.size:
                raise ValueError(f"the blocks of {name} have {filled[name]} of its {array.size} elements")
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise Error("checkpoint", f"{where} is damaged: {error}") from error
    return arrays


def _rows(manifest: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields the blocks. Errors: ValueError for one outside its tensor."""
    for row in manifest["blocks"]:
        inside = all(
            0 <= start and 0 <= size and start + size <= whole
            for start, size, whole in zip(row["start"], row["size"], row["shape"], strict=True)
        )
        if not inside or row["rank"] < 0 or math.prod(row["shape"]) > 1 << 60:
            raise ValueError(f"a block of {row['name']} is outside the tensor")
        yield row
