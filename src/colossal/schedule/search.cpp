#include "colossal/schedule/search.h"

#include <algorithm>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/schedule/simulate.h"

namespace colossal::schedule {
namespace {

constexpr double kEqual = 1e-9;  // relative difference below which values count as equal

}  // namespace

Search::Search(const Placement& placement, const Options& options, double limit)
    : placement_(placement), options_(options), limit_(limit) {}

void Search::propose(const Policy& policy) {
  Policy within = policy;
  within.limit = limit_;
  const Costs& costs = options_.costs;
  Costs without_transfers = costs;
  without_transfers.transfer = 0;
  const Costs even = policy.splits_backward ? Costs{1, 1, 1} : Costs{1, 0.5, 0.5};
  propose(list_schedule(placement_, options_.micro_batches, costs, within));
  if (without_transfers != costs) propose(list_schedule(placement_, options_.micro_batches, without_transfers, within));
  if (even != costs) propose(list_schedule(placement_, options_.micro_batches, even, within));
}

void Search::propose(Lists lists) {
  const Schedule schedule{options_.name, placement_, options_.micro_batches, std::move(lists)};
  Timeline timeline;
  try {
    timeline = simulate(schedule, options_.costs, kWeightShare);
  } catch (const Error&) {
    return;  // the proposal has a deadlock
  }
  if (limit_ > 0 && *std::max_element(timeline.peak_live.begin(), timeline.peak_live.end()) > limit_ + kEqual) return;
  const double span = *std::max_element(timeline.span.begin(), timeline.span.end()), end = timeline.makespan,
               slack = kEqual * end;
  const bool better =
      best_.empty() || span < best_span_ - slack || (span <= best_span_ + slack && end < best_end_ - slack);
  if (!better) return;
  best_ = schedule.ranks;
  best_span_ = span;
  best_end_ = end;
}

Lists Search::best() && { return std::move(best_); }

}  // namespace colossal::schedule
