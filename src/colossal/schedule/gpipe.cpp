#include "colossal/base/error.h"
#include "colossal/schedule/families.h"

namespace colossal::schedule {
namespace {

std::string gpipe_fault(const Options& options) {
  if (options.memory_limit > 0 && options.memory_limit < options.micro_batches) {
    return concat("gpipe keeps the activations of every micro-batch: got memory_limit ", options.memory_limit, " for ",
                  options.micro_batches, " micro_batches; use 1f1b");
  }
  return "";
}

Placement gpipe_placement(const Options& options) { return Placement::looped(options.stages, 1); }

Lists gpipe_order(const Options& options, const Placement& placement) {
  std::vector<PipelineOp> steps;
  for (int i = 0; i < options.micro_batches; ++i) steps.push_back({Action::Forward, i, 0});
  for (int i = 0; i < options.micro_batches; ++i) steps.push_back({Action::Backward, i, 0});
  return Lists(placement.ranks(), steps);
}

}  // namespace

Family gpipe() {
  return {"gpipe", "all forwards, then all backwards", 1, false, false, gpipe_fault, gpipe_placement, gpipe_order};
}

}  // namespace colossal::schedule
