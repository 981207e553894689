// The seconds of single events of a step. The simulation of a step asks this interface; the profile of a cluster
// answers it.
//
//   double seconds(const plan::Costs& costs, const StepEvents& events) {   // of a rank whose events do not overlap
//     double sum = 0;
//     for (const StepEvent& event : events.list)
//       if (event.kind == StepEvent::Kind::Product) sum += costs.product_seconds(event);
//     return sum;
//   }
#pragma once
#include <cstdint>
#include <vector>

#include "colossal/base/step_events.h"

namespace colossal::plan {

/// Where the ranks of a group are. Computed once for each group.
struct GroupPlace {
  int link = 0;       ///< kind of link that calls occupy, from 0. Calls of one rank on links of one kind share them
  int64_t ranks = 1;  ///< ranks of the group
  int64_t nodes = 1;  ///< nodes that have ranks of the group
  bool operator==(const GroupPlace&) const = default;
};

/// Seconds of the work of one rank, each event alone on its stream and its links. Results must be finite and not
/// negative, and equal for equal arguments. Const members must be safe to call from several threads.
class Costs {
 public:
  virtual ~Costs() = default;
  /// Returns the seconds of a product. If m, n and k are 0, only `operations` is known.
  virtual double product_seconds(const StepEvent& product) const = 0;
  virtual double attention_seconds(const StepEvent& attention) const = 0;
  /// Returns the seconds of work on the device that reads and writes `bytes` together.
  virtual double elementwise_seconds(double bytes) const = 0;
  /// Returns the place of a group, or of a message between two ranks, by their numbers in the run.
  virtual GroupPlace place_of(const std::vector<int>& ranks) const = 0;
  /// Returns the seconds of a collective or of a message; `call.bytes` is what a rank sends.
  virtual double call_seconds(const StepEvent& call, const GroupPlace& place) const = 0;
  virtual double host_copy_seconds(double bytes) const = 0;
  virtual double disk_seconds(double bytes) const = 0;
};

}  // namespace colossal::plan
