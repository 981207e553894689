"""Writes the Parquet files in this folder, which parquet_test.cpp reads: python make_files.py, with pyarrow (26 wrote
the files here)."""

import pathlib

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
