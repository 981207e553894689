// Which blocks of a paged cache hold what: references, and blocks that keep a prefix for whoever begins with it next.
// Numbers alone; the keys and values lie in a nn::PagedCache.
//
//   BlockPool pool(256, 64);
//   std::vector<int32_t> blocks = pool.find(prompt);     // of the longest prefix that is there, shared
//   if (const auto block = pool.take()) blocks.push_back(*block);
//   pool.keep(blocks, tokens);                           // full ones may be found from now on
//   for (const int32_t block : blocks) pool.give_back(block);
//
// See: Kwon et al. 2023, arXiv:2309.06180 (blocks, references).
#pragma once
#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace colossal::infer {

/// A block is free (nobody refers to it, and it may keep a prefix until it is taken) or has references. Free blocks are
/// taken in the order in which they were given back, those that keep nothing first.
///
/// Prefixes are compared token by token, not by a hash alone: what is found is what was kept.
/// Cost: of find() and keep() a search among the kept blocks for each block of tokens.
class BlockPool {
 public:
  /// Errors ("cache"): sizes that are not positive.
  BlockPool(int64_t blocks, int64_t block_tokens);

  /// A block with one reference; none: all have references.
  std::optional<int32_t> take();
  /// One reference less. Errors ("cache"): a block that has none.
  void give_back(int32_t block);
  /// The blocks of the longest kept prefix of `tokens`, whole blocks that are shorter than it, each with one reference
  /// more: the last token is always left to be computed.
  std::vector<int32_t> find(const std::vector<int64_t>& tokens);
  /// Makes the first blocks of a sequence that begins with `tokens` findable, those that are full. A prefix that others
  /// keep already stays theirs. The first `given_back` of them the sequence no longer has: what they held must be kept
  /// still for those behind to be found.
  void keep(const std::vector<int32_t>& blocks, const std::vector<int64_t>& tokens, int64_t given_back = 0);

  int64_t blocks() const { return static_cast<int64_t>(references_.size()); }
  int64_t block_tokens() const { return block_tokens_; }
  int64_t free() const { return static_cast<int64_t>(free_.size()); }
  int64_t references(int32_t block) const { return references_.at(block); }
  /// Blocks that were needed for fewer than `tokens` tokens held.
  int64_t blocks_for(int64_t tokens) const { return (tokens + block_tokens_ - 1) / block_tokens_; }

 private:
  /// What a kept block stands for: itself, and all before it, by the number that was given to that.
  using Prefix = std::pair<int64_t, std::vector<int64_t>>;
  Prefix prefix_at(int64_t before, const std::vector<int64_t>& tokens, int64_t index) const;
  void forget(int32_t block);

  struct Kept {
    int32_t block;
    int64_t number;  ///< of this prefix, never used again
  };

  int64_t block_tokens_;
  std::vector<int64_t> references_;
  std::list<int32_t> free_;                          // in the order in which they are taken
  std::vector<std::list<int32_t>::iterator> place_;  // of free blocks
  std::map<Prefix, Kept> kept_;
  std::vector<std::map<Prefix, Kept>::iterator> kept_at_;  // of blocks; end: it keeps nothing
  int64_t next_number_ = 1;
};

}  // namespace colossal::infer
