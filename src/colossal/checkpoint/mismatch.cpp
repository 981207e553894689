#include "colossal/checkpoint/mismatch.h"

#include <algorithm>

#include "colossal/base/error.h"
#include "colossal/base/json_file.h"
#include "colossal/checkpoint/weight_source.h"

namespace colossal::checkpoint {
namespace {

std::string padded(const std::string& text, size_t width) {
  return text + std::string(text.size() < width ? width - text.size() : 0, ' ');
}

}  // namespace

void MismatchTable::add(const std::string& name, const std::string& wanted, const std::string& found) {
  rows_.push_back({printable(name), wanted, found});
}

void MismatchTable::require_empty(const char* component, const std::string& what, size_t max_rows) const {
  if (rows_.empty()) return;
  const size_t shown = std::min(rows_.size(), max_rows);
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

std::string wrapper_note(const WeightSource& source) {
  struct Wrapper {
    const char *prefix, *name, *inside;
  };
  constexpr Wrapper kWrappers[] = {{"_orig_mod.", "torch.compile()", "model._orig_mod"},
                                   {"module.", "DistributedDataParallel", "model.module"}};
  const auto& entries = source.entries();
  for (const auto& [prefix, name, inside] : kWrappers)
    if (!entries.empty() && std::all_of(entries.begin(), entries.end(),
                                        [p = prefix](const auto& entry) { return entry.first.rfind(p, 0) == 0; }))
      return concat(": all names there begin with `", prefix, "`, which ", name,
                    " puts before them; save the module inside (", inside, "), or remove the prefix from the names");
  return "";
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
