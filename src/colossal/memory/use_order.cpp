#include "colossal/memory/use_order.h"

#include <utility>

namespace colossal::memory {

void UseOrder::used(size_t chunk, bool grad_mode) {
  if (!current_) trains_ = grad_mode;
  current_ = chunk;
  if (!trains_) return;
  follows_ = follows_ && pass_.size() < last_pass_.size() && last_pass_[pass_.size()] == chunk;
  pass_.push_back(chunk);
}

std::optional<size_t> UseOrder::next() const {
  if (!current_) return {};
  if (!trains_) return *current_ + 1 < chunks_ ? std::optional(*current_ + 1) : std::nullopt;
  return follows_ && pass_.size() < last_pass_.size() ? std::optional(last_pass_[pass_.size()]) : std::nullopt;
}

void UseOrder::end_pass() {
  if (trains_ && current_) last_pass_ = std::move(pass_);
  pass_.clear();
  current_.reset();
  trains_ = false;
  follows_ = true;
}

}  // namespace colossal::memory
