// Masks of the tokens that may come next, for a text that must follow a grammar.
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

#include "colossal/text/grammar/grammar.h"
#include "colossal/text/tokenizer.h"

namespace colossal::text {

/// The bytes of a vocabulary's tokens (Tokenizer::piece()) as a trie: tokens with a common start share its nodes.
/// Special tokens stand for no bytes and are not in the trie.
class TokenTrie {
 public:
  explicit TokenTrie(const Tokenizer& tokenizer);
  int64_t vocabulary_size() const { return static_cast<int64_t>(pieces_.size()); }
  const std::string& piece(int64_t id) const { return pieces_[id]; }
  /// Returns the bytes that are themselves tokens.
  const std::bitset<256>& alphabet() const { return alphabet_; }

 private:
  friend class TokenMasks;
  /// Nodes are stored in preorder: a node precedes its children.
  struct Node {
    uint8_t byte;
    int depth;          // number of bytes from the root, from 1
    int beyond;         // index of the first node after the subtree
    size_t first, end;  // range of its tokens in ids_
  };
  std::vector<std::string> pieces_;
  std::vector<Node> nodes_;
  std::vector<int64_t> ids_;
  std::bitset<256> alphabet_;
};

class TokenWalk;

/// The token masks of all states of a grammar. At least one token is always allowed. A byte that is not itself a token
/// is never written, not even within a longer token, so any text can be completed byte by byte.
///
/// Cost:   The first call of allowed() for a state walks the trie: milliseconds for 100000 tokens. The masks of at most
///         kMaxMasks states are kept.
/// Memory: If a TokenWalk finds more than `max_states` states in the machine, it frees those that no TokenWalk is at.
///         The states of start() and next() are valid until then.
/// Thread safety: none.
class TokenMasks {
 public:
  static constexpr size_t kMaxMasks = 1024;
  static constexpr int kEnded = -2;  ///< the state after an end token

  static constexpr size_t kMaxStates = 16384;

  /// Errors ("grammar"): as GrammarMachine; no end id, or an end id outside the vocabulary.
  TokenMasks(Grammar grammar, int rule, TokenTrie trie, std::vector<int64_t> end_ids, size_t max_states = kMaxStates);
  int64_t vocabulary_size() const { return trie_.vocabulary_size(); }
  int start() const { return machine_.start(); }
  /// Returns the bits of the tokens that may follow. End ids are included if the text may end here; after an end token
  /// they are the only ones. The reference is valid until the next call.
  const std::vector<uint64_t>& allowed(int state);
  /// Returns the state after a token. Errors ("grammar"): a token that is not allowed.
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
  size_t max_states_;
  std::set<TokenWalk*> walks_;  // all existing walks
};

/// The state of one text while it is written. A copy continues independently.
class TokenWalk {
 public:
  explicit TokenWalk(std::shared_ptr<TokenMasks> masks);
  TokenWalk(const TokenWalk& other);
  TokenWalk& operator=(const TokenWalk&) = delete;
  ~TokenWalk();
  /// Returns the bits of TokenMasks::allowed(). The reference is valid until the next call on any walk of the same
  /// masks.
  const std::vector<uint64_t>& allowed();
  /// Advances the state. Errors ("grammar"): a token that is not allowed.
  void accept(int64_t token);
  int64_t vocabulary_size() const { return masks_->vocabulary_size(); }

 private:
  friend class TokenMasks;
  std::shared_ptr<TokenMasks> masks_;
  int state_;
};

}  // namespace colossal::text
