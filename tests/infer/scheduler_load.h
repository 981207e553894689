// Requests for a scheduler without a model, for tests of its turns.
#pragma once
#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "colossal/infer/decoding/scheduler.h"

namespace colossal::infer::scheduler_load {

using Tokens = std::vector<int64_t>;

/// Returns tokens that no other call with a different `first` begins with.
inline Tokens counted(int64_t count, int64_t first = 0) {
  Tokens tokens;
  for (int64_t i = 0; i < count; ++i) tokens.push_back(first + i);
  return tokens;
}

struct Seen {
  int64_t id, first, count;
  bool operator==(const Seen&) const = default;
};
using Steps = std::vector<Seen>;

/// Requests with a number of tokens to generate each, which end after these.
class Load {
 public:
  explicit Load(const SchedulerOptions& options) : scheduler(options) {}

  void add(int64_t id, Tokens prompt, int64_t new_tokens, const Sharing& sharing = {}) {
    prompts[id] = static_cast<int64_t>(prompt.size());
    clients[id] = sharing.client;
    scheduler.add(id, std::move(prompt), new_tokens - 1, sharing);
    left[id] = new_tokens;
  }
  /// Runs a step and returns it. Adds the work of the step to `service`.
  std::vector<Scheduler::ScheduledTokens> step() {
    const std::vector<Scheduler::ScheduledTokens> planned = scheduler.next();
    for (const Scheduler::ScheduledTokens& scheduled : planned) {
      computed += scheduled.count;
      const int64_t id = scheduled.id, end = std::min(scheduled.first + scheduled.count, prompts[id]);
      int64_t& known = read[id];
      if (known == 0) known = scheduler.found(id);
      service[clients[id]] += std::max<int64_t>(0, end - known);
      known = std::max(known, end);
      if (!scheduled.is_last) continue;
      service[clients[id]] += 2;
      scheduler.append(id, id);
      if (--left[id] == 0) remove(id);
    }
    return planned;
  }
  void remove(int64_t id) {
    scheduler.remove(id);
    left.erase(id);
  }
  /// Returns the number of steps until a request gets its first token.
  int64_t steps_to_first_token(int64_t id) {
    for (int64_t steps = 1; steps < 10000; ++steps)
      for (const Scheduler::ScheduledTokens& scheduled : step())
        if (scheduled.id == id && scheduled.is_last) return steps;
    return 10000;
  }

  Scheduler scheduler;
  std::map<int64_t, int64_t> left, prompts, read;  // by request: tokens to generate, prompt tokens, those computed
  std::map<int64_t, std::string> clients;
  std::map<std::string, int64_t> service;  // the counters, without what a return from being idle adds
  int64_t computed = 0;                    // tokens of all steps
};

}  // namespace colossal::infer::scheduler_load
