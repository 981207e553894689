// A file of prompts: a line each, with options of its own where lines are JSON.
//
//   {"prompt": "To be", "max_tokens": 20, "temperature": 0.8, "stop": ["\n"], "id": "hamlet"}
//
//   for (const infer::PromptLine& line : infer::read_prompts("prompts.jsonl", defaults))
//     engine.add({.prompt = tokenizer.encode_prompt(line.prompt), .options = line.options}, on_event);
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "colossal/infer/generation_options.h"

namespace colossal::infer {

struct PromptLine {
  std::string prompt{};
  nlohmann::ordered_json id{};  ///< any value of the line, which is printed with the answer; null = none
  GenerationOptions options{};
};

/// Reads the lines of a file, once, so that it may be a pipe. Lines of a .jsonl file are objects with a string
/// "prompt", perhaps an "id", and options by their names (GenerationOptions::fields). Options that a line leaves out
/// are those of `common`; prompt i then draws by the seed of `common` + i. Empty lines are skipped.
/// Errors ("generate"): a file that cannot be read or holds no prompt. With its number a line that is no UTF-8 or no
///                      such object, that has an unknown option, or a value that GenerationOptions::check() refuses.
std::vector<PromptLine> read_prompts(const std::string& path, const GenerationOptions& common);

}  // namespace colossal::infer
