// A check that keys which a choice does not use are at their defaults, so that no setting is silently ignored.
#pragma once
#include <string>
#include <vector>

#include "colossal/base/config.h"

namespace colossal::optim {

/// Refuses keys that are set and not used. `who` names the choice: "lion", "schedule cosine". `values` and `defaults`
/// are describe_config() of the struct as it is and of a new one. `common` are the keys that every choice uses, `used`
/// the keys that this one uses. Keys of nested sections are not checked.
/// Errors ("optimizer"): another key whose value is not the default, with `who`, key and value.
void refuse_unused_keys(const std::string& who, const std::vector<KeyHelp>& values,
                        const std::vector<KeyHelp>& defaults, const std::vector<std::string>& common,
                        const std::vector<std::string>& used);

}  // namespace colossal::optim
