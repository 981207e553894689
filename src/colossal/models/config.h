// [model]: the config section that chooses a model and its sizes. Needs no LibTorch.
#pragma once
#include <cstdint>
#include <string>

#include "colossal/base/config.h"

namespace colossal::models {

/// [model]: a preset, and what to change in it. 0 (dropout: -1) keeps the preset's value.
struct ModelConfig {
  std::string name = "gpt2-tiny";
  std::string from;
  int64_t vocabulary = 0, hidden = 0, layers = 0, heads = 0, kv_heads = 0, ffn = 0, positions = 0;
  double dropout = -1;
  /// All other keys of the section. Which there are, the architecture says that `name` or `from` chooses:
  /// Registry::resolve() reads them into Architecture::own and refuses those that it does not have.
  ConfigDocument own{};
  void fields(Fields& f);
  /// The fields that every architecture has: all but `own`.
  void common_fields(Fields& f);
};

/// `own` of a config that a program makes: own_keys({"side=48", "patch=8"}).
/// Errors: those of ConfigDocument::set().
ConfigDocument own_keys(const std::vector<std::string>& assignments);

}  // namespace colossal::models
