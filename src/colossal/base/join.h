// Lists as text.
//
//   join(names)                                                          // "1d, 2d, 3d"
//   join(mesh.axes, " x ", [](const Axis& a) { return concat(a.name, " ", a.size); })   // "data 2 x tensor 4"
#pragma once
#include <functional>
#include <sstream>
#include <string>

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

}  // namespace colossal
