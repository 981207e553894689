// The samples of runs whose model generates text.
//
//   run::Program program = cli::with_text_samples(run::built_in());
#pragma once
#include "colossal/run/program.h"

namespace colossal::cli {

/// Returns the program with samples for each objective whose row has none: a text that the model generates after
/// training.sample_prompt, if it continues or answers texts. It is easier to judge than a loss. Texts are drawn by the
/// ranks of the run together.
run::Program with_text_samples(run::Program program);

}  // namespace colossal::cli
