// The keys of the answers that a run draws from its own model. This header needs no LibTorch.
#pragma once
#include <cstdint>
#include <string>

#include "colossal/base/fields.h"

namespace colossal::run {

/// Name of the table.
inline constexpr char kRollout[] = "rollout";

/// The table [rollout].
struct RolloutKeys {
  int64_t prompts = 16, answers = 8;
  int64_t max_tokens = 0;  ///< 0 = not given, which methods that draw answers refuse
  double temperature = 1;
  std::string truncated = "keep";
  int64_t cache = int64_t{1} << 30;
  std::string panels = "auto", canonical = "auto";
  int64_t ahead = 0, keep_steps = 0;
  void fields(Fields& f);
  bool operator==(const RolloutKeys&) const = default;

  /// Returns the number of answers of a step.
  int64_t rows() const { return prompts * answers; }
};

}  // namespace colossal::run
