// Collects the completions of an engine for many requests.
#pragma once
#include <vector>

#include "colossal/infer/engine.h"

namespace colossal::infer::engine_test {

using Tokens = std::vector<int64_t>;

/// Returns a function that appends all events to one list.
inline OnEvent into(std::vector<Event>& events) {
  return [&events](const Event& event) { events.push_back(event); };
}

/// Runs a step, stores its events in `events` and returns them.
inline const std::vector<Event>& stepped(infer::Engine& engine, std::vector<Event>& events) {
  events.clear();
  engine.step();
  return events;
}

inline std::vector<Tokens> answers_of(infer::Engine& engine, const std::vector<Request>& requests) {
  std::vector<Tokens> answers(requests.size());
  size_t added = 0;
  const auto add = [&] {
    engine.add(requests[added], [&own = answers[added]](const Event& event) {
      if (event.is_answer()) own.push_back(event.token);
    });
    ++added;
  };
  // Two more requests are added per step, so that some arrive while others run.
  while (added < requests.size() || engine.has_work()) {
    for (int i = 0; i < 2 && added < requests.size(); ++i) add();
    engine.step();
  }
  return answers;
}

}  // namespace colossal::infer::engine_test
