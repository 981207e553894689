#include "colossal/memory/use_order.h"

#include <utility>

namespace colossal::memory {

void UseOrder::used(size_t chunk) {
  follows_ = follows_ && pass_.size() < last_pass_.size() && last_pass_[pass_.size()] == chunk;
  pass_.push_back(chunk);
}

std::optional<size_t> UseOrder::next() const {
  if (!follows_ || pass_.empty() || pass_.size() >= last_pass_.size()) return {};
  return last_pass_[pass_.size()];
}

void UseOrder::end_pass() {
  if (!follows_) last_pass_ = std::move(pass_);
  pass_.clear();
  follows_ = true;
}

}  // namespace colossal::memory
