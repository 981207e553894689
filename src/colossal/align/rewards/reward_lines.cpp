#include "colossal/align/rewards/reward_lines.h"

#include <cmath>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/base/json_file.h"

namespace colossal::align {
namespace {

using nlohmann::json;

json object_in(const std::string& line) {
  try {
    return parse_json_object(line, "the line", "reward");
  } catch (const Error& error) {
    const bool has_other_number = line.find("NaN") != std::string::npos || line.find("Infinity") != std::string::npos;
    throw Error("reward", concat("each line must be a JSON object: got ", printable(line), " (", error.message(), "); ",
                                 has_other_number ? "JSON has no NaN and no Infinity; a score is finite or null"
                                                  : "print everything else to stderr"));
  }
}

double finite_number(const json& value, const std::string& what) {
  const double number = value.is_number() ? value.get<double>() : NAN;
  require(std::isfinite(number), "reward", what, ": got ", printable(value.dump()));
  return number;
}

}  // namespace

std::string line_to_scorer(const Answer& answer) {
  json line = answer.line->members;
  line["id"] = answer.id;
  line["completion"] = answer.completion.text;
  return line.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
}

Scored score_in(const std::string& line) {
  const json object = object_in(line);
  const auto id = object.find("id"), score = object.find("score"), parts = object.find("scores"),
             text = object.find("text");
  require(id != object.end() && id->is_string(), "reward", "the line must have the `id` that it answers: got ",
          printable(line));
  Scored scored{.id = id->get<std::string>(), .score = {}};
  require(score != object.end(), "reward", "the line must have a `score`: got ", printable(line));
  if (!score->is_null())
    scored.score.value = finite_number(*score, "the score must be a finite number, or null for no score");
  if (parts != object.end() && !parts->is_null()) {
    require(parts->is_object(), "reward", "`scores` must be an object of finite numbers: got ",
            printable(parts->dump()));
    for (const auto& [name, value] : parts->items())
      scored.score.parts.emplace_back(
          name, finite_number(value, concat("`scores` must have finite numbers, ", name, " too")));
  }
  if (text != object.end() && !text->is_null()) {
    require(text->is_string(), "reward", "`text` must be a text: got ", printable(text->dump()));
    scored.score.text = text->get<std::string>();
  }
  return scored;
}

}  // namespace colossal::align
