#include "colossal/plan/stage_cut.h"

#include <algorithm>

#include "colossal/base/error.h"

namespace colossal::plan {
namespace {

/// A cut of the first blocks into the first stages.
struct PartialCut {
  double sum = 0, slowest = 0;
  int64_t from = 0;  // first block of the last stage
  int before = 0;    // index of the cut before that stage, in its own list
};
using CutFront = std::vector<PartialCut>;

/// Adds a cut unless another one is at least as good in both numbers. Removes those that it beats.
void add_to_front(CutFront& front, const PartialCut& cut) {
  for (const PartialCut& other : front)
    if (other.sum <= cut.sum && other.slowest <= cut.slowest) return;
  std::erase_if(front, [&](const PartialCut& other) { return cut.sum <= other.sum && cut.slowest <= other.slowest; });
  front.push_back(cut);
}

}  // namespace

std::optional<StageCut> cut_stages(const StageProblem& problem) {
  const int64_t blocks = problem.blocks, stages = problem.stages;
  require(blocks >= 1 && stages >= 1 && problem.micro_batches >= 1, "plan",
          "a cut into stages needs blocks, stages and micro-batches: got ", blocks, ", ", stages, " and ",
          problem.micro_batches);
  // fronts[k][b]: the cuts of the first b blocks into the first k stages
  std::vector<std::vector<CutFront>> fronts(static_cast<size_t>(stages + 1),
                                            std::vector<CutFront>(static_cast<size_t>(blocks + 1)));
  fronts[0][0].push_back({});
  for (int64_t k = 0; k < stages; ++k) {
    const bool may_be_empty = stages > 1 && (k == 0 || k + 1 == stages);
    for (int64_t to = 0; to <= blocks; ++to)
      for (int64_t from = to - (may_be_empty ? 0 : 1); from >= 0; --from) {  // equal cuts: the early stages are fuller
        const CutFront& before = fronts[k][from];
        if (before.empty() || (problem.fits && !problem.fits(k, from, to))) continue;
        const double seconds = problem.seconds(k, from, to);
        for (size_t i = 0; i < before.size(); ++i)
          add_to_front(fronts[k + 1][to],
                       {before[i].sum + seconds, std::max(before[i].slowest, seconds), from, static_cast<int>(i)});
      }
  }
  const CutFront& whole = fronts[stages][blocks];
  if (whole.empty()) return std::nullopt;
  const auto seconds_of = [&](const PartialCut& cut) {
    return cut.sum + static_cast<double>(problem.micro_batches - 1) * cut.slowest;
  };
  const auto best = std::min_element(whole.begin(), whole.end(), [&](const PartialCut& a, const PartialCut& b) {
    return seconds_of(a) < seconds_of(b);
  });
  StageCut result{.layers = std::vector<int64_t>(static_cast<size_t>(stages)), .seconds = seconds_of(*best)};
  const PartialCut* cut = &*best;
  int64_t to = blocks;
  for (int64_t k = stages; k > 0; --k) {
    result.layers[static_cast<size_t>(k - 1)] = to - cut->from;
    to = cut->from;
    cut = &fronts[k - 1][to][static_cast<size_t>(cut->before)];
  }
  return result;
}

}  // namespace colossal::plan
