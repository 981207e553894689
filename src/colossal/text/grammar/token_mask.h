// Masks of the tokens that may come next, for a text that must follow a grammar.
//
//   const auto trie = std::make_shared<const text::TokenTrie>(tokenizer);
//   const auto grammar = text::token_grammar(made.grammar, made.rule, trie);
//   auto masks = std::make_shared<text::TokenMasks>(grammar, end_ids);
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
/// Special tokens stand for no bytes and are not in the trie. It does not change, so several threads may share it.
/// Cost: 0.1 s for 100000 tokens.
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

/// A grammar for the tokens of one vocabulary. It does not change, so several threads may share it.
struct TokenGrammar {
  std::shared_ptr<const Grammar> grammar;  ///< pruned for the bytes of the vocabulary
  int rule;
  std::shared_ptr<const TokenTrie> trie;
};

/// Prepares a grammar for a vocabulary. Errors ("grammar"): errors of Grammar::prune() and of GrammarMachine, so that
/// they are raised before masks are made.
TokenGrammar token_grammar(Grammar grammar, int rule, std::shared_ptr<const TokenTrie> trie);

/// Bounds of the work for one grammar. Both are counted, not timed, so that all ranks reach them at the same token.
struct MaskLimits {
  /// maximum number of steps of one mask (GrammarMachine::steps), with TokenMasks::kStateSteps more for each state that
  /// the walk goes on from; 2^19 steps take about 0.1 s
  int64_t steps = int64_t{1} << 19;
  /// maximum number of bytes of the machine (GrammarMachine::bytes) before a byte is read. Reading it adds at most
  /// 8 MiB, so that a machine takes at most 64 MiB
  int64_t bytes = int64_t{56} << 20;
};

class TokenWalk;

/// The token masks of all states of a grammar. At least one token is always allowed. A byte that is not itself a token
/// is never written, not even within a longer token, so any text can be completed byte by byte.
///
/// Cost:   The first call of allowed() for a state walks the trie: milliseconds for 100000 tokens. The masks of at most
///         kMaxMasks states are kept.
/// Memory: If a TokenWalk finds more than half of MaskLimits::bytes in the machine, it frees the states that no
///         TokenWalk is at. The states of start() and next() are valid until then.
/// Limits: a mask beyond MaskLimits is an error of its request. is_exhausted() is true afterwards: the caller makes new
///         TokenMasks for further requests (infer::SchemaCache does). Other requests continue with these.
///         The steps of a mask depend on its text only, not on the masks that were computed before. Its bytes are
///         counted again without the states that no TokenWalk is at before they are an error.
/// Thread safety: none. Masks of several threads may share a TokenGrammar.
class TokenMasks {
 public:
  static constexpr size_t kMaxMasks = 1024;
  static constexpr int kEnded = -2;  ///< the state after an end token
  static constexpr int64_t kStateSteps = 32;

  /// Errors ("grammar"): no end id, or an end id outside the vocabulary.
  TokenMasks(TokenGrammar grammar, std::vector<int64_t> end_ids, const MaskLimits& limits = {});
  int64_t vocabulary_size() const { return grammar_.trie->vocabulary_size(); }
  int start() const { return machine_.start(); }
  /// Returns the bits of the tokens that may follow. End ids are included if the text may end here; after an end token
  /// they are the only ones. The reference is valid until the next call.
  /// Errors ("grammar"): a mask beyond the limits.
  const std::vector<uint64_t>& allowed(int state);
  /// Returns the state after a token. Errors ("grammar"): a token that is not allowed.
  int next(int state, int64_t token);
  size_t states() const { return machine_.states(); }
  /// Returns the number of bytes of machine and masks.
  int64_t bytes() const;
  /// Returns the number of steps that the mask of allowed(state) took when it was computed. allowed() must have been
  /// called for the state.
  int64_t steps(int state) const { return masks_.at(state).steps; }
  /// Returns true after a mask beyond the limits.
  bool is_exhausted() const { return is_exhausted_; }

 private:
  friend class TokenWalk;
  struct Mask {
    std::vector<uint64_t> bits;
    int64_t steps = 0;
  };
  using Counted = std::vector<std::bitset<256>>;  // by state, the bytes whose steps a mask has counted
  Mask mask_of(int state);
  int counted_next(int state, uint8_t byte, Counted& counted, int64_t& steps);
  bool is_full() const { return machine_.bytes() > limits_.bytes; }
  void free_states();

  TokenGrammar grammar_;
  GrammarMachine machine_;
  std::vector<int64_t> end_ids_;
  MaskLimits limits_;
  int64_t free_at_;  // bytes of the machine from which states are freed
  std::unordered_map<int, Mask> masks_;
  std::set<TokenWalk*> walks_;  // all existing walks
  bool is_exhausted_ = false;
};

/// The state of one text while it is written. A copy continues independently.
class TokenWalk {
 public:
  explicit TokenWalk(std::shared_ptr<TokenMasks> masks);
  TokenWalk(const TokenWalk& other);
  TokenWalk& operator=(const TokenWalk&) = delete;
  ~TokenWalk();
  /// Returns the bits of TokenMasks::allowed(). The reference is valid until the next call on any walk of the same
  /// masks. Errors ("grammar"): a mask beyond the limits, also because of the states of other walks.
  const std::vector<uint64_t>& allowed();
  /// Returns the number of steps of the mask that allowed() returned last.
  int64_t steps() const { return masks_->steps(state_); }
  /// Advances the state. Errors ("grammar"): a token that is not allowed.
  void accept(int64_t token);
  int64_t vocabulary_size() const { return masks_->vocabulary_size(); }

 private:
  friend class TokenMasks;
  std::shared_ptr<TokenMasks> masks_;
  int state_;
};

}  // namespace colossal::text
