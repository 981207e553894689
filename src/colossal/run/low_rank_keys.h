// The keys of the table [adapter] (run/low_rank_adapter.h). This header needs no LibTorch.
//
//   const run::LowRankKeys keys{.kind = "lora", .rank = 8, .targets = {"q_proj", "v_proj"}};
//   keys.factor();   // 32 / 8
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

  void fields(Fields& f);
  bool operator==(const LowRankKeys&) const = default;
  /// Returns alpha / rank, or alpha / sqrt(rank) for the scale "root" (rsLoRA, arXiv:2312.03732).
  double factor() const;
};

}  // namespace colossal::run
