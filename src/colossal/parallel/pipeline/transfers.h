// Hidden states and their gradients on the way between the stages of a pipeline, in the background.
//
//   transfers.post(receive, {{.sizes = {8, 64, 32}, .dtype = at::kFloat}});    // may arrive from now on
//   const std::vector<at::Tensor> states = transfers.take(receive);
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
/// Communication: a message for each tensor of a transfer: numel elements, or numel / n when the n ranks of `copies`
///                all hold the tensor: then each sends its slice and the receivers gather the slices ((n-1)/n * numel
///                each). None for a tensor without elements. Nothing else: both sides know sizes and dtypes.
class PipelineTransfers {
 public:
  /// What a receive brings of one tensor; the sender has a tensor of these sizes and this dtype.
  struct Expected {
    std::vector<int64_t> sizes;
    at::ScalarType dtype;
  };

  /// Makes the groups between this rank and those that hold the stages next to its own: collective along the axis
  /// "pipeline" of `mesh`. `copies`: ranks of one stage that hold the same hidden states.
  /// Tensors arrive on `device`.
  PipelineTransfers(comm::Mesh& mesh, const schedule::Placement& placement, comm::Group& copies, at::Device device);

  /// Forgets the transfers of a run that failed.
  void begin();
  /// A SendForward or SendBackward of these tensors.
  void send(const schedule::Step& step, const std::vector<at::Tensor>& tensors);
  /// A ReceiveForward or ReceiveBackward: from now on the messages may arrive.
  void post(const schedule::Step& step, const std::vector<Expected>& tensors);
  /// What a posted receive brought, in its order.
  std::vector<at::Tensor> take(const schedule::Step& step);
  /// Returns when all sends are done.
  void finish();

 private:
  struct Message {
    std::vector<int64_t> sizes;
    at::Tensor buffer;
    comm::Work work;
  };
  struct Posted {
    schedule::Step step;
    std::vector<Message> messages;
  };
  struct Neighbour {
    // what goes there, what comes from there; the sender is rank 0 of either
    comm::Group *to = nullptr, *from = nullptr;
  };
  bool is_sliced(int64_t elements) const { return copies_.size() > 1 && elements % copies_.size() == 0; }

  comm::Group& copies_;
  at::Device device_;
  std::map<int, Neighbour> neighbours_;  // by rank of the pipeline
  std::deque<Posted> posted_;
  std::deque<std::pair<comm::Work, at::Tensor>> sent_;  // tensors live as long as their transfer
};

}  // namespace colossal::parallel
