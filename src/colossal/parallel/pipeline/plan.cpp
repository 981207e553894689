#include "colossal/parallel/pipeline/plan.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>

#include "colossal/base/error.h"
#include "colossal/base/join.h"

namespace colossal::parallel {
namespace {

schedule::Options options_of(const PipelineConfig& config) {
  return {.name = config.schedule,
          .stages = static_cast<int>(config.size),
          .micro_batches = static_cast<int>(config.micro_batches),
          .chunks = static_cast<int>(config.chunks)};
}

std::vector<int64_t> cuts_of(const PipelineConfig& config, const ModelCosts& costs,
                             const schedule::Placement& placement) {
  const auto blocks = static_cast<int64_t>(costs.blocks.size()), stages = static_cast<int64_t>(placement.stages());
  const auto& given = config.layers_per_stage;
  if (given.empty()) return cut_blocks(costs, placement);
  require(
      static_cast<int64_t>(given.size()) == stages && std::accumulate(given.begin(), given.end(), int64_t{0}) == blocks,
      "pipeline", "layers_per_stage must assign all ", blocks, " blocks to the ", stages,
      " stages, in the order of the model: got ", given.size(), " numbers, sum ",
      std::accumulate(given.begin(), given.end(), int64_t{0}));
  std::vector<int64_t> cuts{0};
  for (const int64_t count : given) cuts.push_back(cuts.back() + count);
  return cuts;
}

}  // namespace

void PipelineConfig::fields(Fields& f) {
  std::vector<std::string> names;
  for (const schedule::Family& family : schedule::families()) names.emplace_back(family.name);
  f.integer("size", size, "ranks", "number of ranks that split the blocks of the model", 1, 1 << 16);
  f.choice("schedule", schedule, names,
           "order of forward and backward passes; `colossal schedule --compare` shows all");
  f.integer("micro_batches", micro_batches, "micro-batches",
            "number of micro-batches of each replica in a step; 0 = up to four per rank", 0, 1 << 20);
  f.integer("chunks", chunks, "stages", "number of stages per rank; 0 = the schedule's default", 0, 1 << 10);
  f.integers("layers_per_stage", layers_per_stage, "blocks",
             "number of blocks of each stage, in the order of the model; empty = split by cost, including the head");
}

std::vector<int> PipelinePlan::ranks_of_stage(int64_t stage) const {
  std::set<int> ranks;
  for (int pipe = 0; pipe < schedule.placement.pipes(); ++pipe)
    ranks.insert(schedule.placement.rank_of(pipe, static_cast<int>(stage)));
  return {ranks.begin(), ranks.end()};
}

std::vector<int64_t> cut_blocks(const ModelCosts& costs, int64_t stages) {
  const auto blocks = static_cast<int64_t>(costs.blocks.size());
  std::vector<double> sums(1, 0);
  for (const double cost : costs.blocks) sums.push_back(sums.back() + cost);
  const auto cost = [&](int64_t stage, int64_t from, int64_t to) {
    return sums[to] - sums[from] + (stage == 0 ? costs.first : 0) + (stage + 1 == stages ? costs.last : 0);
  };
  // dearest[k][b] is the cost of the most expensive stage in the best assignment of the first b blocks to the first k
  // stages. Among equal assignments, the one that fills the early stages wins.
  std::vector<std::vector<double>> dearest(stages + 1,
                                           std::vector<double>(blocks + 1, std::numeric_limits<double>::infinity()));
  std::vector<std::vector<int64_t>> from(stages + 1, std::vector<int64_t>(blocks + 1, 0));
  dearest[0][0] = 0;
  for (int64_t k = 0; k < stages; ++k) {
    const bool is_end = k == 0 || k + 1 == stages;  // an end has work even without a block
    for (int64_t b = 0; b <= blocks; ++b)
      for (int64_t a = 0; a <= b - (is_end ? 0 : 1); ++a) {
        const double worst = std::max(dearest[k][a], cost(k, a, b));
        if (worst < dearest[k + 1][b] * (1 - 1e-12) || (worst <= dearest[k + 1][b] && a > from[k + 1][b])) {
          dearest[k + 1][b] = worst;
          from[k + 1][b] = a;
        }
      }
  }
  std::vector<int64_t> cuts{blocks};
  for (int64_t k = stages; k > 0; --k) cuts.push_back(from[k][cuts.back()]);
  std::reverse(cuts.begin(), cuts.end());
  return cuts;
}

std::vector<double> stage_weights(const ModelCosts& costs, const std::vector<int64_t>& cuts) {
  std::vector<double> weights;
  for (size_t k = 0; k + 1 < cuts.size(); ++k)
    weights.push_back(std::accumulate(costs.blocks.begin() + cuts[k], costs.blocks.begin() + cuts[k + 1], 0.0) +
                      (k == 0 ? costs.first : 0) + (k + 2 == cuts.size() ? costs.last : 0));
  const double mean = std::accumulate(weights.begin(), weights.end(), 0.0) / static_cast<double>(weights.size());
  for (double& weight : weights) weight = std::max(weight / mean, 1e-3);
  return weights;
}

schedule::Costs schedule_costs(const ModelCosts& costs, const std::vector<int64_t>& cuts) {
  ModelCosts backward = costs, forward = costs;
  backward.last = 0;
  forward.last *= 3;
  schedule::Costs planned;
  planned.stage_weights = stage_weights(backward, cuts);
  planned.forward_weights = stage_weights(forward, cuts);
  // Both are relative to their own mean, so the factor below converts them to one unit.
  const auto total = [](const ModelCosts& c) {
    return std::accumulate(c.blocks.begin(), c.blocks.end(), c.first + c.last);
  };
  for (double& weight : planned.forward_weights) weight *= total(forward) / total(backward);
  return planned;
}

std::vector<int64_t> cut_blocks(const ModelCosts& costs, const schedule::Placement& placement) {
  const int stages = placement.stages();
  // Cost of the most expensive rank and of the most expensive stage; borders that leave an inner stage without a block
  // cost infinity.
  const auto price = [&](const std::vector<int64_t>& cuts) {
    for (int k = 0; k < stages; ++k)
      if (cuts[k + 1] < cuts[k] || (cuts[k + 1] == cuts[k] && k > 0 && k + 1 < stages))
        return std::pair(std::numeric_limits<double>::infinity(), 0.0);
    const std::vector<double> weights = stage_weights(costs, cuts);
    std::vector<double> ranks(placement.ranks(), 0);
    for (int pipe = 0; pipe < placement.pipes(); ++pipe)
      for (int k = 0; k < stages; ++k) ranks[placement.rank_of(pipe, k)] += weights[k];
    return std::pair(*std::max_element(ranks.begin(), ranks.end()), *std::max_element(weights.begin(), weights.end()));
  };
  std::vector<int64_t> best = cut_blocks(costs, stages);
  auto least = price(best);
  for (bool moved = true; moved;) {
    moved = false;
    // Moves one border, or two at once: taking a block from one stage for a stage that is not adjacent shifts all
    // stages between them.
    for (int from = 1; from < stages; ++from)
      for (int to = from; to < stages; ++to)
        for (const int64_t shift : {-1, 1}) {
          std::vector<int64_t> cuts = best;
          for (int k = from; k <= to; ++k) cuts[k] += shift;
          const auto found = price(cuts);
          if (found.first > least.first + 1e-9 ||
              (found.first > least.first - 1e-9 && found.second > least.second - 1e-9))
            continue;
          best = std::move(cuts);
          least = found;
          moved = true;
        }
  }
  return best;
}

int64_t micro_batches_of(const PipelineConfig& config, int64_t batch, int64_t batch_parts) {
  int64_t count = config.micro_batches;
  if (count == 0)
    for (count = 4 * config.size; count > config.size && batch % (count * batch_parts) != 0;) count -= config.size;
  const int64_t unit = count * batch_parts;
  if (batch % unit == 0) return count;
  std::vector<int64_t> legal;
  for (int64_t n = 1; n * batch_parts <= batch; ++n)
    if (batch % (n * batch_parts) == 0) legal.push_back(n);
  throw Error("pipeline", concat("micro_batches must divide the ", batch, " samples of a replica",
                                 batch_parts > 1 ? concat(" (split into ", batch_parts, " parts)") : "", ": got ",
                                 count, "; possible: ", legal.empty() ? "none" : join(legal),
                                 "; or make training.batch_size a multiple of ", unit, " per replica"));
}

void check_sizes(const PipelineConfig& config) { schedule::check_options(options_of(config)); }

PipelinePlan make_plan(const PipelineConfig& config, const ModelCosts& costs) {
  schedule::Options options = options_of(config);
  const schedule::Placement placement = schedule::placement_of(options);
  const auto blocks = static_cast<int64_t>(costs.blocks.size());
  require(blocks >= placement.stages(), "pipeline", "every stage must have at least one block: got ", blocks,
          " blocks for ", placement.stages(), " stages (", config.size, " ranks",
          placement.stages() > config.size ? concat(", ", placement.chunks(), " each") : "", "); the largest size is ",
          std::max<int64_t>(1, blocks * config.size / placement.stages()));
  const std::vector<int64_t> cuts = cuts_of(config, costs, placement);
  options.costs = schedule_costs(costs, cuts);
  return {schedule::make_schedule(options), cuts};
}

}  // namespace colossal::parallel
