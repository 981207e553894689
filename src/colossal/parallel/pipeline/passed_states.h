// The states that the stages of a pipeline pass on, and the route of each state over the ranks.
//
//   // made by stage 0, read by stages 1 and 3 of four: its second part passes stage 2
//   const std::vector<PassedState> passed{{.state = 0, .from = 0, .to = 1, .sizes = {8, 64, 32}},
//                                         {.state = 0, .from = 1, .to = 3, .sizes = {8, 64, 32}}};
//   const StateRoutes routes(placement, passed);
//   for (const StateRoutes::Stop& stop : routes.arrivals(2)) receive(routes[stop.passed], stop.stage);   // from 1
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

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

}  // namespace colossal::parallel
