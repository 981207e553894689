#include "colossal/align/rewards/make_scorer.h"

#include <utility>
#include <vector>

#include "colossal/align/rewards/command_scorer.h"
#include "colossal/align/rewards/function_scorer.h"
#include "colossal/align/rewards/sum_scorer.h"
#include "colossal/align/rewards/verifier_scorer.h"

namespace colossal::align {

std::unique_ptr<Scorer> make_scorer(const run::RewardKeys& keys, const text::Verifiers& verifiers,
                                    std::optional<Descriptor> function) {
  run::check_scorer_keys(keys, function.has_value());
  const bool null_on_fault = keys.on_fault == "null";
  std::vector<WeightedScorer> scorers;
  if (!keys.verifiers.empty())
    scorers.push_back({.scorer = std::make_unique<VerifierScorer>(verifiers, keys.verifiers, keys.weights)});
  if (!keys.command.empty())
    scorers.push_back({.name = "command",
                       .scorer = std::make_unique<CommandScorer>(RewardCommand{
                           .command = keys.command,
                           .workers = static_cast<int>(keys.workers),
                           .timeout = keys.timeout,
                           .retries = static_cast<int>(keys.retries),
                           .null_on_fault = null_on_fault,
                       })});
  if (function)
    scorers.push_back(
        {.name = "function", .scorer = std::make_unique<FunctionScorer>(*std::move(function), null_on_fault)});
  if (scorers.empty()) return nullptr;
  return std::make_unique<SumScorer>(std::move(scorers));
}

}  // namespace colossal::align
