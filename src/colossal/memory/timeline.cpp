#include "colossal/memory/timeline.h"

#include <algorithm>
#include <utility>

namespace colossal::memory {

void Timeline::used(size_t chunk) {
  follows_ = follows_ && pass_.size() < last_pass_.size() && last_pass_[pass_.size()] == chunk;
  pass_.push_back(chunk);
}

void Timeline::end_pass() {
  if (!follows_) last_pass_ = std::move(pass_);
  pass_.clear();
  follows_ = true;
}

std::optional<size_t> Timeline::back(size_t steps) const {
  if (pass_.size() < steps) return {};
  return pass_[pass_.size() - steps];
}

std::optional<size_t> Timeline::ahead(size_t steps) const {
  const size_t at = pass_.size() + steps - 1;
  if (!follows_ || pass_.empty() || steps == 0 || at >= last_pass_.size()) return {};
  return last_pass_[at];
}

std::optional<size_t> Timeline::until(size_t chunk) const {
  if (!follows_ || pass_.empty()) return {};
  const auto now = last_pass_.begin() + static_cast<std::ptrdiff_t>(pass_.size());
  const auto found = std::find(now, last_pass_.end(), chunk);
  if (found == last_pass_.end()) return {};
  return static_cast<size_t>(found - now) + 1;
}

}  // namespace colossal::memory
