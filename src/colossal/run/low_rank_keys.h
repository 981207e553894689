// The keys of the table [adapter] (run/low_rank_adapter.h). This header needs no LibTorch.
//
//   const run::LowRankKeys keys{.kind = "lora", .rank = 8, .targets = {"q_proj", "v_proj"}};
//   const double scale = keys.factor_of("model.layers.0.self_attn.q_proj");   // 32 / 8
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "colossal/base/fields.h"

namespace colossal::run {

/// The keys of [adapter].
struct LowRankKeys {
  std::string kind = "none", scale = "plain";
  int64_t rank = 16;
  double alpha = 32, dropout = 0;
  std::vector<std::string> targets{"all-linear"}, trained{};
  /// "NAME=VALUE": rank and alpha of the modules that a name or pattern selects (run/module_names.h); the first counts
  std::vector<std::string> ranks{}, alphas{};
  std::string from{};
  std::string base = "model";    ///< format of the frozen matrices; see run/frozen_base.h
  bool double_quantized = true;  ///< the key `double`: block maxima of NF4 in 8 bits, too
  bool text_encoder = false;     ///< adapters also of the text encoder (models/clip_text_within.h)

  void fields(Fields& f);
  bool operator==(const LowRankKeys&) const = default;
  /// Returns true if the kind is one of low-rank adapters. Other kinds have only `kind` and `from`.
  bool is_low_rank() const { return kind == "lora" || kind == "dora"; }
  /// Return the rank of the adapter of a module, its alpha, and its factor s: alpha / rank, or alpha / sqrt(rank) for
  /// the scale "root" (rsLoRA, arXiv:2312.03732). Errors ("adapter"): an element of `ranks` or `alphas` that is not
  /// NAME=VALUE.
  int64_t rank_of(const std::string& module) const;
  double alpha_of(const std::string& module) const;
  double factor_of(const std::string& module) const;
};

}  // namespace colossal::run
