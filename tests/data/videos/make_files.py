"""Writes the videos that tests read: VENV/bin/python tests/data/videos/make_files.py, with av 18.1.0 and pillow 13.0.0.

Frame i is gray, of 20 (i + 1) of 255, but in turned.mp4 and pillow.gif, which have colours.
"""
import pathlib
from fractions import Fraction

import av
import numpy
from PIL import Image

FOLDER = pathlib.Path(__file__).parent


def write_video(name, codec, stamps, base, size=(32, 16), pixels=None, options=None):
    with av.open(str(FOLDER / name), "w", options=options or {}) as out:
        stream = out.add_stream(codec, rate=25)
        stream.width, stream.height = size
        stream.pix_fmt = "yuv420p"
        stream.time_base = stream.codec_context.time_base = base
        stream.codec_context.gop_size = 4
        for index, stamp in enumerate(stamps):
            rgb = numpy.full((size[1], size[0], 3), 20 * (index + 1), numpy.uint8) if pixels is None else pixels
            frame = av.VideoFrame.from_ndarray(rgb, format="rgb24")
            frame.pts, frame.time_base = stamp, base
            out.mux(stream.encode(frame))
        out.mux(stream.encode())


def turn(name):
    """Writes the matrix of a quarter turn to the right into the track's head (ISO/IEC 14496-12, 8.3.2)."""
    path = FOLDER / name
    data = bytearray(path.read_bytes())
    matrix = data.index(b"tkhd") + 44
    for at, value in enumerate((0, 1, 0, -1, 0, 0)):
        data[matrix + 4 * at : matrix + 4 * at + 4] = (value * 65536).to_bytes(4, "big", signed=True)
    path.write_bytes(data)


def write_gif():
    """Three images of 6 x 4, for 0.2, 0.05 and 0.3 seconds, of which Pillow stores the part that changes."""
    palette = [255, 0, 0, 0, 255, 0, 0, 0, 255]
    frames = []
    for value in (0, 1, 2):
        frame = Image.new("P", (6, 4), value)
        frame.putpalette(palette)
        if value:
            frame.paste(0, (0, 0, 3, 4))
        frames.append(frame)
    frames[0].save(FOLDER / "pillow.gif", save_all=True, append_images=frames[1:], duration=[200, 50, 300], loop=0)


def main():
    milliseconds = Fraction(1, 1000)
    write_video("variable_rate.mp4", "mpeg4", [0, 100, 150, 400, 900, 1000], milliseconds,
                options={"movflags": "faststart"})
    write_video("milliseconds.webm", "libvpx", [round(1000 * i / 24) for i in range(12)], milliseconds)
    halves = numpy.zeros((16, 32, 3), numpy.uint8)
    halves[:, :16] = (250, 20, 20)  # the left half is red, the right half blue
    halves[:, 16:] = (20, 20, 250)
    write_video("turned.mp4", "mpeg4", [0, 40], milliseconds, pixels=halves)
    turn("turned.mp4")
    write_gif()


main()
