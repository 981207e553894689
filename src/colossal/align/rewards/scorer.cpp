#include "colossal/align/rewards/scorer.h"

#include <unordered_map>

#include "colossal/base/error.h"

namespace colossal::align {

void Scorer::check(const text::PromptLine&) {}

std::vector<Score> scores_of(Scorer& scorer, const std::vector<Answer>& answers) {
  require(scorer.waiting() == 0, "reward", "no answer may wait: got ", scorer.waiting(), "; take their scores first");
  std::unordered_map<std::string, size_t> places;
  for (size_t i = 0; i < answers.size(); ++i)
    require(places.emplace(answers[i].id, i).second, "reward", "the ids of answers must differ: got ", answers[i].id,
            " twice");
  for (const Answer& answer : answers) scorer.add(answer);
  std::vector<Score> scores(answers.size());
  while (scorer.waiting() > 0)
    for (Scored& one : scorer.take(std::numeric_limits<double>::infinity()))
      scores[places.at(one.id)] = std::move(one.score);
  return scores;
}

}  // namespace colossal::align
