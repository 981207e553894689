#include "colossal/memory/tiers/offline_optimum.h"

#include <algorithm>
#include <limits>
#include <set>
#include <unordered_map>
#include <utility>

namespace colossal::memory {
namespace {

constexpr uint64_t kNever = std::numeric_limits<uint64_t>::max();

/// Returns the events that count.
std::vector<TierEvent> uses_of(const std::vector<TierEvent>& pass) {
  std::vector<TierEvent> uses;
  for (const TierEvent& event : pass)
    if (event.kind == TierEvent::Kind::Set || event.kind == TierEvent::Kind::Borrow ||
        event.kind == TierEvent::Kind::Gone)
      uses.push_back(event);
  return uses;
}

/// Returns for each use after how many other uses its tensor is loaded again, in this pass or the next one of the same
/// order. The value is kNever if it is not, because it is set or gone before.
std::vector<uint64_t> until_borrowed(const std::vector<TierEvent>& uses) {
  std::vector<uint64_t> until(uses.size(), kNever);
  std::unordered_map<size_t, std::pair<uint64_t, TierEvent::Kind>> next;
  for (const uint64_t behind : {uint64_t{uses.size()}, uint64_t{0}})
    for (size_t i = uses.size(); i-- > 0;) {
      const auto found = next.find(uses[i].number);
      if (behind == 0 && found != next.end() && found->second.second == TierEvent::Kind::Borrow)
        until[i] = found->second.first - i;
      next[uses[i].number] = {i + behind, uses[i].kind};
    }
  return until;
}

class Host {
 public:
  explicit Host(int64_t budget) : budget_(budget) {}

  void forget(size_t number) {
    const auto found = here_.find(number);
    if (found == here_.end()) return;
    used_ -= found->second.bytes;
    order_.erase({found->second.next, number});
    here_.erase(found);
  }

  /// Loads all of `bytes`, whose next use is at the time `next`; returns the bytes that were missing.
  int64_t need(size_t number, int64_t bytes, uint64_t next, OptimalPass& pass) {
    const auto found = here_.find(number);
    const int64_t missing = bytes - std::min(bytes, found == here_.end() ? 0 : found->second.bytes);
    forget(number);
    while (used_ + bytes > budget_ && !order_.empty()) let_go(used_ + bytes - budget_, pass);
    used_ += bytes;
    here_[number] = {bytes, bytes, next};
    order_.emplace(next, number);
    return missing;
  }

 private:
  struct Tensor {
    int64_t bytes, of;  // bytes in host memory, and of the complete tensor
    uint64_t next;
  };

  void let_go(int64_t wanted, OptimalPass& pass) {
    const auto last = std::prev(order_.end());
    Tensor& tensor = here_.at(last->second);
    const int64_t leaves = std::min(wanted, tensor.bytes);
    pass.evictions += static_cast<double>(leaves) / static_cast<double>(tensor.of);
    used_ -= leaves;
    tensor.bytes -= leaves;
    if (tensor.bytes > 0) return;
    here_.erase(last->second);
    order_.erase(last);
  }

  const int64_t budget_;
  int64_t used_ = 0;
  std::unordered_map<size_t, Tensor> here_;
  std::set<std::pair<uint64_t, size_t>> order_;  // sorted by the time of the next use
};

}  // namespace

std::vector<OptimalPass> offline_optimum(const std::vector<TierEvent>& pass, int64_t budget, int passes) {
  const std::vector<TierEvent> uses = uses_of(pass);
  const std::vector<uint64_t> until = until_borrowed(uses);
  std::vector<OptimalPass> result(static_cast<size_t>(passes));
  Host host(budget);
  uint64_t now = 0;
  for (OptimalPass& one : result)
    for (size_t i = 0; i < uses.size(); ++i, ++now) {
      const TierEvent& use = uses[i];
      if (use.kind == TierEvent::Kind::Gone) {
        host.forget(use.number);
        continue;
      }
      const uint64_t next = until[i] == kNever ? kNever : now + until[i];
      const int64_t missing = host.need(use.number, use.bytes, next, one);
      if (use.kind == TierEvent::Kind::Borrow) one.bytes_read += missing;
    }
  return result;
}

}  // namespace colossal::memory
