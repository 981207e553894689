"""The references of Python and C++ in the repository are those that the sources make."""

import sys
from pathlib import Path

import pytest

import colossal

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs/site"))
import reference  # noqa: E402


@pytest.mark.parametrize("page", ["python", "cpp"])
def test_pages_are_current(page: str) -> None:
    path = ROOT / f"docs/reference/{page}.md"
    assert reference.pages()[path] == path.read_text(encoding="utf-8"), "run python3 docs/site/reference.py"


def test_python_page_has_every_name_and_method() -> None:
    text = reference.python_page()
    for name in colossal.__all__:
        assert f"\n## {name}\n" in text
        members = vars(getattr(colossal, name)) if isinstance(getattr(colossal, name), type) else {}
        for member, value in members.items():
            if not member.startswith("_") and (callable(value) or isinstance(value, property)):
                assert f"\n### {name}.{member}\n" in text or f"\n- `{member}: " in text, f"{name}.{member}"


def test_cpp_page_lists_what_headers_declare() -> None:
    header = """// Head.
#pragma once
namespace colossal::x {
class Declared;
/// A first thing. More.
class Thing : public Other {
 public:
  /// A member.
  void run() { go(); }
};
enum class Kind { kOne, kTwo };
/// Returns a sum: of two.
template <class T>
T sum(const std::vector<T>& a,
      int b = 0);
inline constexpr int kMost = 3;  ///< the most
using Names = std::vector<int>;
bool operator==(const Thing&, const Thing&);
}  // namespace colossal::x
"""
    assert list(reference.declarations(header)) == [
        ("class", "Thing", "A first thing. More."),
        ("enum", "Kind", ""),
        ("function", "sum()", "Returns a sum: of two."),
        ("constant", "kMost", ""),
        ("type", "Names", ""),
    ]
    assert reference.first_sentence("A first thing. More.") == "A first thing."
