// Answers that wait for a score: their ids, the scores that have arrived, and a fault. Scorers have one.
//
//   WaitingScores waiting;
//   waiting.add("3/0/1");
//   waiting.set({.id = "3/0/1", .score = {.value = 1}});
//   waiting.take();                                    // the score
#pragma once
#include <cstddef>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "colossal/align/rewards/scorer.h"
#include "colossal/base/error.h"

namespace colossal::align {

/// The bookkeeping of a Scorer. After fail() it has a fault, which the next take() without scores throws; until then
/// the answers without a score still count.
class WaitingScores {
 public:
  /// Adds an answer. Returns false if there is a fault: the answer is forgotten with the others. Errors ("reward"): an
  /// id that waits already.
  bool add(const std::string& id);
  /// Adds the score of an answer that waits and has none.
  void set(Scored scored) { scored_.push_back(std::move(scored)); }
  /// Sets the fault, unless there is one. The scorer stops its work on answers without a score.
  void fail(Error error);
  bool has_fault() const { return fault_.has_value(); }
  /// Returns true if take() would not return an empty list.
  bool has_news() const { return has_fault() || !scored_.empty(); }
  /// Returns the scores that have arrived. Errors: if there are none, the fault; all answers are then forgotten, and
  /// there is no fault any more.
  std::vector<Scored> take();
  /// Forgets all answers and the fault.
  void clear();
  /// Returns the number of answers that take() has not returned or forgotten.
  size_t count() const { return ids_.size(); }

 private:
  std::set<std::string> ids_;
  std::vector<Scored> scored_;
  std::optional<Error> fault_;
};

}  // namespace colossal::align
