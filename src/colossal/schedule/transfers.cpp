#include "colossal/schedule/transfers.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "colossal/schedule/simulate.h"

namespace colossal::schedule {
namespace {

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

}  // namespace

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

}  // namespace colossal::schedule
