#include "colossal/align/rewards/scorer.h"

#include <unordered_map>

#include "colossal/base/error.h"

namespace colossal::align {

std::vector<Score> scores_of(Scorer& scorer, const std::vector<Answer>& answers) {
  require(scorer.waiting() == 0, "reward", "no answer may wait: got ", scorer.waiting(), "; take their scores first");
  std::unordered_map<std::string, size_t> places;
  for (size_t i = 0; i < answers.size(); ++i) {
    places[answers[i].id] = i;
    scorer.add(answers[i]);
  }
  std::vector<Score> scores(answers.size());
  while (scorer.waiting() > 0)
    for (Scored& one : scorer.take(std::numeric_limits<double>::infinity()))
      scores[places.at(one.id)] = std::move(one.score);
  return scores;
}

}  // namespace colossal::align
