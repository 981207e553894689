#include "colossal/cli/text_lines.h"

#include "colossal/base/error.h"

namespace colossal::cli {

using nlohmann::json;

void refuse_line(const NumberedLine& line, const std::string& what) {
  throw Error("tokenize", concat("line ", line.number, " must be ", what));
}

json parse_line(const NumberedLine& line, const std::string& what) {
  const json value = json::parse(
      line.text,
      [](int depth, json::parse_event_t, json&) {
        require(depth < 100, "tokenize", "JSON is nested too deeply");
        return true;
      },
      false);
  if (value.is_discarded()) refuse_line(line, what);
  return value;
}

std::string text_of(const NumberedLine& line) {
  const std::string what = "a JSON string, or an object with a string in \"text\"";
  json value = parse_line(line, what);
  if (value.is_object() && value.contains("text")) value = json(value["text"]);
  if (!value.is_string()) refuse_line(line, what);
  return value.get<std::string>();
}

}  // namespace colossal::cli
