#include "colossal/parallel/pipeline/transfers.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "colossal/base/error.h"

namespace colossal::parallel {
namespace {

using schedule::Step;

// The two sides of a group of one way.
constexpr int kSender = 0, kReceiver = 1;

/// In which round a pair connects: neighbours with an even first rank, those with an odd one, and the rest, which join
/// the last rank of a ring to the first.
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
                                     at::TensorOptions hidden)
    : copies_(copies), hidden_(hidden) {
  require(mesh.size("pipeline") == placement.ranks(), "pipeline", "the schedule is for ", placement.ranks(),
          " ranks: got ", mesh.size("pipeline"));
  const int rank = mesh.index("pipeline");
  // All ranks go by one order, so both members of the first group that is not made yet have come to it.
  for (const auto& [from, to] : ways_of(placement)) {
    if (from == rank) neighbours_[to].to = &mesh.one_way("pipeline", from, to);
    if (to == rank) neighbours_[from].from = &mesh.one_way("pipeline", from, to);
  }
}

void PipelineTransfers::begin(std::vector<int64_t> sizes) {
  sizes_ = std::move(sizes);
  elements_ = std::accumulate(sizes_.begin(), sizes_.end(), int64_t{1}, std::multiplies<>());
  posted_.clear();
  sent_.clear();
}

void PipelineTransfers::send(const Step& step, const at::Tensor& x) {
  while (!sent_.empty() && sent_.front().first.done()) sent_.pop_front();
  at::Tensor message = x.contiguous();
  if (is_sliced()) {
    const int64_t part = elements_ / copies_.size();
    message = message.view({-1}).narrow(0, copies_.rank() * part, part);
  }
  sent_.emplace_back(neighbours_.at(step.peer).to->send(message, kReceiver), message);
}

void PipelineTransfers::post(const Step& step) {
  at::Tensor buffer = at::empty({is_sliced() ? elements_ / copies_.size() : elements_}, hidden_);
  comm::Work work = neighbours_.at(step.peer).from->recv(buffer, kSender);
  posted_.push_back({step, buffer, std::move(work)});
}

at::Tensor PipelineTransfers::take(const Step& step) {
  const auto found =
      std::find_if(posted_.begin(), posted_.end(), [&](const Posted& posted) { return posted.step == step; });
  require(found != posted_.end(), "pipeline", "nothing was posted for the ", to_string(step.action), " of micro-batch ",
          step.micro_batch);
  Posted posted = std::move(*found);
  posted_.erase(found);
  posted.work.wait();
  if (!is_sliced()) return posted.buffer.view(sizes_);
  at::Tensor whole = at::empty({elements_}, hidden_);
  copies_.all_gather(whole, posted.buffer).wait();
  return whole.view(sizes_);
}

void PipelineTransfers::finish() {
  for (auto& [work, tensor] : sent_) work.wait();
  sent_.clear();
}

}  // namespace colossal::parallel
