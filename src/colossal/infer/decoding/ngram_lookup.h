// Prompt lookup: proposes the next tokens of a sequence from the sequence itself. It searches for an earlier occurrence
// of the last tokens and proposes the tokens that followed there. Completions that quote, edit or repeat their prompt
// (code, summaries, forms) contain long copied runs of tokens. A model reads several tokens at once for little more
// than the cost of one.
//
//   infer::NgramLookup lookup(prompt, 8);
//   const std::vector<int64_t> drafted = lookup.propose(8);
//   lookup.judge(drafted.size(), accepted);      // as the model finds
//   lookup.push(token);                          // each token that the text goes on with
//
// See: Saxena 2023 (prompt lookup decoding); Leviathan et al. 2023, arXiv:2211.17192, on draft tokens that a model
// verifies.
#pragma once
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace colossal::infer {

/// Proposes draft tokens for one sequence.
///
/// Cost: a few hash lookups per token, and as many entries of memory.
/// Thread safety: none. Proposals are deterministic: ranks that make the same calls get the same tokens.
class NgramLookup {
 public:
  /// `max_tokens` is the maximum number of tokens per proposal.
  NgramLookup(const std::vector<int64_t>& tokens, int64_t max_tokens);

  /// Returns the tokens that followed the last earlier occurrence of the sequence's last four, three or two tokens.
  /// Returns 0 to `max_tokens` tokens. Proposals get longer after correct ones and shorter after wrong ones.
  /// If no token of a proposal was correct, the next calls, up to 32, return none.
  std::vector<int64_t> propose(int64_t max_tokens);
  /// Reports that the model accepted the first `accepted` of the `proposed` tokens of the last proposal.
  void judge(int64_t proposed, int64_t accepted);
  void push(int64_t token);

 private:
  static constexpr size_t kMinNgram = 2, kMaxNgram = 4;
  uint64_t hash_of_last(size_t count) const;

  std::vector<int64_t> tokens_;
  // Maps the hash of a run of tokens to the index after its last occurrence, if a token follows there.
  std::unordered_map<uint64_t, size_t> behind_;
  int64_t max_tokens_, length_;
  int64_t pause_ = 0, left_out_ = 0;
};

}  // namespace colossal::infer
