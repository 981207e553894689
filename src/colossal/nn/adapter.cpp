#include "colossal/nn/adapter.h"

#include <algorithm>
#include <cctype>
#include <set>

#include "colossal/base/error.h"

namespace colossal::nn {
namespace {

/// Replaces the parts of a dotted path that are numbers by "*".
std::string without_numbers(const std::string& name) {
  std::string joined;
  for (size_t first = 0; first <= name.size();) {
    const size_t end = std::min(name.find('.', first), name.size());
    const std::string part = name.substr(first, end - first);
    const bool is_number = !part.empty() && std::all_of(part.begin(), part.end(),
                                                        [](unsigned char c) { return std::isdigit(c) != 0; });
    joined += (first > 0 ? "." : "") + (is_number ? "*" : part);
    first = end + 1;
  }
  return joined;
}

std::string list_of(const std::set<std::string>& names) {
  std::string list;
  for (const std::string& name : names) list += (list.empty() ? "" : ", ") + name;
  return list.empty() ? "no parameter" : list;
}

}  // namespace

std::optional<std::string> notice_of_experts(const Parameters& parameters) {
  std::set<std::string> experts, added;
  for (const Parameter& p : parameters.declared()) {
    if (p.is_stack && p.hidden_matrix) experts.insert(without_numbers(p.name));
    if (p.is_added) added.insert(without_numbers(p.name));
  }
  if (experts.empty()) return std::nullopt;
  return concat("adapters do not reach the experts of a mixture: ", list_of(experts), " have none; adapters added ",
                list_of(added));
}

}  // namespace colossal::nn
