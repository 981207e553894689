// The requests that a call sends to an engine and waits for.
//
//   SentRequests sent(engine);
//   sent.send(request, -1, on_event);
//   while (ended < sent.count()) engine.step();      // an error drops the requests that have not ended
#pragma once
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "colossal/infer/engine.h"

namespace colossal::infer {

/// Requests of one call. Those that have not ended are dropped at the end, so that their events cannot reach variables
/// of a call that has ended.
class SentRequests {
 public:
  explicit SentRequests(Engine& engine) : engine_(engine) {}
  ~SentRequests() {
    for (const int64_t id : ids_) engine_.drop(id);
  }
  SentRequests(const SentRequests&) = delete;
  SentRequests& operator=(const SentRequests&) = delete;

  /// Sends a request. `after` is the number of an earlier one, in the order of the calls; -1 = none. Errors: those of
  /// Engine::add().
  void send(Request request, int64_t after, OnEvent on_event) {
    if (after >= 0) request.after = ids_[static_cast<size_t>(after)];
    ids_.push_back(engine_.add(std::move(request), std::move(on_event)));
  }
  size_t count() const { return ids_.size(); }

 private:
  Engine& engine_;
  std::vector<int64_t> ids_;
};

}  // namespace colossal::infer
