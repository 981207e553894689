// Eviction policies: the tensor that is evicted from full memory, by [memory] placement.
//
//   const std::unique_ptr<memory::EvictionPolicy> policy = memory::make_eviction_policy("auto");
//   if (policy->key(one) > policy->key(other)) leave(one.number);   // EvictionQueue orders many by their keys
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace colossal::memory {

/// A tensor that may be evicted.
struct Candidate {
  size_t number;                     ///< number of the tensor, ascending in the order in which tensors were stored
  std::optional<uint64_t> next_use;  ///< time of its next use, greater is later; none: not predicted
  uint64_t used;                     ///< time of its last use
};

/// An eviction policy. It changes which tensors are moved, never a computed value.
class EvictionPolicy {
 public:
  using Key = std::pair<uint64_t, uint64_t>;
  virtual ~EvictionPolicy() = default;
  /// Returns the key of `candidate`: the candidate with the greatest key is evicted first. The key depends on the
  /// argument alone.
  virtual Key key(const Candidate& candidate) const = 0;
};

/// Returns the policy of that name, by which a tensor is evicted first:
///
/// "auto":   the one whose next use is the farthest, or that has none (Belady 1966, doi:10.1147/sj.52.0078: if all
///           tensors have one size, no other order moves fewer bytes). Tensors without a predicted use come first, the
///           least recently used one of them first.
/// "lru":    the least recently used one.
/// "static": the one that was stored last, so that the earliest ones are resident.
///
/// Errors ("memory"): an unknown name.
std::unique_ptr<EvictionPolicy> make_eviction_policy(const std::string& name);
std::vector<std::string> eviction_policy_names();

}  // namespace colossal::memory
