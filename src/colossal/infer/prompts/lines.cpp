#include "colossal/infer/prompts/lines.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/base/file_name.h"
#include "colossal/base/json_fields.h"
#include "colossal/base/json_file.h"
#include "colossal/text/unicode.h"

namespace colossal::infer {
namespace {

using nlohmann::ordered_json;

void read_object(const std::string& text, PromptLine& line) {
  ordered_json object = parse_ordered_json(text, "the line", "generate");
  require(object.is_object() && object.contains("prompt") && object["prompt"].is_string(), "generate",
          "a line must be an object with a string \"prompt\": got ", text.substr(0, 80));
  line.prompt = object["prompt"];
  if (object.contains("id")) line.id = object["id"];
  object.erase("prompt");
  object.erase("id");
  const std::vector<std::string> given = read_json(object, line.options, "generate");
  GenerationOptions own = line.options;
  // The schema in `common` was checked before; parsing it again for each line would take longer than everything else.
  if (std::find(given.begin(), given.end(), "json_schema") == given.end()) own.json_schema.clear();
  own.check();
}

}  // namespace

std::vector<PromptLine> read_prompts(const std::string& path, const GenerationOptions& common) {
  std::ifstream file(path);
  std::error_code failed;
  require(file.good() && !std::filesystem::is_directory(path, failed), "generate",
          "cannot read the file of prompts: ", printable(path),  // it may be a long prompt
          "; --prompts takes the path of a file, --prompt a text");
  const bool is_json = has_ending(path, ".jsonl");
  std::vector<PromptLine> prompts;
  int64_t number = 1;
  for (std::string text; std::getline(file, text); ++number) {
    if (text.find_first_not_of(" \t\r") == std::string::npos) continue;
    try {
      require(text::is_utf8(text), "generate", "a prompt must be UTF-8");
      PromptLine line{.prompt = is_json ? "" : text, .options = common};
      line.options.sampling.seed = static_cast<int64_t>(static_cast<uint64_t>(common.sampling.seed) + prompts.size());
      if (is_json) read_object(text, line);
      prompts.push_back(std::move(line));
    } catch (const Error& error) {
      throw Error("generate", concat(path, " line ", number, ": ", error.message()));
    }
  }
  require(!prompts.empty(), "generate", "the file of prompts is empty: ", path);
  return prompts;
}

}  // namespace colossal::infer
