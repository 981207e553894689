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

std::optional<size_t> Timeline::next() const {
  if (!follows_ || pass_.empty() || pass_.size() >= last_pass_.size()) return {};
  return last_pass_[pass_.size()];
}

std::optional<size_t> Timeline::until(size_t chunk) const {
  if (!follows_) return {};
  const auto now = last_pass_.begin() + static_cast<std::ptrdiff_t>(pass_.size());
  if (const auto found = std::find(now, last_pass_.end(), chunk); found != last_pass_.end())
    return static_cast<size_t>(found - now) + 1;
  const auto found = std::find(last_pass_.begin(), now, chunk);
  if (found == now) return {};
  return static_cast<size_t>(last_pass_.end() - now) + static_cast<size_t>(found - last_pass_.begin()) + 1;
}

std::optional<size_t> Timeline::since(size_t chunk) const {
  const auto found = std::find(pass_.rbegin(), pass_.rend(), chunk);
  if (found == pass_.rend()) return {};
  return static_cast<size_t>(found - pass_.rbegin());
}

}  // namespace colossal::memory
