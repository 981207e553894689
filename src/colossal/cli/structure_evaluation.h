// How near a model folds the chains of known structures.
//
//   colossal evaluate --from runs/folds --structures chains --json
#pragma once
#include <string>

#include "colossal/cli/model_options.h"
#include "colossal/run/program.h"

namespace colossal::cli {

/// Folds each protein chain of the structures in `folder` (data::ChainFolder) with the loaded model, and prints how
/// near it is to the structure and its pLDDT, a line each, then a line with the number of chains and the means. A model
/// that reads alignments reads those of the folder. `from` is the source of the model: of a run the passes and the rows
/// of alignments are those of the run, as in `colossal fold`.
/// Errors ("evaluate"): a chain that cannot be compared, with its name. Errors: those of data::ChainFolder::open() and
/// fold::Folder.
int evaluate_structures(const std::string& from, const std::string& folder, bool as_json, const LoadedModel& loaded,
                        const run::Program& program);

}  // namespace colossal::cli
