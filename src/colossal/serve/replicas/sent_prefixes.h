// Remembers which prefixes of prompts a replica was sent.
//
//   const serve::PrefixHasher hasher;
//   const std::vector<uint64_t> blocks = hasher.blocks_of(prompt, cache_key);
//   serve::SentPrefixes sent(65536);
//   sent.remember(blocks);
//   sent.shared(blocks);                     // blocks.size()
#pragma once
#include <cstddef>
#include <cstdint>
#include <list>
#include <string>
#include <unordered_map>
#include <vector>

#include "colossal/comm/seal.h"

namespace colossal::serve {

/// Hashes the blocks of prompts under a random key, so that clients cannot make prompts whose hashes are equal. Thread
/// safe.
class PrefixHasher {
 public:
  static constexpr int64_t kBlockTokens = 64;

  PrefixHasher();
  /// Returns one hash per full block of kBlockTokens tokens. A hash is of the cache key and of all tokens up to the end
  /// of its block, so equal hashes mean equal prefixes. Cost: about a nanosecond per byte of the prompt.
  std::vector<uint64_t> blocks_of(const std::vector<int64_t>& prompt, const std::string& cache_key) const;

 private:
  comm::HashKey key_;
};

/// A bounded set of blocks. The least recently used ones are dropped first; of one prefix, the last ones.
/// Memory: about 100 bytes per block. Thread safety: none.
class SentPrefixes {
 public:
  /// `max_blocks` is the maximum number of blocks that are remembered.
  explicit SentPrefixes(size_t max_blocks) : max_blocks_(max_blocks) {}
  SentPrefixes(SentPrefixes&&) = default;  // no copies, because places_ points into in_order_

  /// Returns the number of blocks of the longest remembered prefix of `blocks`.
  int64_t shared(const std::vector<uint64_t>& blocks) const;
  void remember(const std::vector<uint64_t>& blocks);
  size_t size() const { return places_.size(); }

 private:
  const size_t max_blocks_;
  std::list<uint64_t> in_order_;  // the most recently used first
  std::unordered_map<uint64_t, std::list<uint64_t>::iterator> places_;
};

}  // namespace colossal::serve
