"""The references of Python and C++ as Markdown, made from the sources alone: no import, no build.

    python3 docs/site/reference.py           # writes docs/reference/python.md and cpp.md
    python3 docs/site/reference.py --check   # ends with status 1 if a page is not current
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "python/colossal"
MADE = "<!-- Made by docs/site/reference.py; change the sources instead. -->"
"""The line of a page after which everything is made."""


# Python


def module_of_names() -> dict[str, str]:
    """Returns the module of each name that the package offers, in the order of __all__."""
    values = {}
    for node in ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            if node.targets[0].id in ("__all__", "_MODULES"):
                values[node.targets[0].id] = ast.literal_eval(node.value)
    return {name: values["_MODULES"].get(name, "error") for name in values["__all__"]}


def without_marks(docstring: str | None, parameters: set[str]) -> list[str]:
    """Returns a docstring as Markdown: parameters as a list, code of reStructuredText as code of Markdown."""
    lines: list[str] = []
    for line in (docstring or "").splitlines():
        field = re.match(r"(\w+): (.*)", line)
        if field and field[1] in parameters:
            line = f"- `{field[1]}`: {field[2]}"
        if not line.startswith("    "):
            line = re.sub(r"``([^`]+)``", r"`\1`", line)
        lines.append(line)
    return lines


def parameters_of(arguments: ast.arguments) -> list[str]:
    """Returns the parameters of a function as Python spells them."""

    def spelled(one: ast.arg, default: ast.expr | None) -> str:
        annotation = f": {ast.unparse(one.annotation)}" if one.annotation else ""
        equals = " = " if annotation else "="
        return one.arg + annotation + (equals + ast.unparse(default) if default else "")

    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(positional) - len(arguments.defaults)) + arguments.defaults
    found = [spelled(one, default) for one, default in zip(positional, defaults, strict=True)]
    if arguments.posonlyargs:
        found.insert(len(arguments.posonlyargs), "/")
    if arguments.vararg:
        found.append("*" + spelled(arguments.vararg, None))
    elif arguments.kwonlyargs:
        found.append("*")
    found += [spelled(*pair) for pair in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
    if arguments.kwarg:
        found.append("**" + spelled(arguments.kwarg, None))
    return found


def signature_of(name: str, function: ast.FunctionDef | ast.AsyncFunctionDef, is_method: bool) -> str:
    """Returns the call of a function, one parameter a line if it is long."""
    parameters = parameters_of(function.args)[1 if is_method else 0 :]
    returns = f" -> {ast.unparse(function.returns)}" if function.returns else ""
    line = f"{name}({', '.join(parameters)}){returns}"
    if len(line) <= 100:
        return line
    return f"{name}(\n" + "".join(f"    {part},\n" for part in parameters) + f"){returns}"


def described(node: ast.AST, heading: str, signature: str) -> list[str]:
    """Returns a section of a class, function or property."""
    parameters = {one.arg for one in ast.walk(node) if isinstance(one, ast.arg)}
    text = without_marks(ast.get_docstring(node), parameters)  # type: ignore[arg-type]
    return [heading, "", "```python3", signature, "```", "", *text, *([""] if text else [])]


def fields_of(source: list[str], node: ast.ClassDef) -> Iterator[str]:
    """Yields the fields of a class as a list. A comment `#:` or a docstring below describes each."""
    for at, member in enumerate(node.body):
        if not isinstance(member, ast.AnnAssign) or ast.unparse(member.target).startswith("_"):
            continue
        default = f" = {ast.unparse(member.value)}" if member.value else ""
        comment = re.search(r"#: (.*)", source[member.end_lineno - 1])
        below = node.body[at + 1] if at + 1 < len(node.body) else None
        text = comment[1] if comment else ""
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            text = " ".join(str(below.value.value).split())
        line = f"- `{ast.unparse(member.target)}: {ast.unparse(member.annotation)}{default}`"
        yield line + (f": {text}" if text else "")


def is_public(member: ast.AST) -> bool:
    return isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef) and not member.name.startswith("_")


def class_section(source: list[str], name: str, node: ast.ClassDef) -> list[str]:
    made = [one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"]
    hidden = bool(made) and re.search(r"_binding|\*\*", ast.unparse(made[0].args))  # other calls make it
    signature = signature_of(f"class {name}", made[0], True) if made and not hidden else f"class {name}"
    lines = described(node, f"## {name}", signature.replace(" -> None", ""))
    if made and (text := ast.get_docstring(made[0])):
        lines += [*without_marks(text, {one.arg for one in ast.walk(made[0]) if isinstance(one, ast.arg)}), ""]
    fields = list(fields_of(source, node))
    lines += [*fields, ""] if fields else []
    for member in filter(is_public, node.body):
        assert isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef)
        decorators = [ast.unparse(one) for one in member.decorator_list]
        if any(one.endswith(".setter") for one in decorators):
            continue
        is_property = "property" in decorators
        returns = f": {ast.unparse(member.returns)}" if member.returns else ""
        has_self = "staticmethod" not in decorators
        own = f"{member.name}{returns}" if is_property else signature_of(member.name, member, has_self)
        lines += described(member, f"### {name}.{member.name}", own)
    return lines


def definition_of(name: str, module: str) -> tuple[list[str], ast.AST]:
    """Returns the source and the definition of a name, in its module or in the stub of the binding."""
    for path in (PACKAGE / f"{module}.py", PACKAGE / "_binding.pyi", PACKAGE / "_build.pyi"):
        source = path.read_text(encoding="utf-8")
        for node in ast.parse(source).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
                return source.splitlines(), node
    raise LookupError(f"nothing defines {name}, which the package offers")


def python_page() -> str:
    package = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    lines = ["", *(ast.get_docstring(package) or "").splitlines(), ""]
    names = module_of_names()
    lines += ["", *(f"- [`{name}`](#{name.lower()})" for name in names), ""]
    for name, module in names.items():
        source, node = definition_of(name, module)
        if isinstance(node, ast.ClassDef):
            lines += class_section(source, name, node)
        else:
            assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            lines += described(node, f"## {name}", signature_of(name, node, False))
    return "\n".join(lines)


# C++


def first_sentence(comment: str) -> str:
    text = " ".join(comment.split())
    return re.split(r"(?<=[.:])\s+(?=[A-Z`(0-9])", text)[0].rstrip(":")


def head_of(text: str) -> str:
    """Returns the first paragraph of the comment at the head of a header."""
    comment = re.match(r"(?://[^\n]*\n)+", text)
    lines = [line[2:].strip() for line in comment[0].splitlines()] if comment else []
    return " ".join(lines[: lines.index("")] if "" in lines else lines)


def name_of(declaration: str) -> tuple[str, str] | None:
    """Returns kind and name of a declaration; None for one that declares nothing to list."""
    declaration = re.sub(r"^(?:template\s*<.*?>\s*(?=\w)|\[\[\w+\]\]\s*)+", "", " ".join(declaration.split()))
    if found := re.match(r"(?:class|struct|union)\s+(\w+)(.*)", declaration):
        return None if found[2].strip() == ";" else ("class", found[1])
    if found := re.match(r"enum(?:\s+class)?\s+(\w+)", declaration):
        return "enum", found[1]
    if found := re.match(r"using\s+(\w+)\s*=", declaration):
        return "type", found[1]
    if re.match(r"(?:using|friend|namespace|static_assert|extern)\b", declaration) or "operator" in declaration:
        return None
    head = re.split(r"[={]", declaration, maxsplit=1)[0]
    if found := re.search(r"(\w+)\s*\(", head):
        return "function", found[1] + "()"
    if found := re.search(r"(\w+)\s*(?:\[[^]]*\])?\s*;?$", head):
        return "constant", found[1]
    return None


def declarations(text: str) -> Iterator[tuple[str, str, str]]:
    """Yields kind, name and comment of what a header declares in its namespace."""
    comment: list[str] = []
    declaration, depth, skipped = "", 0, False
    for line in text.splitlines():
        bare = line.strip()
        if bare.startswith("///"):
            if depth == 0 and not declaration:
                comment.append(bare[3:].removeprefix("<").strip())
            continue
        code = re.sub(r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])\'', '""', re.sub(r"//.*", "", line)).strip()
        if not code or code.startswith("#") or re.match(r"(?:inline )?namespace\b", code):
            comment = comment if code or declaration else []
            skipped = skipped or bool(re.match(r"namespace (?:detail|internal)\b", code))
            continue
        if depth == 0 and code.startswith("}"):
            continue
        if depth == 0:
            declaration += " " + code
        depth += code.count("{") - code.count("}")
        if depth > 0 or not re.search(r"[;}]$", code):
            continue
        found = name_of(declaration)
        if found and not skipped:
            yield *found, " ".join(comment)
        comment, declaration = [], ""


def cell(text: str) -> str:
    return re.sub(r"([|<>*_])(?![^`]*`(?:[^`]*`[^`]*`)*[^`]*$)", r"\\\1", text)


def header_section(header: str) -> list[str]:
    text = (ROOT / "src" / header).read_text(encoding="utf-8")
    lines = [f"### [{header.removeprefix('colossal/')}](../../src/{header})", "", cell(head_of(text)), ""]
    comments: dict[tuple[str, str], str] = {}
    for kind, name, comment in declarations(text):
        key = (kind, name)
        comments[key] = comments.get(key) or comment
    if comments:
        lines += ["| name | kind | contract |", "|---|---|---|"]
        for (kind, name), comment in comments.items():
            lines.append(f"| `{name}` | {kind} | {cell(first_sentence(comment))} |")
        lines.append("")
    return lines


def cpp_page() -> str:
    lines = [""]
    for row in (ROOT / "src/colossal/PUBLIC").read_text(encoding="utf-8").splitlines():
        if row.startswith("#") or ":" not in row:
            continue
        layer, names = (part.strip() for part in row.split(":"))
        lines += [f"## {layer}", ""]
        for name in names.split():
            lines += header_section(f"colossal/{layer}/{name}.h")
    return "\n".join(lines)


def pages() -> dict[Path, str]:
    """Returns what the pages must hold."""
    found = {}
    for name, make in (("python", python_page), ("cpp", cpp_page)):
        path = ROOT / f"docs/reference/{name}.md"
        head = path.read_text(encoding="utf-8").split(MADE)[0]
        found[path] = re.sub(r"\n{3,}", "\n\n", f"{head}{MADE}\n{make()}").rstrip() + "\n"
    return found


def main() -> None:
    old = [path for path, text in pages().items() if path.read_text(encoding="utf-8") != text]
    if sys.argv[1:] == ["--check"]:
        names = " and ".join(str(path.relative_to(ROOT)) for path in old)
        sys.exit(f"{names} must be current: run python3 docs/site/reference.py" if old else 0)
    for path in old:
        path.write_text(pages()[path], encoding="utf-8")


if __name__ == "__main__":
    main()
