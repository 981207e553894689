// `colossal generate --prompts`: completes many prompts together (infer/prompts/answers.h).
#pragma once
#include <vector>

#include "colossal/infer/engine.h"
#include "colossal/infer/prompts/lines.h"
#include "colossal/run/saved_model.h"

namespace colossal::cli {

/// Prints a line of JSON for each prompt to stdout, and the speed to stderr, on the rank that sets `prints`. All ranks
/// of the layout must call. Errors: errors of infer::PromptAnswers; ("generate") prompts that failed, after their lines
/// were printed.
void generate_prompts(const run::SavedModel& saved, const std::vector<infer::PromptLine>& prompts,
                      const infer::EngineOptions& options, bool prints);

}  // namespace colossal::cli
