#include <utility>

#include "colossal/base/error.h"
#include "colossal/schedule/families.h"
#include "colossal/schedule/search.h"

namespace colossal::schedule {
namespace {

std::string hanayo_fault(const Options& options) {
  if (options.chunks % 2 == 0) return "";
  const std::string nearest = options.chunks > 1 ? concat(options.chunks - 1, " or ", options.chunks + 1) : "2";
  return concat("hanayo needs an even number of chunks, 2 per wave: got ", options.chunks, "; nearest ", nearest);
}

Placement hanayo_placement(const Options& options) { return Placement::zigzag(options.stages, options.chunks); }

Lists hanayo_order(const Options& options, const Placement& placement) {
  const double limit = options.memory_limit > 0 ? options.memory_limit : options.stages;
  Search search(placement, options, limit);
  for (const auto backwards : {Policy::Order::OldestMicroBatch, Policy::Order::DeepestStage})
    search.propose(Policy{.splits_backward = false, .backwards = backwards});
  return std::move(search).best();
}

}  // namespace

Family hanayo() {
  return {"hanayo",    "waves over the ranks, two chunks per wave", 2, true, false, hanayo_fault, hanayo_placement,
          hanayo_order};
}

}  // namespace colossal::schedule
