// The states that the stages of a pipeline pass on, the route of each state over the ranks, and the transfers of states
// and their gradients in the background.
//
//   // made by stage 0, read by stages 1 and 3 of four: its second part passes stage 2
//   const std::vector<PassedState> passed{{.state = 0, .from = 0, .to = 1, .sizes = {8, 64, 32}},
//                                         {.state = 0, .from = 1, .to = 3, .sizes = {8, 64, 32}}};
//   const StateRoutes routes(placement, passed);
//   for (const StateRoutes::Stop& stop : routes.arrivals(2)) receive(routes[stop.passed], stop.stage);   // from 1
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "colossal/comm/mesh.h"
#include "colossal/schedule/schedule.h"

namespace colossal::parallel {

/// A state on its way from a stage that has it to the next stage that reads it. Stages between them pass it on and
/// keep nothing of it. The list of states is the same on all ranks of a pipeline.
struct PassedState {
  int state = 0;                          ///< index of the state among the states of a stage
  int from = 0, to = 1;                   ///< stages; from < to
  std::vector<int64_t> sizes;             ///< sizes for a micro-batch, as a rank holds it
  std::optional<at::ScalarType> dtype{};  ///< dtype of the state; default: the dtype of hidden states
  /// true if a gradient is sent back. False if backward does not pass through the state, or if no parameter at or
  /// before `from` has a gradient
  bool has_gradient = true;
  std::string name = "hidden";  ///< name for messages
};

/// The routes of a list of passed states. A stage passes a state to a later stage on its own rank, the last one up to
/// the reader, and nothing is sent. If there is none, it passes the state to the next stage, which is on a neighbour.
/// Messages thus connect the same stages as a schedule's transfers. A state whose producer and reader share a rank, as
/// in V schedules, needs no message.
class StateRoutes {
 public:
  /// The point at which a state enters or leaves a stage.
  struct Stop {
    int passed;     ///< index in the list
    int stage;      ///< stage from which it arrives, or to which it is passed
    bool is_local;  ///< true if that stage is on the same rank
    bool is_relay;  ///< true if this stage passes it on unread
  };

  StateRoutes() = default;
  /// Errors ("pipeline"): a state that does not pass forward from one of the stages to another.
  StateRoutes(const schedule::Placement& placement, std::vector<PassedState> passed);

  const PassedState& operator[](int passed) const { return passed_[static_cast<size_t>(passed)]; }
  /// Return the states that a stage receives and passes on for each micro-batch, in the order of the list, which both
  /// ends share.
  const std::vector<Stop>& arrivals(int stage) const { return arrivals_[static_cast<size_t>(stage)]; }
  const std::vector<Stop>& departures(int stage) const { return departures_[static_cast<size_t>(stage)]; }
  /// Returns the number of states of a stage: one more than the largest index.
  int states() const { return states_; }

 private:
  std::vector<PassedState> passed_;
  std::vector<std::vector<Stop>> arrivals_, departures_;  // stops by stage
  int states_ = 1;
};

/// Returns the pairs of pipeline ranks of which the first sends to the second, in the order in which they connect.
/// Hidden states go one way, gradients the other. A connection occupies both ranks for a while. The even edges (0-1,
/// 2-3, ...) connect first, all at once, then the odd ones (1-2, ...). This takes four rounds, or six in a ring of an
/// odd number, instead of two rounds per stage.
std::vector<std::pair<int, int>> ways_of(const schedule::Placement& placement);

///   transfers.post(receive, {{.sizes = {8, 64, 32}, .dtype = at::kFloat}});    // may arrive from now on
///   const std::vector<at::Tensor> states = transfers.take(receive);
///
/// The transfers of one rank during one run of its list. Sends never block. Receives are posted at their position in
/// the list and awaited when they are needed. Every rank thus calls sends and receives in the order of its list.
/// schedule::check has proved that this order has no deadlock even if each call blocked until the other side reached
/// it. A transport may therefore run the messages of a group, or of a rank, one after another. It may also block to
/// connect two ranks at their first message; NCCL does both. Each direction between two ranks has a separate group, so
/// neither direction waits for the other.
///
/// Communication: a message for each tensor of a transfer: numel elements. The n ranks of `copies` all hold the
///                tensor. If n divides numel, each sends only its slice of numel / n. The receivers then gather the
///                slices: (n-1)/n * numel each. No message for a tensor without elements. Nothing else is sent: both
///                sides know sizes and dtypes.
class PipelineTransfers {
 public:
  /// One tensor of a receive; the sender has a tensor of these sizes and this dtype.
  struct Expected {
    std::vector<int64_t> sizes;
    at::ScalarType dtype;
  };

  /// Makes the groups between this rank and the ranks that hold its neighbouring stages: collective along the axis
  /// "pipeline" of `mesh`. `copies` are the ranks of one stage that hold the same hidden states. Tensors arrive on
  /// `device`. `mesh` and `copies` must outlive this object.
  PipelineTransfers(comm::Mesh& mesh, const schedule::Placement& placement, comm::Group& copies, at::Device device);

  /// Discards the transfers of a failed run.
  void begin();
  /// Runs a SendForward or SendBackward of these tensors.
  void send(const schedule::PipelineOp& step, const std::vector<at::Tensor>& tensors);
  /// Runs a ReceiveForward or ReceiveBackward: from now on the messages may arrive.
  void post(const schedule::PipelineOp& step, const std::vector<Expected>& tensors);
  /// Waits for a posted receive and returns its tensors, in the order in which they were posted.
  std::vector<at::Tensor> take(const schedule::PipelineOp& step);
  /// Returns when all sends are done.
  void finish();

 private:
  struct Message {
    std::vector<int64_t> sizes;
    at::Tensor buffer;
    comm::Work work;
  };
  struct Posted {
    schedule::PipelineOp step;
    std::vector<Message> messages;
  };
  struct Neighbour {
    // groups to that rank and from that rank; the sender is rank 0 in both
    comm::Group *to = nullptr, *from = nullptr;
  };
  bool is_sliced(int64_t elements) const { return copies_.size() > 1 && elements % copies_.size() == 0; }

  comm::Group& copies_;
  at::Device device_;
  std::map<int, Neighbour> neighbours_;  // neighbours by rank of the pipeline
  std::deque<Posted> posted_;
  std::deque<std::pair<comm::Work, at::Tensor>> sent_;  // sends in progress, with their tensors, which must live as
                                                        // long
};

}  // namespace colossal::parallel
