#!/usr/bin/env python3
"""Runs the commands of a page as a reader would: every fenced block `sh`, in order, in one shell, from the repository's
root.

    COLOSSAL_BINARY=build/release/colossal COLOSSAL_SOURCE_DIR=. \\
        tests/docs/run_blocks.py docs/tutorials/quickstart.md [--flags=FLAGS] [--folder F]

Every command that trains gets the flags. A comment on the line above a block changes it:

    <!-- test: --training.steps=20 -->   adds these flags to `colossal train`, `./colossal.sh train` and programs under
                                         build/
    <!-- test: prints REGEX -->          expects that the block prints a line with this regular expression
    <!-- test: skip, REASON -->          skips the block
    <!-- test: file NAME -->             writes a block of any language to this file, before the commands that follow
                                         it; "also file NAME": tests/python/test_documents.py runs it as a block of its
                                         page, too

The commands run in an empty folder with links to the contents of the repository, so that runs, outputs and builds of
examples are written there. The folder is temporary, unless --folder names one to keep. What would take minutes or needs
a terminal of its own has a stand-in:

- `./colossal.sh` is the program that was built, and `./colossal.sh packages` does nothing; bare.first_command tests the
  script itself
- `python`, `pip` and `torchrun`, also in an environment that `python3 -m venv` makes, are those of $COLOSSAL_PYTHON,
  which finds the package of the build; `pip install .` does nothing more
- `cmake --build build/NAME` links the program that the build of the tests made of examples/NAME, if it did; other
  examples are compiled
- `hf download` exports the run of the page's first block that trains, runs/quickstart
- `colossal serve` runs in the background, on a free port that takes the place of 8000, until the next one or the end of
  the page

Ends with status 77, which ctest reports as skipped, where the page needs curl and there is none, or Python and
$COLOSSAL_PYTHON cannot import what the page's scripts import.
"""
import argparse
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from typing import NamedTuple

TRAINS = re.compile(r"^(?:torchrun .*/)?(?:colossal|\./colossal\.sh) train\b|^build/(?!release/)\S+")


PYTHON = re.compile(r"(?:^|[\s/])(?:python3? (?:-m venv|\S+\.py\b)|pip |torchrun )", re.MULTILINE)

MAKE_OR_RUN = '''if [ "$1 $2" = "-m venv" ]; then
  mkdir -p "$3/bin"
  cp "$(dirname "$0")"/* "$3/bin"
  echo "PATH=$PWD/$3/bin:\\$PATH" > "$3/bin/activate"
  exit
fi
exec "$COLOSSAL_PYTHON" "$@"'''

BUILD_OR_LINK = '''built=$(dirname "$COLOSSAL_BINARY")/tests/colossal_${2#build/}
if [ "$1" = --build ] && [ -d "examples/${2#build/}" ] && [ -x "$built" ]; then
  exec ln -sf "$built" "$2/${2#build/}"
fi
exec %s "$@"'''

STAND_INS = {
    "python": MAKE_OR_RUN,
    "python3": MAKE_OR_RUN,
    "pip": '''[ "$*" = "install ." ] || { echo "only \\`pip install .\\` has a stand-in: got pip $*" >&2; exit 1; }
echo "the Python package of this build stands in for the one that pip would build"''',
    "torchrun": 'exec "$COLOSSAL_PYTHON" -m torch.distributed.run "$@"',
    # A GGUF file gets a tokenizer of bytes, which a folder does not. The template of chats joins the texts of all
    # messages.
    "hf": '''"$COLOSSAL_BINARY" export --from runs/quickstart --to "$4.gguf" --tokenizer bytes
"$COLOSSAL_BINARY" export --from "$4.gguf" --to "$4"
sed -i '1s/{/{ "chat_template": "{% for message in messages %}{{ message.content }}{% endfor %}",/' \\
  "$4/tokenizer_config.json"''',
    "colossal": 'exec "$COLOSSAL_BINARY" "$@"',
}

PROLOGUE = '''set -euo pipefail
served=
stop_serving() { if [ -n "$served" ]; then kill "$served"; wait "$served" || true; fi; served=; }
serve() {
  stop_serving
  "$@" --port "$COLOSSAL_PORT" >.served 2>&1 & served=$!
  until grep "ready at" .served; do kill -0 "$served" || { cat .served; exit 1; }; sleep 0.1; done
}
trap stop_serving EXIT'''


class Block(NamedTuple):
    line: int
    language: str
    text: str
    directive: str


def blocks_of(text):
    """Yields each fenced block, with the comment above it."""
    fence, body, begun, directive = None, [], 0, ""
    for number, line in enumerate(text.splitlines(), 1):
        if fence is not None:
            if line.strip() == "```":
                yield Block(begun, fence, "\n".join(body), directive)
                fence, directive = None, ""
            else:
                body.append(line)
            continue
        comment = re.match(r"<!-- test: (.*) -->$", line.strip())
        opening = re.match(r"```(\w*)", line.strip())
        if opening:
            fence, body, begun = opening[1], [], number
        elif comment:
            directive = comment[1]
        elif line.strip():
            directive = ""


def reason_to_skip(page, block):
    """Returns the reason that the comment of a block gives to leave it out, or None. A comment without a reason ends
    the test."""
    if not block.directive.startswith("skip"):
        return None
    reason = block.directive[len("skip"):].strip(", ")
    if not reason:
        sys.exit(f"{page}:{block.line}: a block that is left out must state a reason: <!-- test: skip, REASON -->")
    return reason


def file_of(block):
    """Returns the name of the file that a block is written to, or None."""
    found = re.fullmatch(r"(?:also )?file (\S+)", block.directive)
    return found and found[1]


def with_flags(commands, flags):
    """Adds the flags to each command that trains; a command may go over several lines that end with a backslash."""
    joined = re.sub(r"\\\n\s*", " ", commands)
    lines = []
    for line in joined.split("\n"):
        command = re.split(r"\s#\s", line, maxsplit=1)[0].rstrip()
        if flags and TRAINS.match(command) and not re.match(r"build/\S+ (export|generate)", command):
            line = command + " " + flags
        lines.append(line)
    return "\n".join(lines)


def script_of(page, blocks, flags):
    """Returns the commands of a page as one script of bash. Commands that train get the flags."""
    parts, ran = [PROLOGUE], 0
    for block in blocks:
        name = file_of(block)
        if name:
            parts.append(f"cat > {shlex.quote(name)} <<'END_OF_FILE'\n{block.text}\nEND_OF_FILE")
            continue
        if block.language != "sh":
            continue
        if reason := reason_to_skip(page, block):
            print(f"{page}:{block.line}: left out: {reason}")
            continue
        parts.append(f"echo '## {os.path.basename(page)}:{block.line}'")
        if block.directive.startswith("prints "):
            wanted = shlex.quote(block.directive[len("prints "):])
            parts.append(f"{{\n{with_flags(block.text, flags)}\n}} | tee .printed\n"
                         f"grep -E -- {wanted} .printed >/dev/null"
                         f" || {{ echo 'FAILED: line {block.line} must print:' {wanted}; exit 1; }}")
        else:
            parts.append(with_flags(block.text, f"{flags} {block.directive}".strip()))
        ran += 1
    if ran == 0:
        sys.exit(f"{page}: no block sh to run")
    script = re.sub(r"^((?:\./colossal\.sh|colossal) serve )", r"serve \1", "\n".join(parts), flags=re.MULTILINE)
    return script.replace(":8000", ":$COLOSSAL_PORT") + "\n"


def write_program(path, text):
    with open(path, "w", encoding="utf-8") as file:
        file.write("#!/bin/sh\n" + text + "\n")
    os.chmod(path, 0o755)


def prepare(folder, source, binary):
    """Links the repository's files in the folder, and puts the built program in the place of ./colossal.sh."""
    for name in os.listdir(source):
        if name not in ("build", "runs", "out", "colossal.sh"):
            os.symlink(os.path.join(source, name), os.path.join(folder, name))
    os.mkdir(os.path.join(folder, "build"))
    os.symlink(os.path.dirname(binary), os.path.join(folder, "build", "release"))
    write_program(os.path.join(folder, "colossal.sh"), f'[ "$1" = packages ] || exec "{binary}" "$@"')


def need_python(page, blocks):
    """Ends the test as skipped if $COLOSSAL_PYTHON cannot import what the page's scripts import."""
    python = os.environ.get("COLOSSAL_PYTHON")
    if not python:
        print(f"skipped: {page} needs the Python package, which was not built")
        sys.exit(77)
    scripts = "\n".join(block.text for block in blocks if block.language == "python" and file_of(block))
    packages = sorted({"torch", *re.findall(r"^(?:import|from) (\w+)", scripts, re.MULTILINE)} - {"colossal"})
    tried = subprocess.run([python, "-c", "import " + ", ".join(packages)], capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        print(f"skipped: {python} cannot import what {page} needs: {tried.stderr.splitlines()[-1]}")
        sys.exit(77)


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page")
    parser.add_argument("--flags", default="")
    parser.add_argument("--folder")
    options = parser.parse_args()
    source, binary = os.path.abspath(os.environ["COLOSSAL_SOURCE_DIR"]), os.path.abspath(os.environ["COLOSSAL_BINARY"])
    with open(options.page, encoding="utf-8") as file:
        blocks = list(blocks_of(file.read()))
    script = script_of(options.page, blocks, options.flags)
    if re.search(r"^curl ", script, re.MULTILINE) and not shutil.which("curl"):
        print(f"skipped: {options.page} needs curl; run apt-get install curl")
        sys.exit(77)
    needs_python = any(PYTHON.search(block.text) for block in blocks if block.language == "sh"
                       and not block.directive.startswith("skip"))
    if needs_python:
        need_python(options.page, blocks)
    with (tempfile.TemporaryDirectory(prefix="colossal-docs-") as folder,
          tempfile.TemporaryDirectory(prefix="colossal-bin-") as programs):
        if options.folder:
            folder = os.path.abspath(options.folder)
            shutil.rmtree(folder, ignore_errors=True)
            os.makedirs(folder)
        prepare(folder, source, binary)
        write_program(os.path.join(programs, "cmake"), BUILD_OR_LINK % shutil.which("cmake"))
        if needs_python:
            for name, text in STAND_INS.items():
                write_program(os.path.join(programs, name), text)
        # PET_STANDALONE: torchrun takes a free port, because other tests may have its own.
        environment = dict(os.environ, COLOSSAL_BINARY=binary, COLOSSAL_PORT=str(free_port()), PET_STANDALONE="1",
                           PATH=os.pathsep.join([programs, os.path.dirname(binary), os.environ["PATH"]]))
        shell = subprocess.run(["bash", "-c", script], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
                               check=False)
    sys.exit(shell.returncode)


if __name__ == "__main__":
    main()
