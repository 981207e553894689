"""Writes the Parquet files in this folder, which parquet_test.cpp reads: python make_files.py, with pyarrow (26 wrote
the files here)."""

import pathlib
import struct
import zlib

import pyarrow as pa
import pyarrow.parquet as pq

FOLDER = pathlib.Path(__file__).parent
ROWS = range(60)
TEXTS = [None if i % 11 == 3 else f"row {i} \u00e9" + "x" * (i % 7) for i in ROWS]
NUMBERS = pa.array([i * 1_000_000_007 for i in ROWS], pa.int64())
NESTED = [[{"text": "no", "n": n} for n in range(i % 3)] for i in ROWS]
LABELS = pa.array([i % 3 for i in ROWS], pa.int32())

table = pa.table({"nested": NESTED, "text": TEXTS, "number": NUMBERS, "label": LABELS})
flat = table.select(["text", "number", "label"])
kinds = {
    "snappy": {}, "zstd": {"compression": "zstd"}, "gzip": {"compression": "gzip"}, "none": {"compression": "none"},
    "version2": {"data_page_version": "2.0", "compression": "zstd"},
    "plain": {"use_dictionary": False, "write_page_checksum": True, "compression": "none"},
    "fallback": {"dictionary_pagesize_limit": 64, "data_page_size": 64, "write_batch_size": 4},
    "brotli": {"compression": "brotli"}, "lz4": {"compression": "lz4"},
}
for name, options in kinds.items():
    pq.write_table(table, FOLDER / f"{name}.parquet", row_group_size=25, store_schema=False, **options)
pq.write_table(flat, FOLDER / "delta.parquet", store_schema=False, use_dictionary=False,
               column_encoding={"text": "DELTA_BYTE_ARRAY"})
required = pa.schema([pa.field("text", pa.string(), nullable=False)])
pq.write_table(pa.table({"text": [f"row {i}" for i in ROWS]}, schema=required), FOLDER / "required.parquet",
               store_schema=False)


def png(width, height, red):
    """A PNG of one colour, of 8-bit red, green and blue."""
    def chunk(kind, content):
        body = kind + content
        return struct.pack(">I", len(content)) + body + struct.pack(">I", zlib.crc32(body))
    rows = (b"\0" + bytes([red, 0, 0]) * width) * height
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)) +
            chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


# Pictures as the package datasets stores them, and as plain bytes: row i has 5 + i x 3 + i pixels.
pictures = [png(5 + i, 3 + i, 10 * i) for i in range(7)]
image = pa.array([{"bytes": each, "path": f"{i}.png"} for i, each in enumerate(pictures)],
                 pa.struct([("bytes", pa.binary()), ("path", pa.string())]))
captions = [f" picture {i}\n" for i in range(7)]
of_datasets = pa.table({"id": list(range(7)), "image": image, "text": captions})
picture_files = {
    "pictures": {}, "pictures_plain": {"compression": "none", "use_dictionary": False},
    "pictures_version2": {"data_page_version": "2.0", "use_dictionary": False, "compression": "zstd"},
}
for name, options in picture_files.items():
    pq.write_table(of_datasets, FOLDER / f"{name}.parquet", row_group_size=4, store_schema=False, **options)
# Row 2 has no picture, row 3 (within one of them) no bytes, row 4 no caption and row 5 a picture that is cut short.
faulty = [None if i == 2 else {"bytes": None if i == 3 else each[:20] if i == 5 else each, "path": f"{i}.png"}
          for i, each in enumerate(pictures)]
faulty_captions = [None if i == 4 else each for i, each in enumerate(captions)]
pq.write_table(pa.table({"image": pa.array(faulty, image.type), "caption": faulty_captions}),
               FOLDER / "pictures_faulty.parquet", store_schema=False)
required_picture = pa.schema([pa.field("jpg", pa.binary(), nullable=False), pa.field("title", pa.string())])
pq.write_table(pa.table({"jpg": pictures, "title": captions}, schema=required_picture),
               FOLDER / "pictures_bytes.parquet", store_schema=False)
# A column of control pictures beside them: row 1 has none, and row 2 an empty structure.
controls = [None if i == 1 else {"bytes": None if i == 2 else png(5 + i, 3 + i, 200 - i), "path": f"{i}.png"}
            for i in range(len(pictures))]
with_controls = of_datasets.append_column("conditioning_image", pa.array(controls, image.type))
for name in "pictures", "pictures_plain":
    pq.write_table(with_controls, FOLDER / f"{name.replace('pictures', 'controls')}.parquet", row_group_size=4,
                   store_schema=False, **picture_files[name])
