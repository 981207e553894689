#!/usr/bin/env python3
"""Runs the commands of a page as a reader would: every fenced block `sh`, in order, in one shell, from the repository's root.

    COLOSSAL_BINARY=build/release/colossal COLOSSAL_SOURCE_DIR=. tests/docs/run_blocks.py docs/tutorials/quickstart.md [--heading H] [--folder F]

With a heading, only the blocks below it (to the next heading of the same level) run. A comment on the line above a block changes it:

    <!-- test: --training.steps=20 -->   adds these flags to `colossal train`, `./colossal.sh train` and programs under build/
    <!-- test: prints REGEX -->          expects that the block prints a line with this regular expression
    <!-- test: skip, REASON -->          skips the block

The commands run in an empty folder with links to the contents of the repository, so that runs, outputs and builds of examples are written
there. The folder is temporary, unless --folder names one to keep. In it, `./colossal.sh` is the program that was built; bare.first_command
tests the script itself.
"""
import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

TRAINS = re.compile(r"^(colossal|\./colossal\.sh) train\b|^build/(?!release/)\S+")


def blocks_of(text, heading=None):
    """Yields (line number, commands, flags) for each block to run, and ("skip", line number, reason) for others."""
    fence, body, begun, directive, level, inside = None, [], 0, None, 0, heading is None
    for number, line in enumerate(text.splitlines(), 1):
        if fence is not None:
            if line.strip() == "```":
                if fence == "sh" and inside:
                    yield begun, "\n".join(body), directive
                fence, directive = None, None
            else:
                body.append(line)
            continue
        title = re.match(r"(#+) (.*)", line)
        if title and heading is not None:
            if title[2].strip() == heading:
                inside, level = True, len(title[1])
            elif inside and len(title[1]) <= level:
                inside = False
        comment = re.match(r"<!-- test: (.*) -->$", line.strip())
        opening = re.match(r"```(\w*)", line.strip())
        if opening:
            fence, body, begun = opening[1], [], number
        elif comment:
            directive = comment[1]
        elif line.strip():
            directive = None


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


def script_of(page, heading):
    with open(page, encoding="utf-8") as file:
        text = file.read()
    parts, ran = ["set -euo pipefail"], 0
    for number, commands, directive in blocks_of(text, heading):
        if directive and directive.startswith("skip"):
            reason = directive[len("skip"):].strip(", ")
            if not reason:
                sys.exit(f"{page}:{number}: a block that is left out must state a reason: <!-- test: skip, REASON -->")
            print(f"{page}:{number}: left out: {reason}")
            continue
        parts.append(f"echo '## {os.path.basename(page)}:{number}'")
        if directive and directive.startswith("prints "):
            parts.append("{\n" + commands + "\n} | tee .printed\ngrep -E " + shlex.quote(directive[len("prints "):]) + " .printed >/dev/null"
                         f" || {{ echo 'FAILED: line {number} must print:' " + shlex.quote(directive[len("prints "):]) + "; exit 1; }")
        else:
            parts.append(with_flags(commands, directive))
        ran += 1
    if ran == 0:
        sys.exit(f"{page}: no block sh to run" + (f" below the heading {heading!r}" if heading else ""))
    return "\n".join(parts) + "\n"


def prepare(folder, source, binary):
    """Links the repository's files in the folder and stands the built program in for ./colossal.sh."""
    for name in os.listdir(source):
        if name not in ("build", "runs", "out", "colossal.sh"):
            os.symlink(os.path.join(source, name), os.path.join(folder, name))
    os.mkdir(os.path.join(folder, "build"))
    os.symlink(os.path.dirname(binary), os.path.join(folder, "build", "release"))
    with open(os.path.join(folder, "colossal.sh"), "w", encoding="utf-8") as file:
        file.write(f'#!/bin/sh\nexec "{binary}" "$@"\n')
    os.chmod(os.path.join(folder, "colossal.sh"), 0o755)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page")
    parser.add_argument("--heading")
    parser.add_argument("--folder")
    options = parser.parse_args()
    source, binary = os.path.abspath(os.environ["COLOSSAL_SOURCE_DIR"]), os.path.abspath(os.environ["COLOSSAL_BINARY"])
    script = script_of(options.page, options.heading)
    environment = dict(os.environ, PATH=os.path.dirname(binary) + os.pathsep + os.environ["PATH"])
    with tempfile.TemporaryDirectory(prefix="colossal-docs-") as folder:
        if options.folder:
            folder = os.path.abspath(options.folder)
            shutil.rmtree(folder, ignore_errors=True)
            os.makedirs(folder)
        prepare(folder, source, binary)
        shell = subprocess.run(["bash", "-c", script], cwd=folder, env=environment, stdin=subprocess.DEVNULL, check=False)
    sys.exit(shell.returncode)


if __name__ == "__main__":
    main()
