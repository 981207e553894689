// What an engine answers to many requests.
#pragma once
#include <vector>

#include "colossal/infer/engine.h"

namespace colossal::infer::engine_test {

using Tokens = std::vector<int64_t>;

inline std::vector<Tokens> answers_of(infer::Engine& engine, const std::vector<Request>& requests) {
  std::vector<Tokens> answers(requests.size());
  size_t added = 0;
  // Two more with each step, so that some come while others run.
  while (added < requests.size() || engine.has_work()) {
    for (int i = 0; i < 2 && added < requests.size(); ++i) engine.add(requests[added++]);
    for (const infer::Engine::Event& event : engine.step())
      if (event.token >= 0) answers[static_cast<size_t>(event.id)].push_back(event.token);
  }
  return answers;
}

}  // namespace colossal::infer::engine_test
