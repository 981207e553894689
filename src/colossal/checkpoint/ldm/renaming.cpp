#include "colossal/checkpoint/ldm/renaming.h"

#include <algorithm>
#include <charconv>

namespace colossal::checkpoint {

bool take(std::string& name, const std::string& begin) {
  if (!name.starts_with(begin)) return false;
  name.erase(0, begin.size());
  return true;
}

int64_t take_number(std::string& name) {
  int64_t number = -1;
  const char* end = name.data() + name.size();
  const auto [stop, failure] = std::from_chars(name.data(), end, number);
  if (failure != std::errc() || stop == end || *stop != '.') return -1;
  name.erase(0, static_cast<size_t>(stop - name.data()) + 1);
  return number;
}

std::string renamed(const std::string& name, const std::vector<Renamed>& rows) {
  for (const auto& [old, now] : rows)
    if (name.starts_with(old)) return now + name.substr(std::string(old).size());
  return name;
}

int64_t count_after(const std::vector<std::string>& names, const std::string& begin) {
  int64_t count = 0;
  for (std::string name : names)
    if (take(name, begin)) count = std::max(count, take_number(name) + 1);
  return count;
}

}  // namespace colossal::checkpoint
