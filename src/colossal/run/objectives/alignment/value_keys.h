// The keys of the value model of PPO. This header needs no LibTorch.
//
//   [value]
//   from = "runs/reward"          # a model of its own, which starts from the scores of that reward model
#pragma once
#include <string>

#include "colossal/base/config.h"
#include "colossal/base/fields.h"

namespace colossal::run {

/// Name of the further model, and of its table.
inline constexpr char kValue[] = "value";

/// The table [value].
struct ValueKeys {
  std::string from;  ///< source of its weights; see resolve_further()
  std::string name;  ///< a preset with random weights in place of `from`, for plans; empty = none
  std::string trunk = "own";
  double weight = 0.1;
  ConfigDocument own{};  ///< the table `optimizer` in it, with the keys of [optimizer]
  void fields(Fields& f);
  bool operator==(const ValueKeys& other) const;

  /// Returns true if the values are those of a head on the policy.
  bool is_on_policy() const { return trunk == "policy"; }
};

/// Checks the keys of a run whose method has values. Errors ("value"): a key without effect on the trunk that differs
/// from its default.
void check_value_keys(const ValueKeys& keys);

}  // namespace colossal::run
