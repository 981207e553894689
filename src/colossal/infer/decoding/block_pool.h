// Tracks the blocks of a paged KV cache: their reference counts, and the prefixes that cached blocks hold for reuse.
// The pool handles block numbers only; a nn::PagedCache stores the keys and values.
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
#include <string>
#include <utility>
#include <vector>

namespace colossal::infer {

/// A pool of reference-counted cache blocks. A block either has references or is free. A free block may still hold a
/// cached prefix, until take() returns it. take() returns blocks without a prefix first, of these the one freed last.
/// Among blocks with a prefix it returns the one freed first.
///
/// Prefixes are compared token by token, not only by a hash, so find() never returns a block of other tokens. Each key
/// has prefixes of its own: find() never returns a block that was cached under another key.
/// Cost: find() and keep() search the cached blocks once for each block of tokens. The pool remembers every key that it
/// was given.
class BlockPool {
 public:
  /// Errors ("cache"): sizes that are not positive.
  BlockPool(int64_t blocks, int64_t block_tokens);

  /// Returns a block with one reference, or none if all blocks have references.
  std::optional<int32_t> take();
  /// Drops one reference; without references the block is free. Errors ("cache"): a block without references.
  void give_back(int32_t block);
  /// Returns the blocks of the longest prefix of `tokens` that is cached under `key`, and adds a reference to each. The
  /// prefix consists of full blocks and is shorter than `tokens`, because the last token must always be computed.
  std::vector<int32_t> find(const std::vector<int64_t>& tokens, const std::string& key = {});
  /// Caches the full blocks of a sequence that starts with `tokens`, so that find() returns them for the same key. If
  /// another block already caches the same prefix under `key`, that block stays. The sequence has already freed its
  /// first `given_back` blocks: the later ones are cached only if the prefixes of the freed ones still are.
  void keep(const std::vector<int32_t>& blocks, const std::vector<int64_t>& tokens, int64_t given_back = 0,
            const std::string& key = {});

  int64_t blocks() const { return static_cast<int64_t>(references_.size()); }
  int64_t block_tokens() const { return block_tokens_; }
  int64_t free() const { return static_cast<int64_t>(free_.size()); }
  int64_t references(int32_t block) const { return references_.at(block); }
  /// Returns the number of blocks that are needed to hold `tokens` tokens.
  int64_t blocks_for(int64_t tokens) const { return (tokens + block_tokens_ - 1) / block_tokens_; }

 private:
  /// Identifies a cached block: the number of the prefix before it, and its own tokens. For the first block of a
  /// sequence, that number is the one of the sequence's key in roots_ (0 for the empty key).
  using Prefix = std::pair<int64_t, std::vector<int64_t>>;
  Prefix prefix_at(int64_t before, const std::vector<int64_t>& tokens, int64_t index) const;
  void forget(int32_t block);

  struct Kept {
    int32_t block;
    int64_t number;  ///< unique number of this prefix
  };

  int64_t block_tokens_;
  std::vector<int64_t> references_;
  std::list<int32_t> free_;                          // free blocks in the order in which take() returns them
  std::vector<std::list<int32_t>::iterator> place_;  // iterator into free_ of each free block
  std::map<std::string, int64_t> roots_{{"", 0}};    // number of each key, distinct from those of prefixes
  std::map<Prefix, Kept> kept_;
  std::vector<std::map<Prefix, Kept>::iterator> kept_at_;  // by block; end() = no cached prefix
  int64_t next_number_ = 1;
};

}  // namespace colossal::infer
