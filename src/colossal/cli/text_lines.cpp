#include "colossal/cli/text_lines.h"

#include <filesystem>
#include <fstream>
#include <iterator>

#include "colossal/base/error.h"
#include "colossal/base/file_name.h"
#include "colossal/base/json_file.h"
#include "colossal/text/unicode.h"

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

std::string text_of_line(const NumberedLine& line, const char* command) {
  const std::string what = "a JSON string, or an object with a string in \"text\"";
  json value = parse_line(line, what, command);
  if (value.is_object() && value.contains("text")) value = json(value["text"]);
  if (!value.is_string()) refuse_line(line, what, command);
  return value.get<std::string>();
}

EncodedTexts read_texts(const std::string& path, const text::Tokenizer& tokenizer, const char* command) {
  std::ifstream file(path, std::ios::binary);
  std::error_code failed;
  require(file.good() && !std::filesystem::is_directory(path, failed), command,
          "cannot read the file of texts: ", path);
  std::vector<NumberedLine> texts;
  if (has_ending(path, ".jsonl")) {
    int64_t number = 0;
    for (std::string line; std::getline(file, line);) {
      ++number;
      if (line.find_first_not_of(" \t\r") != std::string::npos)
        texts.push_back({number, text_of_line({number, line}, command)});
    }
  } else {
    texts.push_back({1, std::string(std::istreambuf_iterator<char>(file), {})});
  }
  require(!file.bad(), command, "cannot read the file of texts to its end: ", path);
  EncodedTexts encoded;
  for (const NumberedLine& line : texts) {
    require(text::is_utf8(line.text), command, "texts must be UTF-8: got other bytes in ", path);
    if (line.text.empty()) continue;
    encoded.ids.push_back(tokenizer.encode_prompt(line.text));
    const std::vector<int64_t>& ids = encoded.ids.back();
    encoded.bytes += static_cast<int64_t>(line.text.size());
    if (!ids.empty()) encoded.bytes -= static_cast<int64_t>(tokenizer.piece(ids.front()).size());
  }
  require(!encoded.ids.empty(), command, "the file of texts is empty: ", path);
  return encoded;
}

}  // namespace colossal::cli
