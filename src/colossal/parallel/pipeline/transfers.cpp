#include "colossal/parallel/pipeline/transfers.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

#include "colossal/base/error.h"

namespace colossal::parallel {
namespace {

using schedule::Action;
using schedule::Step;

constexpr int64_t kMostDims = 7;  // of a hidden state whose shape travels as [dims, sizes...]

int64_t elements_of(const std::vector<int64_t>& sizes) { return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>()); }

}  // namespace

void PipelineTransfers::begin(PipelineShapes& shapes) {
  shapes_ = &shapes;
  peers_.clear();
  sent_.clear();
}

const std::vector<int64_t>& PipelineTransfers::sizes_of(const Step& step) const {
  return step.action == Action::ReceiveForward ? shapes_->inputs[step.chunk] : shapes_->outputs[step.chunk];
}

void PipelineTransfers::send(const Step& step, const at::Tensor& x) {
  while (!sent_.empty() && sent_.front().first.done()) sent_.pop_front();
  if (step.action == Action::SendForward && !shapes_->announced[step.chunk]) {
    at::Tensor shape = at::zeros({kMostDims + 1}, at::kLong);
    require(x.dim() <= kMostDims, "pipeline", "a hidden state may have ", kMostDims, " dimensions: got ", x.dim());
    shape[0] = x.dim();
    for (int64_t d = 0; d < x.dim(); ++d) shape[d + 1] = x.size(d);
    shape = shape.to(hidden_.device());
    sent_.emplace_back(ranks_.send(shape, step.peer), shape);
    shapes_->announced[step.chunk] = true;
  }
  at::Tensor message = x.contiguous();
  if (is_sliced(x.numel())) {
    const int64_t part = x.numel() / copies_.size();
    message = message.view({-1}).narrow(0, copies_.rank() * part, part);
  }
  sent_.emplace_back(ranks_.send(message, step.peer), message);
}

void PipelineTransfers::post(const Step& step) {
  peers_[step.peer].waiting.push_back(step);
  advance(step.peer);
}

void PipelineTransfers::advance(int peer) {
  Peer& p = peers_[peer];
  while (!p.waiting.empty() && !sizes_of(p.waiting.front()).empty()) start(peer, sizes_of(p.waiting.front()));
}

void PipelineTransfers::start(int peer, const std::vector<int64_t>& sizes) {
  Peer& p = peers_[peer];
  const int64_t elements = elements_of(sizes);
  at::Tensor buffer = at::empty({is_sliced(elements) ? elements / copies_.size() : elements}, hidden_);
  comm::Work work = ranks_.recv(buffer, peer);
  p.posted.push_back({p.waiting.front(), buffer, sizes, std::move(work)});
  p.waiting.pop_front();
}

std::vector<int64_t> PipelineTransfers::receive_shape(int peer) {
  at::Tensor shape = at::empty({kMostDims + 1}, at::TensorOptions(at::kLong).device(hidden_.device()));
  ranks_.recv(shape, peer).wait();
  shape = shape.cpu();
  const int64_t* values = shape.const_data_ptr<int64_t>();
  require(values[0] >= 1 && values[0] <= kMostDims, "pipeline", "rank ", peer, " of the pipeline announced a hidden state of ", values[0], " dimensions");
  return {values + 1, values + 1 + values[0]};
}

at::Tensor PipelineTransfers::take(const Step& step) {
  Peer& p = peers_[step.peer];
  const auto find = [&] { return std::find_if(p.posted.begin(), p.posted.end(), [&](const Posted& posted) { return posted.step == step; }); };
  auto found = find();
  while (found == p.posted.end()) {  // the first message of a boundary, or one behind it: the shape comes ahead
    require(!p.waiting.empty(), "pipeline", "nothing was posted for the ", to_string(step.action), " of micro-batch ", step.micro_batch);
    shapes_->inputs[p.waiting.front().chunk] = receive_shape(step.peer);
    advance(step.peer);
    found = find();
  }
  Posted posted = std::move(*found);
  p.posted.erase(found);
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
