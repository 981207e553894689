#include "colossal/schedule/make.h"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/base/join.h"
#include "colossal/base/suggest.h"
#include "colossal/schedule/families.h"
#include "colossal/schedule/simulate.h"

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

/// A compute step of one rank, or a message from `rank` to `step.peer`.
struct Entry {
  double time;
  bool is_compute;
  int rank;
  PipelineOp step;  // step, or the send of a message

  /// A message that is sent when another step begins comes first, because that step may need it.
  bool operator<(const Entry& other) const {
    return std::tie(time, is_compute, rank) < std::tie(other.time, other.is_compute, other.rank);
  }
};

/// Returns the send of a compute step's result; its peer is -1 or the rank itself if no other rank needs the result.
PipelineOp send_of(const Schedule& schedule, int rank, const PipelineOp& step) {
  const Placement& at = schedule.placement;
  const bool forward = step.action == Action::Forward;
  const int stage = at.stage_of(rank, step.chunk) + (forward ? 1 : -1);
  const bool exists = step.action != Action::BackwardWeight && stage >= 0 && stage < at.stages();
  const int peer = exists ? at.rank_of(at.pipe_of(step.chunk), stage) : -1;
  return {forward ? Action::SendForward : Action::SendBackward, step.micro_batch, step.chunk, peer};
}

PipelineOp receive_of(const Schedule& schedule, int sender, const PipelineOp& send) {
  const Placement& at = schedule.placement;
  const bool forward = send.action == Action::SendForward;
  const int stage = at.stage_of(sender, send.chunk) + (forward ? 1 : -1);
  return {forward ? Action::ReceiveForward : Action::ReceiveBackward, send.micro_batch,
          at.chunk_of(at.pipe_of(send.chunk), stage), sender};
}

std::vector<Entry> common_order(const Schedule& schedule) {
  std::vector<Entry> order;
  for (const Event& event : simulate(schedule, Costs{}).events) {
    order.push_back({event.begin, true, event.rank, event.step});
    const PipelineOp send = send_of(schedule, event.rank, event.step);
    if (send.peer >= 0 && send.peer != event.rank) order.push_back({event.end, false, event.rank, send});
  }
  std::stable_sort(order.begin(), order.end());
  return order;
}

/// Adds the Reduces: each after the last backward of its chunk and the transfers there, or, with several pipes, at the
/// end.
void add_reduces(const Placement& placement, int rank, std::vector<PipelineOp>& steps) {
  if (placement.pipes() > 1) {
    std::vector<int> chunks(placement.chunks());
    for (int chunk = 0; chunk < placement.chunks(); ++chunk) chunks[chunk] = chunk;
    std::sort(chunks.begin(), chunks.end(),
              [&](int a, int b) { return placement.stage_of(rank, a) < placement.stage_of(rank, b); });
    for (const int chunk : chunks) steps.push_back({Action::Reduce, -1, chunk});
    return;
  }
  for (int chunk = 0; chunk < placement.chunks(); ++chunk) {
    size_t at = steps.size();
    while (at > 0 && !(steps[at - 1].chunk == chunk && is_compute(steps[at - 1].action))) --at;
    // Transfers come before the Reduce, because other ranks wait for them.
    while (at < steps.size() && !is_compute(steps[at].action)) ++at;
    steps.insert(steps.begin() + static_cast<std::ptrdiff_t>(at), {Action::Reduce, -1, chunk});
  }
}

/// Inserts transfers, Reduce and Update into lists of compute steps. A tensor that passes between two chunks of
/// one rank needs no transfer.
///
/// Rule: all compute steps of all ranks are put into one order (by their times at equal costs), and every message
///       directly after the step that makes it. The list of a rank is its part of that order. A Send thus follows the
///       compute step that made its tensor, with at most receives between them. A Receive is placed at the time of the
///       send: after the steps that the receiver begins before, at the latest right before the step that needs it.
///
/// Why: on each pair of ranks both sides see the messages in the same order. There is no deadlock even if every
///      transfer blocks until the other side reaches it: of the remaining steps, the first in the common order can
///      proceed on all its ranks.
///
/// Reduce follows a chunk's last weight gradients and the transfers after them. A Reduce with two pipes involves both
/// copies of a chunk. The Reduces therefore come last, in the order of their stages, which is the same on both ranks.
/// Update ends the list.
void add_transfers(Schedule& schedule) {
  std::vector<std::vector<PipelineOp>> lists(schedule.ranks.size());
  for (const Entry& entry : common_order(schedule)) {
    lists[entry.rank].push_back(entry.step);
    if (!entry.is_compute) lists[entry.step.peer].push_back(receive_of(schedule, entry.rank, entry.step));
  }
  for (size_t rank = 0; rank < lists.size(); ++rank) {
    add_reduces(schedule.placement, static_cast<int>(rank), lists[rank]);
    lists[rank].push_back({Action::Update});
  }
  schedule.ranks = std::move(lists);
}

}  // namespace

const std::vector<Family>& families() {
  static const std::vector<Family> table{gpipe(),          one_f_one_b(),   chimera(), interleaved(), zero_bubble_h1(),
                                         zero_bubble_h2(), zero_bubble_v(), hanayo(),  v_half(),      v_min()};
  return table;
}

const Family& find_family(const std::string& name) {
  std::vector<std::string> names;
  for (const auto& family : families()) {
    if (name == family.name) return family;
    names.push_back(family.name);
  }
  const std::string nearest = did_you_mean(name, names);
  throw Error("pipeline",
              "unknown schedule `" + name + "`" + (nearest.empty() ? "; there are " + join(names) : nearest));
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
