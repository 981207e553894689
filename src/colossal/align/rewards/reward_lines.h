// The lines of JSON between a run and the programs and functions that score answers.
//
//   {"answer": "12", "completion": "It is 12.", "id": "3/0/1", "prompt": "5 + 7 ="}    to them
//   {"id": "3/0/1", "score": 1, "scores": {"style": 0.5}, "text": "right"}             from them
#pragma once
#include <cstddef>
#include <string>

#include "colossal/align/rewards/scorer.h"

namespace colossal::align {

inline constexpr size_t kMaxRewardLine = size_t{1} << 20;  ///< bytes of a line from a program or function

/// Returns the line for an answer, with its newline: the members of the data line, with `id` and `completion` of the
/// answer. Members of the data line with these two names are left out. Bytes that are not UTF-8 become U+FFFD.
std::string line_to_scorer(const Answer& answer);

/// Reads a line without its newline. `score` is a finite number, or null for no score; `scores` has finite numbers and
/// `text` is a text, both optional. Other members are ignored. Errors ("reward"): any other line; the message is a part
/// of a sentence, "the score must be ...: got ...".
Scored score_in(const std::string& line);

}  // namespace colossal::align
