// Reads a file of prompts, one per line. JSON lines may have their own options:
//
//   {"prompt": "To be", "max_tokens": 20, "temperature": 0.8, "stop": ["\n"], "id": "hamlet"}
//
//   for (const infer::PromptLine& line : infer::read_prompts("prompts.jsonl", defaults))
//     engine.add({.prompt = tokenizer.encode_prompt(line.prompt), .options = line.options}, on_event);
#pragma once
#include <string>
#include <vector>

#include "colossal/base/json.h"
#include "colossal/infer/generation_options.h"

namespace colossal::infer {

struct PromptLine {
  std::string prompt{};
  nlohmann::ordered_json id{};  ///< any JSON value, printed with the completion; null = none
  GenerationOptions options{};
};

/// Reads the lines of a file in one pass, so that it may be a pipe. Lines of a .jsonl file are objects with a string
/// "prompt", an optional "id", and options by their names (GenerationOptions::fields). Missing options are taken from
/// `common`, except that prompt i gets the seed of `common` + i if its line has no seed. Empty lines are skipped.
/// Errors ("generate"): a file that cannot be read or holds no prompt. Errors with the line's number: text that is not
///                      UTF-8, a line that is not such an object, an unknown option, a value that
///                      GenerationOptions::check() refuses.
std::vector<PromptLine> read_prompts(const std::string& path, const GenerationOptions& common);

}  // namespace colossal::infer
