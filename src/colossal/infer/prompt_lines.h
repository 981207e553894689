// A file of prompts: a line each, with options of its own where lines are JSON.
//
//   {"prompt": "To be", "max_tokens": 20, "temperature": 0.8, "stop": ["\n"], "id": "hamlet"}
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "colossal/infer/sampler.h"

namespace colossal::infer {

struct PromptLine {
  std::string prompt{};
  nlohmann::ordered_json id{};  ///< whatever the line says, to be said again with the answer; null: nothing
  int64_t max_tokens = 100;
  int64_t sinks = -1;  ///< Request::sinks; of all lines alike
  SamplingOptions sampling{};
  std::vector<std::string> stops{};
  int64_t log_probabilities = -1, prompt_log_probabilities = -1;  ///< as Request has them
  std::string json_schema{};                                      ///< that the answer is to be of; empty: none
};

/// The prompts of a file: its lines, or of a name that ends in .jsonl objects with a string "prompt" and, as they like,
/// "id" and options: "max_tokens", "temperature", "top_k", "top_p", "min_p", "seed", "repetition_penalty",
/// "presence_penalty", "frequency_penalty", "logit_bias" (numbers by ids as text), "stop" (a string or some),
/// "logprobs", "prompt_logprobs" and "json_schema" (an object; null: none). What a line does not say is as in
/// `common`; prompt i then draws by its seed + i. Empty lines are none.
/// Errors ("generate"): a file that cannot be read or holds no prompt; with its number a line that is no UTF-8, no such
///                      object, or has a key that is none of these or a value that cannot be, or a schema that
///                      text::json_grammar() refuses.
std::vector<PromptLine> read_prompts(const std::string& path, const PromptLine& common);

}  // namespace colossal::infer
