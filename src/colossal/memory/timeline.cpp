#include "colossal/memory/timeline.h"

#include <algorithm>
#include <utility>

namespace colossal::memory {

void Timeline::used(size_t chunk) {
  const bool followed = follows_;
  follows_ = follows_ && pass_.size() < last_pass_.size() && last_pass_[pass_.size()] == chunk;
  if (followed != follows_) ++revision_;
  if (uses_.size() <= chunk) uses_.resize(chunk + 1);
  uses_[chunk].push_back(pass_.size());
  pass_.push_back(chunk);
}

void Timeline::end_pass() {
  before_ += pass_.size();
  const bool is_whole = follows_ && (pass_.empty() || pass_.size() == last_pass_.size());
  if (!is_whole) ++revision_;
  if (!follows_) last_pass_ = std::move(pass_), last_uses_ = std::move(uses_), ++orders_;
  pass_.clear();
  uses_.clear();
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

std::optional<size_t> Timeline::ahead(size_t steps) const {
  if (!follows_ || last_pass_.empty() || steps == 0 || steps > last_pass_.size()) return {};
  return last_pass_[(pass_.size() + steps - 1) % last_pass_.size()];
}

std::optional<size_t> Timeline::until(size_t chunk) const {
  const auto next = next_use(chunk);
  if (!next) return {};
  return static_cast<size_t>(*next - before_) - pass_.size() + 1;
}

std::optional<uint64_t> Timeline::next_use(size_t chunk) const {
  if (!follows_ || chunk >= last_uses_.size() || last_uses_[chunk].empty()) return {};
  const std::vector<size_t>& uses = last_uses_[chunk];
  const auto next = std::lower_bound(uses.begin(), uses.end(), pass_.size());
  return before_ + (next != uses.end() ? *next : uses.front() + last_pass_.size());
}

std::optional<size_t> Timeline::since(size_t chunk) const {
  if (chunk >= uses_.size() || uses_[chunk].empty()) return {};
  return pass_.size() - 1 - uses_[chunk].back();
}

}  // namespace colossal::memory
