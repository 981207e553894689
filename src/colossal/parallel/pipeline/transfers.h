// Hidden states and their gradients on the way between the stages of a pipeline, in the background.
#pragma once
#include <ATen/core/Tensor.h>

#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "colossal/comm/mesh.h"
#include "colossal/schedule/schedule.h"

namespace colossal::parallel {

/// Pairs of ranks of a pipeline of which the first sends to the second, hidden states one way, gradients the other, in
/// the order in which they connect. A connection takes both ranks for a while: first those of even edges (0-1, 2-3,
/// ...) all at once, then those of odd ones (1-2, ...), so that it takes four such whiles, or six in a ring of an
/// odd number, and not two for each stage.
std::vector<std::pair<int, int>> ways_of(const schedule::Placement& placement);

/// The transfers of one rank during one run of its list. Sends never block; receives are posted where the list has them
/// and awaited when they are needed. So every rank calls sends and receives in the order of its list, which
/// schedule::check has proved not to lock up even if each call blocked until the other side came to it: a transport may
/// run the messages of a group, or of a rank, one after another, and may block to connect two ranks at their first
/// message (NCCL does both). Each way between two ranks has a group of its own: nothing waits for what comes the other
/// way.
///
/// Communication: a message a transfer: numel elements, or numel / n when the n ranks of `copies` all hold the tensor:
///                then each sends its slice and the receivers gather the slices ((n-1)/n * numel each). Nothing else:
///                both sides know the sizes.
class PipelineTransfers {
 public:
  /// Makes the groups between this rank and those that hold the stages next to its own: collective along the axis
  /// "pipeline" of `mesh`. `copies`: ranks of one stage that hold the same hidden states.
  PipelineTransfers(comm::Mesh& mesh, const schedule::Placement& placement, comm::Group& copies,
                    at::TensorOptions hidden);

  /// `sizes`: of every hidden state, and so of every gradient, until the next begin(); the same on both sides.
  void begin(std::vector<int64_t> sizes);
  /// A SendForward or SendBackward of `x`, which has those sizes.
  void send(const schedule::Step& step, const at::Tensor& x);
  /// A ReceiveForward or ReceiveBackward: from now on the message may arrive.
  void post(const schedule::Step& step);
  /// What a posted receive brought.
  at::Tensor take(const schedule::Step& step);
  /// Returns when all sends are done.
  void finish();

 private:
  struct Posted {
    schedule::Step step;
    at::Tensor buffer;
    comm::Work work;
  };
  struct Neighbour {
    // what goes there, what comes from there; the sender is rank 0 of either
    comm::Group *to = nullptr, *from = nullptr;
  };
  bool is_sliced() const { return copies_.size() > 1 && elements_ % copies_.size() == 0; }

  comm::Group& copies_;
  at::TensorOptions hidden_;
  std::map<int, Neighbour> neighbours_;  // by rank of the pipeline
  std::vector<int64_t> sizes_;
  int64_t elements_ = 0;
  std::deque<Posted> posted_;
  std::deque<std::pair<comm::Work, at::Tensor>> sent_;  // tensors live as long as their transfer
};

}  // namespace colossal::parallel
