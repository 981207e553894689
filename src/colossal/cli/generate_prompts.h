// `colossal generate --prompts`: many texts continued together (infer/prompt_answers.h).
#pragma once
#include <vector>

#include "colossal/infer/engine.h"
#include "colossal/infer/prompt_lines.h"
#include "colossal/run/saved_model.h"

namespace colossal::cli {

/// Prints a line of JSON for each prompt to stdout, and to stderr how fast tokens came; on one rank of those that call.
/// Errors: those of infer::PromptAnswers; ("generate") prompts that failed, after their lines were printed.
void generate_prompts(const run::SavedModel& saved, const std::vector<infer::PromptLine>& prompts,
                      const infer::EngineOptions& options, bool prints);

}  // namespace colossal::cli
