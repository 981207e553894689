// Which states the stages of a pipeline hand on, and the way that each takes over the ranks.
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

/// A state on its way from a stage that has it to the next stage that reads it. Stages between them hand it on and keep
/// nothing of it. The same on all ranks of a pipeline.
struct PassedState {
  int state = 0;                          ///< its index among the states of a stage
  int from = 0, to = 1;                   ///< stages; from < to
  std::vector<int64_t> sizes;             ///< of a micro-batch, as a rank holds it
  std::optional<at::ScalarType> dtype{};  ///< default: that of hidden states
  /// A gradient travels back. False if backward does not go through the state, or if nothing at or before `from` has a
  /// gradient
  bool has_gradient = true;
  std::string name = "hidden";  ///< for messages
};

/// The ways of a list of passed states. A stage gives a state to the last stage on its own rank that lies before the
/// reader or is the reader, and nothing is sent; if there is none, to the next stage, which is on a neighbour. So
/// messages connect the stages that a schedule's transfers connect, and a state whose maker and reader share a rank, as
/// in V schedules, costs none.
class StateRoutes {
 public:
  /// A state where it enters or leaves a stage.
  struct Stop {
    int passed;     ///< index in the list
    int stage;      ///< the one that it comes from, or that it goes to
    bool is_local;  ///< that stage is on the same rank
    bool is_relay;  ///< this stage hands it on unread
  };

  StateRoutes() = default;
  /// Errors ("pipeline"): a state that does not go forward from one of the stages to another.
  StateRoutes(const schedule::Placement& placement, std::vector<PassedState> passed);

  const PassedState& operator[](int passed) const { return passed_[static_cast<size_t>(passed)]; }
  /// What a stage is given of each micro-batch and what it gives, in the order of the list, which both ends share.
  const std::vector<Stop>& arrivals(int stage) const { return arrivals_[static_cast<size_t>(stage)]; }
  const std::vector<Stop>& departures(int stage) const { return departures_[static_cast<size_t>(stage)]; }
  /// The number of states of a stage: one more than the largest index.
  int states() const { return states_; }

 private:
  std::vector<PassedState> passed_;
  std::vector<std::vector<Stop>> arrivals_, departures_;  // by stage
  int states_ = 1;
};

}  // namespace colossal::parallel
