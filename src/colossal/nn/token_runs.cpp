#include "colossal/nn/token_runs.h"

namespace colossal::nn {

Tokens TokenRuns::here(const ForwardContext&) const { return {}; }

SequenceCut TokenRuns::cut(const ForwardContext& step, int64_t own) const {
  if (step.cut && ranks() > 1) return *step.cut;
  SequenceCut equal{.lengths = std::vector<int64_t>(static_cast<size_t>(ranks()), own)};
  for (int64_t rank = 0; rank < ranks(); ++rank) equal.held.push_back({rank});
  return equal;
}

}  // namespace colossal::nn
