// How the model of a source folds unless a caller says otherwise: a run folder has its keys of [folding].
//
//   const fold::SourceKeys keys = fold::keys_of_source("runs/folds", run::built_in());
//   folder.fold(fold::alignment_input(sequence, files, shape, keys.rows), {.passes = keys.passes});
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "colossal/fold/alignment_input.h"
#include "colossal/run/program.h"

namespace colossal::fold {

struct SourceKeys {
  AlignmentRows rows{};             ///< those of the run, or the defaults
  std::optional<int64_t> passes{};  ///< those of the run; nothing = the model's
};

/// Returns the keys of a run folder, or defaults for another source. Reads no weight. Errors: those of the run's
/// config.
SourceKeys keys_of_source(const std::string& from, const run::Program& program);

}  // namespace colossal::fold
