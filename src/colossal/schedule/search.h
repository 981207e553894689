// The best of several schedules for given costs: how the families without a closed form, and unequal costs, are
// planned.
#pragma once
#include "colossal/schedule/list_scheduler.h"

namespace colossal::schedule {

/// Takes proposals, times them and keeps the best: the shortest longest span of a rank, then the earliest end, then the
/// one proposed first. The same proposals give the same result everywhere: no clock, no chance.
class Search {
 public:
  /// `limit`: live activations that a rank may hold; a proposal that holds more is dropped. 0: any.
  Search(const Placement& placement, const Options& options, double limit);

  /// What list_schedule makes of it within the limit: planned with the costs, with the costs but for transfers, and
  /// with all steps equally long. Where steps are equally long the ranks stay in step, and that order is often the
  /// better one at other costs too.
  void propose(const Policy& policy);
  void propose(Lists lists);  ///< dropped too if it locks up
  Lists best() &&;

 private:
  const Placement placement_;
  const Options& options_;
  const double limit_;
  Lists best_;
  double best_span_ = 0, best_end_ = 0;
};

}  // namespace colossal::schedule
