// What a text may go on with, guessed from what it has said before: where its last tokens stood earlier, those that
// followed them there. Answers that quote, edit or repeat what they were asked (code, summaries, forms) say long runs
// of it again, and a model that reads several tokens at once costs little more than with one.
//
//   infer::NgramLookup lookup(prompt, 8);
//   const std::vector<int64_t> guessed = lookup.propose(8);
//   lookup.judge(guessed.size(), accepted);      // as the model finds
//   lookup.push(token);                          // each token that the text goes on with
//
// See: Saxena 2023 (prompt lookup decoding); Leviathan et al. 2023, arXiv:2211.17192, on guesses that a model judges.
#pragma once
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace colossal::infer {

/// Cost: a few hash lookups a token, and as many entries of memory.
/// Thread safety: none. It draws nothing: ranks that are told the same guess the same.
class NgramLookup {
 public:
  /// `most`: tokens that are guessed at a time.
  NgramLookup(const std::vector<int64_t>& tokens, int64_t most);

  /// The tokens that followed the last place where the text had its last four, three or two tokens; at most `most` of
  /// them, perhaps none. After guesses that were right they get longer, after wrong ones shorter; where none of a guess
  /// was right the next ones, up to 32, are left out.
  std::vector<int64_t> propose(int64_t most);
  /// How many of those that were proposed last the text went on with.
  void judge(int64_t proposed, int64_t accepted);
  void push(int64_t token);

 private:
  static constexpr size_t kShortest = 2, kLongest = 4;
  uint64_t hash_of_last(size_t count) const;

  std::vector<int64_t> tokens_;
  std::unordered_map<uint64_t, size_t>
      behind_;  // by runs of tokens: the place behind the last one that something follows
  int64_t most_, length_;
  int64_t pause_ = 0, left_out_ = 0;
};

}  // namespace colossal::infer
