// Lists as text.
//
//   join(names)                                                          // "1d, 2d, 3d"
//   join(mesh.axes, " x ", [](const Axis& a) { return concat(a.name, " ", a.size); })   // "data 2 x tensor 4"
//   listed(names)                                                                       // "1d, 2d and 3d"
#pragma once
#include <functional>
#include <sstream>
#include <string>
#include <vector>

namespace colossal {

/// Returns what `of` returns for each element, as a stream prints it, with `separator` between two elements. Returns
/// an empty text for an empty range.
template <class Range, class Of = std::identity>
std::string join(const Range& range, const char* separator = ", ", Of of = {}) {
  std::ostringstream out;
  const char* before = "";
  for (const auto& element : range) {
    out << before << std::invoke(of, element);
    before = separator;
  }
  return out.str();
}

/// Returns names as a sentence has them: "a", "a and b", "a, b and c".
inline std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < names.size(); ++i) text += (i == 0 ? "" : i + 1 == names.size() ? " and " : ", ") + names[i];
  return text;
}

}  // namespace colossal
