#include "colossal/parallel/pipeline/transfers.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "colossal/base/error.h"

namespace colossal::parallel {
namespace {

using schedule::Action;
using schedule::Step;

constexpr int64_t kMostDims = 7;  // of a hidden state whose shape travels as [dims, sizes...]

// The two sides of a group of one way.
constexpr int kSender = 0, kReceiver = 1;

int64_t elements_of(const std::vector<int64_t>& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
}

/// Pairs of ranks of which the first sends to the second: hidden states one way, gradients the other.
std::set<std::pair<int, int>> ways_of(const schedule::Placement& placement) {
  std::set<std::pair<int, int>> ways;
  for (int pipe = 0; pipe < placement.pipes(); ++pipe)
    for (int stage = 0; stage + 1 < placement.stages(); ++stage) {
      const int rank = placement.rank_of(pipe, stage), next = placement.rank_of(pipe, stage + 1);
      if (rank != next) ways.insert({{rank, next}, {next, rank}});
    }
  return ways;
}

}  // namespace

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

void PipelineTransfers::begin(PipelineShapes& shapes) {
  shapes_ = &shapes;
  posted_.clear();
  sent_.clear();
}

void PipelineTransfers::send(const Step& step, const at::Tensor& x) {
  while (!sent_.empty() && sent_.front().first.done()) sent_.pop_front();
  comm::Group& way = *neighbours_.at(step.peer).to;
  if (step.action == Action::SendForward && !shapes_->announced[step.chunk]) {
    at::Tensor shape = at::zeros({kMostDims + 1}, at::kLong);
    require(x.dim() <= kMostDims, "pipeline", "a hidden state may have ", kMostDims, " dimensions: got ", x.dim());
    shape[0] = x.dim();
    for (int64_t d = 0; d < x.dim(); ++d) shape[d + 1] = x.size(d);
    shape = shape.to(hidden_.device());
    sent_.emplace_back(way.send(shape, kReceiver), shape);
    shapes_->announced[step.chunk] = true;
  }
  at::Tensor message = x.contiguous();
  if (is_sliced(x.numel())) {
    const int64_t part = x.numel() / copies_.size();
    message = message.view({-1}).narrow(0, copies_.rank() * part, part);
  }
  sent_.emplace_back(way.send(message, kReceiver), message);
}

const std::vector<int64_t>& PipelineTransfers::sizes_of(const Step& step) {
  if (step.action == Action::ReceiveBackward) return shapes_->outputs[step.chunk];
  std::vector<int64_t>& sizes = shapes_->inputs[step.chunk];
  if (sizes.empty()) sizes = receive_shape(step.peer);
  return sizes;
}

std::vector<int64_t> PipelineTransfers::receive_shape(int peer) {
  at::Tensor shape = at::empty({kMostDims + 1}, at::TensorOptions(at::kLong).device(hidden_.device()));
  neighbours_.at(peer).from->recv(shape, kSender).wait();
  shape = shape.cpu();
  const int64_t* values = shape.const_data_ptr<int64_t>();
  require(values[0] >= 1 && values[0] <= kMostDims, "pipeline", "rank ", peer,
          " of the pipeline announced a hidden state of ", values[0], " dimensions");
  return {values + 1, values + 1 + values[0]};
}

void PipelineTransfers::post(const Step& step) {
  const std::vector<int64_t>& sizes = sizes_of(step);
  const int64_t elements = elements_of(sizes);
  at::Tensor buffer = at::empty({is_sliced(elements) ? elements / copies_.size() : elements}, hidden_);
  comm::Work work = neighbours_.at(step.peer).from->recv(buffer, kSender);
  posted_.push_back({step, buffer, sizes, std::move(work)});
}

at::Tensor PipelineTransfers::take(const Step& step) {
  const auto found =
      std::find_if(posted_.begin(), posted_.end(), [&](const Posted& posted) { return posted.step == step; });
  require(found != posted_.end(), "pipeline", "nothing was posted for the ", to_string(step.action), " of micro-batch ",
          step.micro_batch);
  Posted posted = std::move(*found);
  posted_.erase(found);
  posted.work.wait();
  const int64_t elements = elements_of(posted.sizes);
  if (!is_sliced(elements)) return posted.buffer.view(posted.sizes);
  at::Tensor whole = at::empty({elements}, hidden_);
  copies_.all_gather(whole, posted.buffer).wait();
  return whole.view(posted.sizes);
}

void PipelineTransfers::finish() {
  for (auto& [work, tensor] : sent_) work.wait();
  sent_.clear();
}

}  // namespace colossal::parallel
