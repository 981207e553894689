#include "colossal/nn/joint_sequence.h"

#include <ATen/ATen.h>

#include <memory>
#include <utility>

namespace colossal::nn {

JointSteps JointSequence::steps(const ForwardContext& step, int64_t first, int64_t second) const {
  const int64_t ranks = step.cut ? static_cast<int64_t>(step.cut->held.size()) : outside_(step).sequence.runs;
  if (ranks == 1) return {step, step, step};
  const SequenceCut of_second = step.cut ? *step.cut : near_even_cut(second, ranks);
  const SequenceCut of_first = step.cut && first == second ? *step.cut : near_even_cut(first, ranks);
  const auto with = [&](SequenceCut cut) {
    ForwardContext own = step;
    own.cut = std::make_shared<const SequenceCut>(std::move(cut));
    return own;
  };
  return {with(of_first), with(of_second), with(joined(of_first, of_second))};
}

Heads JointSequence::heads(const Heads& first, const Heads& second, const JointSteps& steps) const {
  const auto join = [](const at::Tensor& a, const at::Tensor& b) { return at::cat({a, b}, 1); };
  return {.q = join(first.q, second.q),
          .k = join(first.k, second.k),
          .v = join(first.v, second.v),
          .tokens = inside_(steps.both),
          .first_head = second.first_head};
}

}  // namespace colossal::nn
