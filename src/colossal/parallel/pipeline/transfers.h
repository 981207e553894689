// Hidden states and their gradients on the way between the stages of a pipeline, in the background.
#pragma once
#include <ATen/core/Tensor.h>

#include <deque>
#include <map>
#include <vector>

#include "colossal/comm/group.h"
#include "colossal/schedule/schedule.h"

namespace colossal::parallel {

/// The shapes of what one kind of batch sends: of the inputs and outputs of this rank's chunks. Empty: not known yet.
struct PipelineShapes {
  std::vector<std::vector<int64_t>> inputs, outputs;
  std::vector<bool> announced;  ///< whether the next stage was told the shape of a chunk's output
};

/// The transfers of one rank during one run of its list. Sends never block; receives are posted in the order of the list and awaited when
/// they are needed.
///
/// Communication: a message a transfer: numel elements, or numel / n when the n ranks of `copies` all hold the tensor: then each sends its slice and
///                the receivers gather the slices ((n-1)/n * numel each). The first message of a boundary and kind of batch carries its shape ahead.
class PipelineTransfers {
 public:
  /// `ranks`: those of the pipeline; `copies`: ranks of one stage that hold the same hidden states.
  PipelineTransfers(comm::Group& ranks, comm::Group& copies, at::TensorOptions hidden) : ranks_(ranks), copies_(copies), hidden_(hidden) {}

  void begin(PipelineShapes& shapes);
  /// A SendForward or SendBackward of `x`.
  void send(const schedule::Step& step, const at::Tensor& x);
  /// A ReceiveForward or ReceiveBackward: from now on the message may arrive; where the shape is not known yet, from take() on.
  void post(const schedule::Step& step);
  /// What a posted receive brought.
  at::Tensor take(const schedule::Step& step);
  /// Returns when all sends are done.
  void finish();

 private:
  struct Posted {
    schedule::Step step;
    at::Tensor buffer;
    std::vector<int64_t> sizes;
    comm::Work work;
  };
  struct Peer {
    std::deque<schedule::Step> waiting;  // of a shape that is not known yet, and those behind them
    std::deque<Posted> posted;
  };
  const std::vector<int64_t>& sizes_of(const schedule::Step& step) const;
  void advance(int peer);
  void start(int peer, const std::vector<int64_t>& sizes);
  std::vector<int64_t> receive_shape(int peer);
  bool is_sliced(int64_t elements) const { return copies_.size() > 1 && elements % copies_.size() == 0; }

  comm::Group &ranks_, &copies_;
  at::TensorOptions hidden_;
  PipelineShapes* shapes_ = nullptr;
  std::map<int, Peer> peers_;
  std::deque<std::pair<comm::Work, at::Tensor>> sent_;  // tensors live as long as their transfer
};

}  // namespace colossal::parallel
