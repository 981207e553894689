// `colossal generate --prompts`: many texts continued together, an object of JSON a line for each, in their order:
//
//   {"prompt": "To be", "text": ", or not", "ended": "length", "tokens": 4}
#pragma once
#include <vector>

#include "colossal/infer/engine.h"
#include "colossal/infer/prompt_lines.h"
#include "colossal/run/saved_model.h"

namespace colossal::cli {

/// Prints the texts to stdout, each when those before it are done, and to stderr how fast they came; on one rank of
/// those that call. Of a line that asks for log-probabilities the object has "logprobs": of each token its id, its
/// piece of text, its own and those of the best. If the line asks for those of the prompt, "prompt_logprobs" has the
/// same of each of its tokens; "logprob" of the first one is null, because nothing predicts it.
/// Errors: those of infer::Engine; a prompt's begin with its number.
void generate_prompts(const run::SavedModel& saved, const std::vector<infer::PromptLine>& prompts,
                      const infer::EngineOptions& options, bool prints);

}  // namespace colossal::cli
