#include "colossal/run/adapter_kinds.h"

#include <algorithm>

#include "colossal/base/config.h"
#include "colossal/base/error.h"
#include "colossal/run/control_source.h"
#include "colossal/run/image_prompt_source.h"
#include "colossal/run/learned_words.h"
#include "colossal/run/unused_keys.h"

namespace colossal::run {

const AdapterKind* adapter_kind(const std::string& name) {
  static const std::vector<AdapterKind> kinds{control_kind(), words_kind(), image_prompt_kind()};
  const auto found =
      std::find_if(kinds.begin(), kinds.end(), [&](const AdapterKind& kind) { return kind.name == name; });
  return found == kinds.end() ? nullptr : &*found;
}

nn::Adapter adapter_of(const AdapterKind& kind, const LowRankKeys& keys, const models::ModelShape& shape) {
  kind.check(shape);
  const std::vector<KeyHelp> values = describe_config(keys);
  std::vector<KeyNeed> needs;
  for (const KeyHelp& key : values)
    if (key.key != "kind" && std::find(kind.keys.begin(), kind.keys.end(), key.key) == kind.keys.end())
      needs.push_back({key.key.c_str(), false, concat("another adapter.kind than \"", kind.name, "\"")});
  refuse_unused_keys("adapter", values, describe_config(LowRankKeys()), needs);
  return {.treatment = [is_own = kind.is_own](const std::string& name) {
    const bool trains = is_own(name);
    return nn::Treatment{.trains = trains, .saved = trains};
  }};
}

}  // namespace colossal::run
