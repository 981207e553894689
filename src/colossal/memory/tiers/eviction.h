// Which tensor leaves a memory that is full: the policies of [memory] placement.
//
//   const std::unique_ptr<memory::Eviction> eviction = memory::make_eviction("auto");
//   if (eviction->key(one) > eviction->key(other)) leave(one.number);   // EvictionQueue asks so of many
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace colossal::memory {

/// A tensor that may leave.
struct Candidate {
  size_t number;                     ///< ascending in the order in which tensors came
  std::optional<uint64_t> next_use;  ///< when it is used again, as far as that is known: greater is later
  uint64_t used;                     ///< when it was used last
};

/// A policy changes what is moved, never a number.
class Eviction {
 public:
  using Key = std::pair<uint64_t, uint64_t>;
  virtual ~Eviction() = default;
  /// Returns the key of `candidate`: the candidate with the greatest key leaves first. The key depends on the argument
  /// alone.
  virtual Key key(const Candidate& candidate) const = 0;
};

/// "auto":   the one that is used again last, or never (Belady 1966, doi:10.1147/sj.52.0078: where all are equally
///           large no other order moves less); of those of which that is not known, the one that was used longest ago,
///           first.
/// "lru":    the one that was used longest ago.
/// "static": the one that came last, so that those that came first stay for good.
/// Errors ("memory"): no such policy.
std::unique_ptr<Eviction> make_eviction(const std::string& name);
std::vector<std::string> eviction_names();

}  // namespace colossal::memory
