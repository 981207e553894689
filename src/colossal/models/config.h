// [model]: the config section that selects a model and its sizes. This header needs no LibTorch.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "colossal/base/config.h"
#include "colossal/models/sizes.h"

namespace colossal::models {

/// The section [model]: a preset and the changes to it. 0 keeps the preset's value (dropout: -1).
struct ModelConfig {
  std::string name = "gpt2-tiny";
  std::string from;
  int64_t vocabulary = 0, hidden = 0, layers = 0, heads = 0, kv_heads = 0, ffn = 0, positions = 0;
  double dropout = -1;
  /// All other keys of the section. The architecture that `name` or `from` selects defines which exist:
  /// Registry::resolve() reads them into Architecture::own and refuses unknown ones.
  ConfigDocument own{};
  void fields(Fields& f);
  /// Visits the fields that every architecture has: all except `own`.
  void common_fields(Fields& f);
};

/// Returns the value of ModelConfig::own for a config made in code: own_keys({"side=48", "patch=8"}).
/// Errors: the errors of ConfigDocument::set().
ConfigDocument own_keys(const std::vector<std::string>& assignments);

/// Returns the help of own keys, with the values of `own` as defaults. The keys of a nested table have dotted names,
/// such as "experts.count", and no section of their own.
std::vector<KeyHelp> describe_own(const OwnSizes& own);

/// Gives each key of config.own that a flag set, such as --model.experts.dense=0,1, the value and the type that it has
/// in `own`, the keys of the resolved architecture. Only then does the printed config read back equal.
void set_types(ModelConfig& config, const OwnSizes& own);

/// Renames each key of config.own that is the previous name of a key of `own`, the keys of the architecture.
/// Returns a notice for each renamed key: "model.farthest is now model.max_distance".
std::vector<std::string> use_present_names(ModelConfig& config, const OwnSizes& own);

}  // namespace colossal::models
