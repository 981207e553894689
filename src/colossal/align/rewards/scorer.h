// Scores of answers: the interface of verifiers, commands and functions of a caller that judge what a model has
// written.
//
//   CommandScorer scorer({.command = {"python3", "score.py"}});
//   scorer.add({.id = "12/3/5", .line = line, .completion = {.text = "11234569\n", .tokens = 9}});
//   while (scorer.waiting() > 0)
//     for (const Scored& one : scorer.take(1)) keep(one.id, one.score);
#pragma once
#include <cstddef>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "colossal/text/verifiers/verifier.h"

namespace colossal::align {

/// An answer that gets a score.
struct Answer {
  std::string id{};                                ///< different from those of all answers that wait
  std::shared_ptr<const text::PromptLine> line{};  ///< the line that it answers
  text::Completion completion{};
  std::string where{};  ///< where the answer is stored, for messages; empty = nowhere
};

/// The score of an answer.
struct Score {
  std::optional<double> value{};                        ///< finite; none = the answer has no score
  std::vector<std::pair<std::string, double>> parts{};  ///< named scores, which become metrics
  std::string text{};                                   ///< the scorer's words; after a fault its message
  bool is_fault = false;                                ///< true = a fault took the place of the score
};

struct Scored {
  std::string id;
  Score score;
};

/// A judge of answers. It works on the answers that it was given while others are drawn: a caller that polls it with
/// take(0) between its own steps waits for little in the end.
///
/// The order in which scores arrive may differ between two runs, but not the scores: a caller assigns them by id.
/// Thread safety: none. The thread that makes a scorer calls it, and must not end before it.
class Scorer {
 public:
  virtual ~Scorer() = default;
  /// Checks that a line of the data has what the scorer reads of it. Default: it reads nothing by name.
  /// Errors: those of text::Verifier::check(), which name member, verifier and line.
  virtual void check(const text::PromptLine& line);
  /// Adds an answer. Does not wait. Errors ("reward"): an id that waits already. take() throws all other errors.
  virtual void add(Answer answer) = 0;
  /// Works, and returns the scores that have arrived since the last call, each answer once. It waits at most `seconds`
  /// for the first score, and not at all if no answer waits.
  /// Errors: those of the implementation. An error comes after all scores that arrived before it, so they are never
  /// lost. No answer waits after it: the others are forgotten, also those that were added after the fault. The scorer
  /// can be used again at once.
  virtual std::vector<Scored> take(double seconds) = 0;
  /// Forgets all answers that wait, and ends the work on them. Their scores are ignored if they arrive later.
  virtual void forget() = 0;
  /// Returns the number of answers that take() has not returned.
  virtual size_t waiting() const = 0;
};

/// Adds the answers, and returns their scores in this order. No answer may wait. Errors: those of the scorer; no answer
/// waits then.
std::vector<Score> scores_of(Scorer& scorer, const std::vector<Answer>& answers);

}  // namespace colossal::align
