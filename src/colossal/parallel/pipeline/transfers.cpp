#include "colossal/parallel/pipeline/transfers.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "colossal/base/error.h"

namespace colossal::parallel {

StateRoutes::StateRoutes(const schedule::Placement& placement, std::vector<PassedState> passed)
    : passed_(std::move(passed)), arrivals_(placement.stages()), departures_(placement.stages()) {
  // Both pipes of a placement put the same stages on one rank, so one pipe suffices to decide which stops are local.
  const auto rank_of = [&](int stage) { return placement.rank_of(0, stage); };
  for (int i = 0; i < static_cast<int>(passed_.size()); ++i) {
    const PassedState& state = passed_[i];
    require(state.state >= 0 && state.from >= 0 && state.from < state.to && state.to < placement.stages(), "pipeline",
            "a state must pass forward between two of the ", placement.stages(), " stages: got `", state.name,
            "` from stage ", state.from, " to ", state.to);
    states_ = std::max(states_, state.state + 1);
    for (int stage = state.from; stage < state.to;) {
      int next = state.to;
      while (next > stage && rank_of(next) != rank_of(stage)) --next;
      const bool is_local = next > stage;
      if (!is_local) next = stage + 1;
      departures_[stage].push_back({i, next, is_local, stage != state.from});
      arrivals_[next].push_back({i, stage, is_local, next != state.to});
      stage = next;
    }
  }
}

namespace {

using schedule::PipelineOp;

// The two sides of a one-way group.
constexpr int kSender = 0, kReceiver = 1;

/// Returns the round in which a pair connects: 0 for neighbours with an even first rank, 1 for those with an odd one,
/// 2 for pairs that join the last rank of a ring to the first.
int round_of(const std::pair<int, int>& way) {
  const auto [low, high] = std::minmax(way.first, way.second);
  return high - low == 1 ? low % 2 : 2;
}

}  // namespace

std::vector<std::pair<int, int>> ways_of(const schedule::Placement& placement) {
  std::set<std::pair<int, int>> ways;
  for (int pipe = 0; pipe < placement.pipes(); ++pipe)
    for (int stage = 0; stage + 1 < placement.stages(); ++stage) {
      const int rank = placement.rank_of(pipe, stage), next = placement.rank_of(pipe, stage + 1);
      if (rank != next) ways.insert({{rank, next}, {next, rank}});
    }
  std::vector<std::pair<int, int>> ordered(ways.begin(), ways.end());
  std::stable_sort(ordered.begin(), ordered.end(),
                   [](const auto& a, const auto& b) { return round_of(a) < round_of(b); });
  return ordered;
}

PipelineTransfers::PipelineTransfers(comm::Mesh& mesh, const schedule::Placement& placement, comm::Group& copies,
                                     at::Device device)
    : copies_(copies), device_(device) {
  require(mesh.size("pipeline") == placement.ranks(), "pipeline", "the schedule is for ", placement.ranks(),
          " ranks: got ", mesh.size("pipeline"));
  const int rank = mesh.index("pipeline");
  // All ranks use one order, so both members of the first group that does not exist yet have reached it.
  for (const auto& [from, to] : ways_of(placement)) {
    if (from == rank) neighbours_[to].to = &mesh.one_way("pipeline", from, to);
    if (to == rank) neighbours_[from].from = &mesh.one_way("pipeline", from, to);
  }
}

void PipelineTransfers::begin() {
  posted_.clear();
  sent_.clear();
}

void PipelineTransfers::send(const PipelineOp& step, const std::vector<at::Tensor>& tensors) {
  while (!sent_.empty() && sent_.front().first.done()) sent_.pop_front();
  for (const at::Tensor& x : tensors) {
    const int64_t elements = x.numel();
    if (elements == 0) continue;
    at::Tensor message = x.contiguous();
    if (is_sliced(elements)) {
      const int64_t part = elements / copies_.size();
      message = message.view({-1}).narrow(0, copies_.rank() * part, part);
    }
    sent_.emplace_back(neighbours_.at(step.peer).to->send(message, kReceiver), message);
  }
}

void PipelineTransfers::post(const PipelineOp& step, const std::vector<Expected>& tensors) {
  Posted posted{step, {}};
  for (const Expected& expected : tensors) {
    const int64_t elements =
        std::accumulate(expected.sizes.begin(), expected.sizes.end(), int64_t{1}, std::multiplies<>());
    const int64_t part = is_sliced(elements) ? elements / copies_.size() : elements;
    at::Tensor buffer = at::empty({part}, at::TensorOptions(device_).dtype(expected.dtype));
    comm::Work work = elements == 0 ? comm::Work() : neighbours_.at(step.peer).from->recv(buffer, kSender);
    posted.messages.push_back({expected.sizes, buffer, std::move(work)});
  }
  posted_.push_back(std::move(posted));
}

std::vector<at::Tensor> PipelineTransfers::take(const PipelineOp& step) {
  const auto found =
      std::find_if(posted_.begin(), posted_.end(), [&](const Posted& posted) { return posted.step == step; });
  require(found != posted_.end(), "pipeline", "nothing was posted for the ", to_string(step.action), " of micro-batch ",
          step.micro_batch);
  Posted posted = std::move(*found);
  posted_.erase(found);
  std::vector<at::Tensor> tensors;
  for (Message& message : posted.messages) {
    message.work.wait();
    const int64_t elements =
        std::accumulate(message.sizes.begin(), message.sizes.end(), int64_t{1}, std::multiplies<>());
    at::Tensor whole = message.buffer;
    if (is_sliced(elements) && elements > 0) {
      whole = at::empty({elements}, message.buffer.options());
      copies_.all_gather(whole, message.buffer).wait();
    }
    tensors.push_back(whole.view(message.sizes));
  }
  return tensors;
}

void PipelineTransfers::finish() {
  for (auto& [work, tensor] : sent_) work.wait();
  sent_.clear();
}

}  // namespace colossal::parallel
