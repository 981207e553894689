// The keys of the objective alignment, which fine-tunes a language model on chats, preferences or its own answers. This
// header needs no LibTorch.
#pragma once
#include <cstdint>
#include <string>

#include "colossal/base/fields.h"
#include "colossal/run/objectives/alignment/policy_keys.h"

namespace colossal::run {

/// The table [alignment].
struct AlignmentKeys {
  std::string method = "sft", loss = "auto";
  double noise = 0;
  double beta = 0;  ///< 0 = that of the method
  double smoothing = 0, nll = 0, margin = 1, desirable_weight = 1, undesirable_weight = 1;
  double centre = 0;
  int64_t answers = 2;  ///< most answers of a ranking
  PolicyKeys policy{};  ///< keys of this table, too
  void fields(Fields& f);
  bool operator==(const AlignmentKeys&) const = default;

  /// Returns beta, or `otherwise` if it is 0.
  double beta_or(double otherwise) const { return beta > 0 ? beta : otherwise; }
};

/// Errors ("alignment"): a key without effect on the method that differs from its default; a loss of another method.
void check_method_keys(const AlignmentKeys& keys);

}  // namespace colossal::run
