"""Turns the comments of a header into what Doxygen reads: prints the file that the first argument names.

The comment at the head of a file becomes the description of the file. Indented paragraphs become blocks of code. Marks
of Doxygen are escaped.
"""

import re
import sys


def escaped(line: str) -> str:
    return re.sub(r"([<>@\\#%])", r"\\\1", line)


def without_indents(lines: list[str]) -> list[str]:
    """Returns the lines of a comment, without its marks, with `@code` around indented paragraphs."""
    found: list[str] = []
    in_code, before = False, ""
    for line in lines:
        indented = line.startswith("   ")
        begins = indented and not in_code and (not before.strip() or before.rstrip().endswith(":"))
        if begins:
            found.append(" @code{.unparsed}")
        elif in_code and line.strip() and not indented:
            found.append(" @endcode")
        in_code = begins or (in_code and (indented or not line.strip()))
        found.append(line if in_code else escaped(line))
        before = line
    return found + [" @endcode"] * in_code


def filtered(text: str) -> str:
    lines = text.split("\n")
    head = next((i for i, line in enumerate(lines) if not line.startswith("//")), len(lines))
    comment = ["///" + line for line in [" @file", *without_indents([line[2:] for line in lines[:head]])]]
    found, block = comment if head else [], []
    for line in [*lines[head:], ""]:
        match = re.match(r"\s*///(?!<)(.*)$", line)
        if match:
            block.append(match[1])
            continue
        found += ["///" + each for each in without_indents(block)]
        block = []
        line = re.sub(r"(?<=\d)'(?=\d)", "", line)  # Sphinx reads no separators of digits
        found.append(re.sub(r"///<(.*)$", lambda after: "///<" + escaped(after[1]), line))
    return "\n".join(found)


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as header:
        print(filtered(header.read()))
