#include "colossal/text/grammar/json_schema_keywords.h"

#include "colossal/base/suggest.h"

namespace colossal::text {

std::string misspelled_constraint(const std::string& keyword) {
  constexpr size_t kMinLength = 5;  // short names may be meant: note, item
  if (keyword.size() < kMinLength || kConstraints.contains(keyword)) return "";
  for (const std::string& constraint : kConstraints) {
    const bool is_near = keyword.size() <= constraint.size() + 1 && constraint.size() <= keyword.size() + 1;
    if (is_near && edit_distance(keyword, constraint) == 1) return constraint;
  }
  return "";
}

bool is_annotation(const std::string& keyword) {
  return !kConstraints.contains(keyword) && !kUnsupported.contains(keyword) && misspelled_constraint(keyword).empty();
}

}  // namespace colossal::text
