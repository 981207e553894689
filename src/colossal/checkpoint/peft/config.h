// adapter_config.json of a folder of peft (Hugging Face): what kind of low-rank adapters its tensors are.
//
//   const auto config = checkpoint::PeftConfig::read("poet/adapter_config.json");
//   config.rank_of("model.layers.0.self_attn.q_proj");    // rank_pattern, else r
//   config.scale_of("model.layers.0.self_attn.q_proj");   // s of s B A
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "colossal/base/json.h"

namespace colossal::checkpoint {

/// The parameters of the experts of a layer in transformers 5 that may have adapters, in the order in which their
/// module declares them.
inline constexpr const char* kExpertParameters[] = {"gate_up_proj", "down_proj"};

/// The keys of an adapter_config.json that this library reads and writes. The defaults are those of peft 0.21.
struct PeftConfig {
  /// Regular expressions of module names, each with the value of the modules that it matches. The first one counts
  using Patterns = std::vector<std::pair<std::string, double>>;

  int64_t rank = 8;
  double alpha = 8, dropout = 0;
  bool root_scale = false;      ///< use_rslora: s = alpha / sqrt(rank)
  bool magnitudes = false;      ///< use_dora
  bool fan_in_fan_out = false;  ///< the model stores its layers as [in, out] (GPT-2). A and B have the same shapes
  bool keeps_ties = false;      ///< ensure_weight_tying: a saved embedding stays the head of a model that ties both
  Patterns ranks{}, alphas{};   ///< rank_pattern, alpha_pattern
  std::vector<std::string> targets{};  ///< target_modules, if it is a list
  std::string target_pattern{};        ///< target_modules, if it is a text
  /// target_parameters: stacks of experts, names that end in kExpertParameters ("mlp.experts.down_proj")
  std::vector<std::string> parameters{};
  std::vector<std::string> trained{};         ///< modules_to_save
  std::string task = "CAUSAL_LM", base = "";  ///< task_type, base_model_name_or_path

  /// Reads a file. Errors ("peft"): another peft_type; values of the wrong type or out of range; any key that changes
  /// what the adapters compute and that this struct does not have, by name.
  static PeftConfig read(const std::string& path);
  /// Reads an object with these keys. `where`: names it in messages. Errors: those of read().
  static PeftConfig of(const nlohmann::ordered_json& object, const std::string& where);
  /// Returns the object that peft 0.21 writes.
  nlohmann::json to_json() const;

  /// Return the rank, the alpha and the scale s of the adapter of a module. Errors ("peft"): a pattern that is no
  /// regular expression.
  int64_t rank_of(const std::string& module) const;
  double alpha_of(const std::string& module) const;
  double scale_of(const std::string& module) const;
  /// Returns true if target_parameters has this parameter ("model.layers.0.mlp.experts.down_proj").
  bool targets_parameter(const std::string& name) const;
};

}  // namespace colossal::checkpoint
