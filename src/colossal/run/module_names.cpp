#include "colossal/run/module_names.h"

#include "colossal/base/wildcard.h"

namespace colossal::run {
namespace {

constexpr const char* kExperts = "experts";

bool names_whole(const std::string& pattern, const std::string& module) {
  if (pattern.find('*') != std::string::npos) return matches_wildcards(pattern, module);
  return module == pattern || module.ends_with("." + pattern);
}

}  // namespace

bool names_module(const std::string& pattern, const std::string& module) {
  const std::string parent = module.substr(0, module.rfind('.'));
  if (!names_whole(kExperts, parent) || parent == module) return names_whole(pattern, module);
  if (pattern.find(kExperts) == std::string::npos) return false;
  return names_whole(pattern, module) || names_whole(pattern, parent);
}

}  // namespace colossal::run
