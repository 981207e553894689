// Keys that a choice does not use must be left at their defaults: what a person sets does something, or is refused.
#pragma once
#include <string>
#include <vector>

#include "colossal/base/config.h"

namespace colossal::optim {

/// `who`: "lion", "schedule cosine". `values` and `defaults`: describe_config() of the struct as it is and freshly
/// made; `common` and `used`: names of keys that any choice uses and that this one does. Keys of nested sections are
/// left to these.
/// Errors ("optimizer"): another key whose value is not the default, naming `who`, key and value.
void refuse_unused_keys(const std::string& who, const std::vector<KeyHelp>& values,
                        const std::vector<KeyHelp>& defaults, const std::vector<std::string>& common,
                        const std::vector<std::string>& used);

}  // namespace colossal::optim
