// `colossal generate --prompts`: many texts continued together, an object of JSON a line for each, in their order:
//
//   {"prompt": "To be", "text": ", or not", "ended": "length", "tokens": 4}
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "colossal/infer/engine.h"
#include "colossal/run/saved_model.h"

namespace colossal::cli {

/// The prompts of a file: its lines, or of a name that ends in .jsonl the string "prompt" of each line's object. Empty
/// lines are none. Errors ("generate"): a file that cannot be read or holds no prompt; a line that is no UTF-8, or no
/// such object, with its number.
std::vector<std::string> read_prompts(const std::string& path);

struct PromptsOptions {
  infer::EngineOptions engine;
  int64_t max_tokens = 100;
  infer::SamplingOptions sampling;                                        ///< prompt i draws by seed + i
  bool prints = true;                                                     ///< on one rank of those that call
  std::function<std::shared_ptr<infer::TokenConstraint>()> constraint{};  ///< made for each prompt; none: any token
};

/// Prints the texts to stdout, each when those before it are done, and to stderr how fast they came.
/// Errors: those of infer::Engine; a prompt's begin with its number.
void generate_prompts(const run::SavedModel& saved, const std::vector<std::string>& prompts,
                      const PromptsOptions& options);

}  // namespace colossal::cli
