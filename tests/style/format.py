"""Compares the sources with .clang-format: every C++ file must be as clang-format prints it.

Versions of clang-format differ, so the test takes the one of tests/interop/requirements.txt and skips for any other.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(os.environ["COLOSSAL_SOURCE_DIR"]).resolve()
FOLDERS = ("apps", "benchmarks", "examples", "python", "src", "tests")
ENDINGS = (".h", ".cpp", ".cu")


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(77)


def clang_format():
    """Returns the program: the one beside this Python, else that of the PATH."""
    packages = (SOURCE / "tests/interop/requirements.txt").read_text()
    wanted = re.search(r"^clang-format==(\S+)", packages, re.MULTILINE)[1]
    beside = pathlib.Path(sys.executable).parent / "clang-format"
    program = str(beside) if beside.exists() else shutil.which("clang-format")
    if not program:
        skip(f"no clang-format here; python3 -m pip install clang-format=={wanted}")
    found = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout.split()[-1]
    if found.split(".")[0] != wanted.split(".")[0]:
        skip(f"clang-format {found} formats otherwise than {wanted}; python3 -m pip install clang-format=={wanted}")
    return program


def misformatted(program, files):
    """Returns "FILE:LINE" of each place that clang-format would change."""
    command = [program, "--dry-run", f"-style=file:{SOURCE / '.clang-format'}", *files]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return sorted({":".join(line.split(":")[:2]) for line in done.stderr.splitlines() if " warning: " in line})


def main():
    program = clang_format()
    with tempfile.TemporaryDirectory() as folder:
        planted = pathlib.Path(folder) / "planted.cpp"
        planted.write_text("int  f( ){return 1 ;}\n")
        assert misformatted(program, [planted]), "clang-format finds no fault in a file that has one"
    files = [path for name in FOLDERS for path in sorted((SOURCE / name).rglob("*")) if path.suffix in ENDINGS]
    assert len(files) > 1000, f"only {len(files)} sources below {SOURCE}"
    places = misformatted(program, files)
    if places:
        print(*places[:50], sep="\n")
        sys.exit(f"{len(places)} places are not as .clang-format says; run {program} -i on these files")


main()
