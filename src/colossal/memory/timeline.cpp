#include "colossal/memory/timeline.h"

#include <algorithm>
#include <utility>

namespace colossal::memory {

namespace {

constexpr size_t kMaxSkipped = 16, kMaxPassedOver = 32;

}  // namespace

/// Moves place_ past this use of `chunk`. Returns false if the rest of the pass is not predicted.
bool Timeline::finds_place(size_t chunk) {
  if (place_ < last_pass_.size() && last_pass_[place_] == chunk) {
    ++place_;
    passed_over_ = 0;
    return true;
  }
  is_exact_ = false;
  if (!resumes_ || last_pass_.empty()) return false;
  if (chunk < last_uses_.size()) {
    const std::vector<size_t>& uses = last_uses_[chunk];
    const auto next = std::lower_bound(uses.begin(), uses.end(), place_);
    if (next != uses.end() && *next - place_ <= kMaxSkipped) {
      place_ = *next + 1;
      passed_over_ = 0;
      ++revision_;  // the next uses of the skipped chunks have changed
      return true;
    }
  }
  return ++passed_over_ <= kMaxPassedOver;
}

void Timeline::used(size_t chunk) {
  if (follows_ && !finds_place(chunk)) {
    follows_ = false;
    ++revision_;
  }
  if (uses_.size() <= chunk) uses_.resize(chunk + 1);
  uses_[chunk].push_back(pass_.size());
  pass_.push_back(chunk);
}

void Timeline::end_pass() {
  before_ += pass_.size();
  const bool is_equal = follows_ && is_exact_;
  if (!is_equal || !(pass_.empty() || pass_.size() == last_pass_.size())) ++revision_;
  if (!is_equal) last_pass_ = std::move(pass_), last_uses_ = std::move(uses_), ++orders_;
  begin_pass();
}

void Timeline::restart_pass() {
  if (pass_.empty()) return;
  ++revision_;  // next uses count from the beginning again
  begin_pass();
}

void Timeline::begin_pass() {
  pass_.clear();
  uses_.clear();
  follows_ = is_exact_ = true;
  place_ = passed_over_ = 0;
}

std::optional<size_t> Timeline::back(size_t steps) const {
  if (pass_.size() < steps) return {};
  return pass_[pass_.size() - steps];
}

std::optional<size_t> Timeline::next() const {
  if (!follows_ || pass_.empty() || place_ >= last_pass_.size()) return {};
  return last_pass_[place_];
}

std::optional<size_t> Timeline::ahead(size_t steps) const {
  if (!follows_ || last_pass_.empty() || steps == 0 || steps > last_pass_.size()) return {};
  return last_pass_[(place_ + steps - 1) % last_pass_.size()];
}

std::optional<size_t> Timeline::until(size_t chunk) const {
  const auto next = next_use(chunk);
  if (!next) return {};
  return static_cast<size_t>(*next - before_) - place_ + 1;
}

std::optional<uint64_t> Timeline::next_use(size_t chunk) const {
  if (!follows_ || chunk >= last_uses_.size() || last_uses_[chunk].empty()) return {};
  const std::vector<size_t>& uses = last_uses_[chunk];
  const auto next = std::lower_bound(uses.begin(), uses.end(), place_);
  return before_ + (next != uses.end() ? *next : uses.front() + last_pass_.size());
}

std::optional<size_t> Timeline::since(size_t chunk) const {
  if (chunk >= uses_.size() || uses_[chunk].empty()) return {};
  return pass_.size() - 1 - uses_[chunk].back();
}

}  // namespace colossal::memory
