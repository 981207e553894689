#include "colossal/run/module_names.h"

#include "colossal/base/wildcard.h"

namespace colossal::run {

bool names_module(const std::string& pattern, const std::string& module) {
  if (pattern.find('*') != std::string::npos) return matches_wildcards(pattern, module);
  return module == pattern || module.ends_with("." + pattern);
}

}  // namespace colossal::run
