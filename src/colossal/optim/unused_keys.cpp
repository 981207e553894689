#include "colossal/optim/unused_keys.h"

#include <algorithm>

#include "colossal/base/error.h"
#include "colossal/base/join.h"

namespace colossal::optim {

void refuse_unused_keys(const std::string& who, const std::vector<KeyHelp>& values,
                        const std::vector<KeyHelp>& defaults, const std::vector<std::string>& common,
                        const std::vector<std::string>& used) {
  const auto names = [](const std::vector<std::string>& keys, const std::string& key) {
    return std::find(keys.begin(), keys.end(), key) != keys.end();
  };
  const std::string remedy = used.empty() ? "leave it out" : "it has " + join(used);
  for (size_t i = 0; i < values.size(); ++i) {
    const std::string& key = values[i].key;
    if (key.find('.') != std::string::npos) continue;
    const bool is_set = values[i].default_value != defaults[i].default_value;
    require(!is_set || names(common, key) || names(used, key), "optimizer", who, " has no ", key, ": got ",
            values[i].default_value, "; ", remedy);
  }
}

}  // namespace colossal::optim
