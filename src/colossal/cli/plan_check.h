// `colossal plan CONFIG --check`: compares the prediction with two steps of a real run.
#pragma once
#include <cstdint>

#include "colossal/cli/plan_wishes.h"

namespace colossal::run {
struct Program;
}

namespace colossal::cli {

/// The most ranks that `plan --check` starts.
inline constexpr int64_t kCheckedRanks = 64;

/// Trains two steps on the configured data, on local ranks or those of a launcher, and prints the prediction of the
/// second beside what its ranks counted. Makes no run folder; tiers make their scratch file, which ends with the ranks.
/// Returns the exit status: 1 if a number of calls or of bytes sent differs, else 0. If a rank ends early, all end, and
/// the status is that rank's.
/// Errors: those of resolve_plan(). "plan": more than kCheckedRanks ranks. The same on all ranks: errors of the data,
///         of the model and of predict::record_roles().
int plan_check(const PlanWishes& wishes, const run::Program* program);

}  // namespace colossal::cli
