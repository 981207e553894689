#include "colossal/schedule/make.h"

#include <cmath>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/base/suggest.h"
#include "colossal/schedule/chimera.h"
#include "colossal/schedule/gpipe.h"
#include "colossal/schedule/hanayo.h"
#include "colossal/schedule/interleaved.h"
#include "colossal/schedule/one_f_one_b.h"
#include "colossal/schedule/transfers.h"
#include "colossal/schedule/v_shape.h"
#include "colossal/schedule/zero_bubble.h"

namespace colossal::schedule {
namespace {

Options complete(Options options) {
  if (options.chunks == 0) options.chunks = find_family(options.name).default_chunks;
  return options;
}

void check_costs(const Options& options) {
  const std::pair<const char*, double> durations[] = {{"forward", options.costs.forward},
                                                      {"backward_input", options.costs.backward_input},
                                                      {"backward_weight", options.costs.backward_weight}};
  for (const auto& [name, value] : durations)
    require(value > 0 && std::isfinite(value), "pipeline", "the cost of ", name, " must be a positive number: got ",
            value);
  const double transfer = options.costs.transfer;
  require(transfer >= 0 && std::isfinite(transfer), "pipeline", "the cost of a transfer must not be negative: got ",
          transfer);
  for (const auto* weights : {&options.costs.stage_weights, &options.costs.forward_weights})
    for (const double weight : *weights)
      require(weight > 0 && std::isfinite(weight), "pipeline", "the weight of a stage must be a positive number: got ",
              weight);
}

}  // namespace

const std::vector<Family>& families() {
  static const std::vector<Family> table{gpipe(),          one_f_one_b(),   chimera(), interleaved(), zero_bubble_h1(),
                                         zero_bubble_h2(), zero_bubble_v(), hanayo(),  v_half(),      v_min()};
  return table;
}

const Family& find_family(const std::string& name) {
  std::vector<std::string> names;
  std::string list;
  for (const auto& family : families()) {
    if (name == family.name) return family;
    names.push_back(family.name);
    list += (list.empty() ? "" : ", ") + names.back();
  }
  const std::string nearest = did_you_mean(name, names);
  throw Error("pipeline", "unknown schedule `" + name + "`" + (nearest.empty() ? "; there are " + list : nearest));
}

double cost_of(const Costs& costs, const Placement& placement, int rank, const PipelineOp& step) {
  if (!is_compute(step.action)) return 0;
  const double share = static_cast<double>(placement.pipes()) / placement.chunks();
  const auto& weights =
      step.action == Action::Forward && !costs.forward_weights.empty() ? costs.forward_weights : costs.stage_weights;
  const double weight = weights.empty() ? 1 : weights.at(placement.stage_of(rank, step.chunk));
  switch (step.action) {
    case Action::Forward:
      return share * weight * costs.forward;
    case Action::BackwardInput:
      return share * weight * costs.backward_input;
    case Action::BackwardWeight:
      return share * weight * costs.backward_weight;
    default:
      return share * weight * (costs.backward_input + costs.backward_weight);
  }
}

void check_options(const Options& given) {
  const Family& family = find_family(given.name);
  require(given.stages >= 1, "pipeline", "a pipeline needs at least 1 rank: got ", given.stages);
  require(given.micro_batches >= 1, "pipeline", "micro_batches must be at least 1: got ", given.micro_batches);
  require(given.chunks >= 0, "pipeline", "chunks must be at least 1: got ", given.chunks);
  require(given.memory_limit == 0 || given.memory_limit >= 1, "pipeline",
          "memory_limit must hold at least 1 live activation: got ", given.memory_limit);
  check_costs(given);
  const Options options = complete(given);
  require(family.takes_chunks || options.chunks == family.default_chunks, "pipeline", options.name, " has ",
          family.default_chunks, family.default_chunks == 1 ? " chunk" : " chunks", " per rank: got ", options.chunks,
          "; nearest ", family.default_chunks, ", or use interleaved or hanayo");
  const std::string fault = family.fault_of(options);
  require(fault.empty(), "pipeline", fault);
  const Placement placement = family.placement(options);
  const size_t stages = static_cast<size_t>(placement.stages());
  for (const size_t weights : {options.costs.stage_weights.size(), options.costs.forward_weights.size()})
    require(weights == 0 || weights == stages, "pipeline", options.name, " has ", stages, " stages here: got ", weights,
            " stage weights");
}

Placement placement_of(const Options& options) {
  check_options(options);
  return find_family(options.name).placement(complete(options));
}

Schedule make_schedule(const Options& given) {
  check_options(given);
  const Options options = complete(given);
  const Family& family = find_family(options.name);
  const Placement placement = family.placement(options);
  Schedule schedule{options.name, placement, options.micro_batches, family.order(options, placement)};
  add_transfers(schedule);
  return schedule;
}

}  // namespace colossal::schedule
