#include "colossal/cli/text_lines.h"

#include <filesystem>

#include "colossal/base/error.h"
#include "colossal/base/json_file.h"

namespace colossal::cli {

using nlohmann::json;

void require_regular_file(const std::string& path, const char* command, const char* reader) {
  std::error_code failed;
  require(!std::filesystem::exists(path, failed) || std::filesystem::is_regular_file(path, failed), command, path,
          " must be a regular file if ", reader, ": got a pipe, a device or a folder; write the texts to a file");
}

void refuse_line(const NumberedLine& line, const std::string& what, const char* command) {
  throw Error(command, concat("line ", line.number, " must be ", what));
}

json parse_line(const NumberedLine& line, const std::string& what, const char* command) {
  return parse_json(line.text, concat("line ", line.number, " must be ", what), command);
}

std::string text_of(const NumberedLine& line, const char* command) {
  const std::string what = "a JSON string, or an object with a string in \"text\"";
  json value = parse_line(line, what, command);
  if (value.is_object() && value.contains("text")) value = json(value["text"]);
  if (!value.is_string()) refuse_line(line, what, command);
  return value.get<std::string>();
}

}  // namespace colossal::cli
