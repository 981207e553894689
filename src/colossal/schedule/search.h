// Selects the best of several schedules for given costs. Families without a closed form, and unequal costs, are
// planned this way.
#pragma once
#include "colossal/schedule/list_scheduler.h"

namespace colossal::schedule {

/// Takes proposals, times them and keeps the best. The criteria are, in this order: the smallest longest span of a
/// rank, the earliest end, the earliest proposal. The same proposals give the same result everywhere, because neither
/// a clock nor chance is used.
class Search {
 public:
  /// `limit`: maximum number of live activations of a rank; a proposal that holds more is dropped; 0 = no limit.
  Search(const Placement& placement, const Options& options, double limit);

  /// Proposes the schedules that list_schedule makes with this policy within the limit: one for the costs, one for the
  /// costs without transfers, and one for equally long steps. With equally long steps the ranks stay synchronous, and
  /// that order is often better at other costs too.
  void propose(const Policy& policy);
  void propose(Lists lists);  ///< drops lists with a deadlock, too
  Lists best() &&;

 private:
  const Placement placement_;
  const Options& options_;
  const double limit_;
  Lists best_;
  double best_span_ = 0, best_end_ = 0;
};

}  // namespace colossal::schedule
