// The keys of the scores of answers that a model draws. This header needs no LibTorch.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "colossal/base/fields.h"

namespace colossal::run {

/// Name of the table, and of the further model that scores.
inline constexpr char kReward[] = "reward";

/// The table [reward]. The score of an answer is the weighted sum of those of verifiers, a command, a function of the
/// program that started the run, and a reward model.
struct RewardKeys {
  std::vector<std::string> verifiers;  ///< names (text::Verifiers)
  std::vector<double> weights;         ///< one for each verifier; empty = 1 for each
  std::vector<std::string> command;    ///< a program and its arguments; empty = none
  int64_t workers = 2;
  double timeout = 60;  ///< seconds
  int64_t retries = 2;
  std::string on_fault = "error";  ///< "error" or "null"
  std::string from;                ///< source of a reward model; empty = none
  double from_weight = 1;
  std::string name;  ///< preset of a reward model, for plans; empty = none
  void fields(Fields& f);
  bool operator==(const RewardKeys&) const = default;

  bool has_model() const { return !from.empty() || !name.empty(); }
};

/// Checks the keys of a run that scores answers. `has_function` is true if the program that started the run scores, too
/// (Program::reward_function). Errors ("reward"): nothing that scores; a list of weights of another length than the
/// verifiers; a weight that is not finite; both `from` and `name`; a key without effect that differs from its default.
void check_scorer_keys(const RewardKeys& keys, bool has_function);

}  // namespace colossal::run
