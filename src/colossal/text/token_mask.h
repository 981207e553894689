// Which tokens may come next where a text must be of a grammar.
//
//   text::TokenMasks masks(grammar, rule, text::TokenTrie(tokenizer), end_ids);
//   int state = masks.start();
//   while (...) {
//     const std::vector<uint64_t>& allowed = masks.allowed(state);  // bit id % 64 of word id / 64
//     state = masks.next(state, token);
//   }
#pragma once
#include <bitset>
#include <cstdint>
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

/// There is always an allowed token: bytes that are no token by themselves are never written, also not as a part of
/// one, so that every text that tokens have begun can be ended byte by byte.
/// Cost: allowed() walks the tree the first time that it is asked of a state: milliseconds for 100000 tokens. The masks
///       of at most kMostMasks states are kept. Thread safety: none.
class TokenMasks {
 public:
  static constexpr size_t kMostMasks = 1024;
  static constexpr int kEnded = -2;  ///< the state after an end token

  /// Errors ("grammar"): GrammarMachine's; an end id outside the vocabulary, or none.
  TokenMasks(Grammar grammar, int rule, TokenTrie trie, std::vector<int64_t> end_ids);
  int64_t vocabulary_size() const { return trie_.vocabulary_size(); }
  int start() const { return machine_.start(); }
  /// Bits of the tokens that may follow; end ids are among them where the text may end, and alone after one. The
  /// reference lives until the next call.
  const std::vector<uint64_t>& allowed(int state);
  /// The state after a token. Errors ("grammar"): a token that is not allowed.
  int next(int state, int64_t token);

 private:
  std::vector<uint64_t> walk(int state);

  TokenTrie trie_;
  GrammarMachine machine_;
  std::vector<int64_t> end_ids_;
  std::unordered_map<int, std::vector<uint64_t>> masks_;
};

}  // namespace colossal::text
