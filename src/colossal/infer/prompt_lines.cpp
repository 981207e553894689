#include "colossal/infer/prompt_lines.h"

#include <charconv>
#include <filesystem>
#include <fstream>

#include "colossal/base/error.h"
#include "colossal/base/file_name.h"
#include "colossal/base/json_file.h"
#include "colossal/infer/answer_stream.h"
#include "colossal/text/json_schema.h"
#include "colossal/text/utf8.h"

namespace colossal::infer {
namespace {

using nlohmann::ordered_json;

void read_number(const std::string& key, const ordered_json& value, double& to) {
  require(value.is_number(), "generate", key, " must be a number: got ", value.dump());
  to = value.get<double>();
}

void read_integer(const std::string& key, const ordered_json& value, int64_t& to) {
  require(value.is_number_integer(), "generate", key, " must be a whole number: got ", value.dump());
  to = value.get<int64_t>();
}

void read_string(const std::string& key, const ordered_json& value, std::string& to) {
  require(value.is_string(), "generate", key, " must be a string: got ", value.dump());
  to = value.get<std::string>();
}

void read_biases(const ordered_json& value, std::map<int64_t, double>& to) {
  require(value.is_object(), "generate", "logit_bias must be an object: got ", value.dump());
  for (const auto& [name, bias] : value.items()) {
    int64_t id = -1;
    const auto [end, failure] = std::from_chars(name.data(), name.data() + name.size(), id);
    require(failure == std::errc() && end == name.data() + name.size(), "generate",
            "logit_bias must name tokens by their ids: got ", name);
    read_number("logit_bias", bias, to[id]);
  }
}

void read_option(const std::string& key, const ordered_json& value, PromptLine& line) {
  SamplingOptions& s = line.sampling;
  const std::map<std::string, double*> numbers{{"temperature", &s.temperature},
                                               {"top_p", &s.top_p},
                                               {"min_p", &s.min_p},
                                               {"repetition_penalty", &s.repetition_penalty},
                                               {"presence_penalty", &s.presence_penalty},
                                               {"frequency_penalty", &s.frequency_penalty}};
  const std::map<std::string, int64_t*> integers{{"max_tokens", &line.max_tokens},
                                                 {"top_k", &s.top_k},
                                                 {"seed", &s.seed},
                                                 {"logprobs", &line.log_probabilities},
                                                 {"prompt_logprobs", &line.prompt_log_probabilities}};
  if (const auto number = numbers.find(key); number != numbers.end()) {
    read_number(key, value, *number->second);
  } else if (const auto integer = integers.find(key); integer != integers.end()) {
    read_integer(key, value, *integer->second);
  } else if (key == "logit_bias") {
    read_biases(value, s.logit_bias);
  } else if (key == "stop") {
    line.stops.clear();
    for (const ordered_json& stop : value.is_array() ? value : ordered_json::array({value}))
      read_string(key, stop, line.stops.emplace_back());
  } else if (key == "json_schema") {
    line.json_schema = value.is_null() ? "" : value.dump();
    if (!line.json_schema.empty()) text::json_grammar(line.json_schema);
  } else if (key == "id") {
    line.id = value;
  } else {
    require(key == "prompt", "generate", "unknown option ", key);
  }
}

PromptLine line_of(const std::string& text, bool is_json, PromptLine line) {
  if (!is_json) {
    line.prompt = text;
    return line;
  }
  const ordered_json object = parse_ordered_json(text, "the line", "generate");
  require(object.is_object() && object.contains("prompt") && object["prompt"].is_string(), "generate",
          "a line must be an object with a string \"prompt\": got ", text.substr(0, 80));
  line.prompt = object["prompt"];
  for (const auto& [key, value] : object.items()) read_option(key, value, line);
  require(line.max_tokens >= 0 && line.log_probabilities >= -1 && line.prompt_log_probabilities >= -1, "generate",
          "max_tokens, logprobs and prompt_logprobs must not be negative: got ", line.max_tokens, ", ",
          line.log_probabilities, " and ", line.prompt_log_probabilities);
  line.sampling.check();
  check_stops(line.stops);
  return line;
}

}  // namespace

std::vector<PromptLine> read_prompts(const std::string& path, const PromptLine& common) {
  std::ifstream file(path);
  std::error_code failed;
  require(file.good() && !std::filesystem::is_directory(path, failed), "generate",
          "cannot read the file of prompts: ", path);
  const bool is_json = has_ending(path, ".jsonl");
  std::vector<PromptLine> prompts;
  int64_t number = 1;
  for (std::string text; std::getline(file, text); ++number) {
    if (text.find_first_not_of(" \t\r") == std::string::npos) continue;
    try {
      require(text::is_utf8(text), "generate", "a prompt must be UTF-8");
      PromptLine line = common;
      line.sampling.seed = static_cast<int64_t>(static_cast<uint64_t>(common.sampling.seed) + prompts.size());
      prompts.push_back(line_of(text, is_json, std::move(line)));
    } catch (const Error& error) {
      throw Error("generate", concat(path, " line ", number, ": ", error.message()));
    }
  }
  require(!prompts.empty(), "generate", "the file of prompts is empty: ", path);
  return prompts;
}

}  // namespace colossal::infer
