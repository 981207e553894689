#include "colossal/checkpoint/mismatch.h"

#include <algorithm>

#include "colossal/base/error.h"
#include "colossal/base/json_file.h"

namespace colossal::checkpoint {
namespace {

constexpr size_t kMaxRows = 40;

std::string padded(const std::string& text, size_t width) {
  return text + std::string(text.size() < width ? width - text.size() : 0, ' ');
}

}  // namespace

void MismatchTable::add(const std::string& name, const std::string& wanted, const std::string& found) {
  rows_.push_back({printable(name), wanted, found});
}

void MismatchTable::require_empty(const char* component, const std::string& what) const {
  if (rows_.empty()) return;
  const size_t shown = std::min(rows_.size(), kMaxRows);
  size_t name_width = 4, wanted_width = 6;
  for (size_t i = 0; i < shown; ++i) {
    name_width = std::max(name_width, rows_[i].name.size());
    wanted_width = std::max(wanted_width, rows_[i].wanted.size());
  }
  std::string text = what + "; nothing was loaded:\n";
  const auto line = [&](const Row& row) {
    text += "  " + padded(row.name, name_width) + "  " + padded(row.wanted, wanted_width) + "  " + row.found + "\n";
  };
  line({"name", "wanted", "found"});
  for (size_t i = 0; i < shown; ++i) line(rows_[i]);
  if (rows_.size() > shown) text += concat("  and ", rows_.size() - shown, " more\n");
  text.pop_back();
  throw Error(component, text);
}

std::string describe(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t d = 0; d < shape.size(); ++d) text += (d > 0 ? ", " : "") + std::to_string(shape[d]);
  return text + "]";
}

std::string describe(at::ScalarType dtype, const std::vector<int64_t>& shape) {
  return std::string(c10::toString(dtype)) + " " + describe(shape);
}

}  // namespace colossal::checkpoint
