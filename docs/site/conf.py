"""The site: every page of the repository. That of the reference of C++ has all declarations in place of tables.

`./colossal.sh docs` runs it. The folder of sources is the root of the repository, so that links between pages are those
of the repository, and files that pages link are copied into the site.
"""

import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docs/site"))
from reference import MADE  # noqa: E402 -- the path is known now

project = "Colossal"
author = "the authors of Colossal"
extensions = ["myst_parser", "sphinxcontrib.mermaid", "breathe"]
root_doc = "README"
include_patterns = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/**.md", "benchmarks/**.md"]
exclude_patterns = ["build", ".venv", ".git", "runs", "out", "third_party", "**/node_modules"]
suppress_warnings = [
    "toc.not_included",  # measurements are reached by links of other pages alone
    "misc.highlighting_failure",  # blocks of C++ that are no whole programs
]

html_theme = "furo"
html_title = "Colossal"
html_copy_source = False
html_show_copyright = False
html_theme_options = {"navigation_with_keys": True}

myst_heading_anchors = 6
myst_fence_as_directive = ["mermaid"]

breathe_projects = {"colossal": str(ROOT / "build/docs/xml")}
breathe_default_project = "colossal"


# The navigation is that of docs/index.md, so a page is added in one place.

def navigation():
    """Returns the lists of pages in docs/index.md as toctrees."""
    lines, entries = [], []

    def close():
        if entries:
            lines.extend(["```{toctree}", ":hidden:", f":caption: {caption}", "", *entries, "```", ""])

    caption = "Start"
    entries.append("All pages by question </docs/index>")
    for line in (ROOT / "docs/index.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            close()
            caption, entries = line[3:], []
        link = re.match(r"- .*\[([^\]]+)\]\(([^)#]+)\.md\)$", line)
        if link:
            entries.append(f"{link[1]} </{(Path('docs') / link[2]).as_posix().replace('docs/../', '')}>")
    close()
    return "\n".join(lines)


# The reference of C++: a section for each layer that has public headers.

def described(header):
    """Returns the first sentence of the comment at the head of a header."""
    comment = re.match(r"(?://[^\n]*\n)+", (ROOT / "src" / header).read_text(encoding="utf-8"))
    text = re.sub(r"\s*\n?//\s?", " ", comment[0]).strip() if comment else ""
    return re.split(r"(?<=\.)\s", text)[0].rstrip(":")


def layers():
    """Returns a section for each layer of src/colossal/PUBLIC."""
    lines = []
    for line in (ROOT / "src/colossal/PUBLIC").read_text(encoding="utf-8").splitlines():
        if line.startswith("#") or ":" not in line:
            continue
        layer, names = (part.strip() for part in line.split(":"))
        lines += ["", f"## {layer}", ""]
        for header in (f"colossal/{layer}/{name}.h" for name in names.split()):
            lines.append(f"- `{header}`: {described(header)}")
        namespace = "colossal" if layer == "base" else f"colossal::{layer}"
        if tags.has("without_cpp"):  # noqa: F821 -- Sphinx defines `tags`
            continue
        if (ROOT / f"build/docs/xml/namespace{namespace.replace('_', '__').replace('::', '_1_1')}.xml").exists():
            lines += ["", "```{eval-rst}", f".. doxygennamespace:: {namespace}", "   :content-only:", "   :members:",
                      "```"]
    return "\n".join(lines)


def without_folders(text, folder):
    """Makes plain text of links to folders of the repository: a site has no lists of files."""
    return re.sub(r"\[([^\]]+)\]\(([^)#:\s]+)\)",
                  lambda link: link[1] if (folder / link[2]).is_dir() else link[0], text)


def read_page(app, page, content):
    content[0] = without_folders(content[0], (ROOT / page).parent)
    if page == "README":
        content[0] += "\n" + navigation()
    elif page == "docs/reference/cpp":
        content[0] = content[0].split(MADE)[0] + layers()


def copy_first_page(app, error):
    if error is None and app.builder.name == "html":
        shutil.copyfile(Path(app.outdir) / "README.html", Path(app.outdir) / "index.html")


def setup(app):
    app.connect("source-read", read_page)
    app.connect("build-finished", copy_first_page)
