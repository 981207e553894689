#include "colossal/parallel/pipeline/passed_states.h"

#include <algorithm>

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

}  // namespace colossal::parallel
