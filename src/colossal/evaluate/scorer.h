// The interface of an evaluation to a model: log-probabilities of given tokens, and answers. Tests implement it without
// a model.
//
//   evaluate::EngineScorer scorer(*saved.model, {}, *saved.tokenizer, saved.end_ids, "fp32");
//   const std::vector<evaluate::Score> scores = scorer.score({{{1, 403}, {407}}});
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace colossal::evaluate {

/// Token ids: what a model reads, and what it is scored on. Both have at least one id.
struct Pair {
  std::vector<int64_t> context, continuation;
};

struct Score {
  double sum;      ///< natural logarithm of the probability of the continuation after its context
  bool is_greedy;  ///< each of its tokens is the most probable one; of equal ones the lower id counts
};

struct Prompt {
  std::vector<int64_t> ids;
  std::vector<std::string> until;  ///< strings that end the answer and are not part of it
  int64_t max_tokens;
};

class Scorer {
 public:
  virtual ~Scorer() = default;
  /// Returns the score of each pair, at most max_length() + 1 ids long. Pairs that follow each other and begin equally
  /// may share work.
  virtual std::vector<Score> score(const std::vector<Pair>& pairs) = 0;
  /// Returns the greedy answer to each prompt, as text.
  virtual std::vector<std::string> generate(const std::vector<Prompt>& prompts) = 0;
  /// Returns the maximum number of tokens that the model reads.
  virtual int64_t max_length() const = 0;
  /// Returns the name of the dtype that the model computes in: "fp32".
  virtual std::string dtype() const = 0;
};

}  // namespace colossal::evaluate
