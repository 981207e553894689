#include "colossal/align/rewards/waiting_scores.h"

#include <utility>

namespace colossal::align {

bool WaitingScores::add(const std::string& id) {
  require(ids_.insert(id).second, "reward", "the ids of answers must differ: got ", id, " twice");
  return !fault_;
}

void WaitingScores::fail(Error error) {
  if (!fault_) fault_ = std::move(error);
}

std::vector<Scored> WaitingScores::take() {
  if (scored_.empty() && fault_) {
    const Error error = *fault_;
    clear();
    throw error;
  }
  for (const Scored& one : scored_) ids_.erase(one.id);
  return std::exchange(scored_, {});
}

void WaitingScores::clear() {
  ids_.clear();
  scored_.clear();
  fault_.reset();
}

}  // namespace colossal::align
