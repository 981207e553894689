// The scorer of a run, as the table [reward] describes it.
//
//   const std::unique_ptr<Scorer> scorer = make_scorer(keys, program.verifiers);     // on rank 0
#pragma once
#include <memory>
#include <optional>

#include "colossal/align/rewards/scorer.h"
#include "colossal/base/descriptor.h"
#include "colossal/run/objectives/alignment/scorer_keys.h"
#include "colossal/text/verifiers/verifier.h"

namespace colossal::align {

/// Makes the verifiers, the command and the function of a run; null = there is none of them. `function` is the socket
/// of a function that scores (FunctionScorer). The result is a SumScorer, so that a command's own score is the part
/// `command`, and a function's the part `function`. The model of [reward] is not in it: a caller that has one makes
/// another SumScorer of both.
///
/// It starts the processes of a command, so one rank makes it. check() of the result checks the lines of the data.
/// Errors ("reward", "verifier"): those of check_scorer_keys(), VerifierScorer and CommandScorer.
std::unique_ptr<Scorer> make_scorer(const run::RewardKeys& keys, const text::Verifiers& verifiers,
                                    std::optional<Descriptor> function = {});

}  // namespace colossal::align
