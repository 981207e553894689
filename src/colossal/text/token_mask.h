// Which tokens may come next where a text must be of a grammar.
//
//   auto masks = std::make_shared<text::TokenMasks>(grammar, rule, text::TokenTrie(tokenizer), end_ids);
//   text::TokenWalk walk(masks);
//   while (...) {
//     const std::vector<uint64_t>& allowed = walk.allowed();  // bit id % 64 of word id / 64
//     walk.accept(token);
//   }
#pragma once
#include <bitset>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "colossal/text/grammar.h"
#include "colossal/text/tokenizer.h"

namespace colossal::text {

/// The bytes of a vocabulary's tokens (Tokenizer::piece()) in a tree: tokens that begin alike share the bytes. Special
/// tokens stand for no bytes and are not in it.
class TokenTrie {
 public:
  explicit TokenTrie(const Tokenizer& tokenizer);
  int64_t vocabulary_size() const { return static_cast<int64_t>(pieces_.size()); }
  const std::string& piece(int64_t id) const { return pieces_[id]; }
  /// The bytes that are a token by themselves.
  const std::bitset<256>& alphabet() const { return alphabet_; }

 private:
  friend class TokenMasks;
  /// In the order of a walk that is at a node before its children.
  struct Node {
    uint8_t byte;
    int depth;          // from 1
    int beyond;         // the first node that is not below
    size_t first, end;  // ids_ of its tokens
  };
  std::vector<std::string> pieces_;
  std::vector<Node> nodes_;
  std::vector<int64_t> ids_;
  std::bitset<256> alphabet_;
};

class TokenWalk;

/// There is always an allowed token: bytes that are no token by themselves are never written, also not as a part of
/// one, so that every text that tokens have begun can be ended byte by byte.
/// Cost: allowed() walks the tree the first time that it is asked of a state: milliseconds for 100000 tokens. The masks
///       of at most kMostMasks states are kept.
/// Memory: a walk that finds more than `most_states` states in the machine frees those at which no walk is. The states
///         of start() and next() are valid until then. Thread safety: none.
class TokenMasks {
 public:
  static constexpr size_t kMostMasks = 1024;
  static constexpr int kEnded = -2;  ///< the state after an end token

  static constexpr size_t kMostStates = 16384;

  /// Errors ("grammar"): GrammarMachine's; an end id outside the vocabulary, or none.
  TokenMasks(Grammar grammar, int rule, TokenTrie trie, std::vector<int64_t> end_ids, size_t most_states = kMostStates);
  int64_t vocabulary_size() const { return trie_.vocabulary_size(); }
  int start() const { return machine_.start(); }
  /// Bits of the tokens that may follow; end ids are among them where the text may end, and alone after one. The
  /// reference lives until the next call.
  const std::vector<uint64_t>& allowed(int state);
  /// The state after a token. Errors ("grammar"): a token that is not allowed.
  int next(int state, int64_t token);
  size_t states() const { return machine_.states(); }

 private:
  friend class TokenWalk;
  std::vector<uint64_t> walk(int state);
  void bound_states();

  TokenTrie trie_;
  GrammarMachine machine_;
  std::vector<int64_t> end_ids_;
  std::unordered_map<int, std::vector<uint64_t>> masks_;
  size_t most_states_;
  std::set<TokenWalk*> walks_;  // that there are
};

/// One text on its way through the masks. A copy goes its own way from there.
class TokenWalk {
 public:
  explicit TokenWalk(std::shared_ptr<TokenMasks> masks);
  TokenWalk(const TokenWalk& other);
  TokenWalk& operator=(const TokenWalk&) = delete;
  ~TokenWalk();
  /// As TokenMasks::allowed(): valid until the next call of any walk of these masks.
  const std::vector<uint64_t>& allowed();
  /// Errors ("grammar"): a token that is not allowed.
  void accept(int64_t token);
  int64_t vocabulary_size() const { return masks_->vocabulary_size(); }

 private:
  friend class TokenMasks;
  std::shared_ptr<TokenMasks> masks_;
  int state_;
};

}  // namespace colossal::text
