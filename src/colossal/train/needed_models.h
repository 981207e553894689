// The further models that checkpoints of a run leave out: their sources and checksums, and what a log says of them.
//
//   const nlohmann::json needs = train::needed_models(data.further, mesh);          // saved with each checkpoint
//   const std::string changed = train::changed_models(needs, saved);                // "teacher"; empty = none
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "colossal/comm/mesh.h"
#include "colossal/run/further_model.h"
#include "colossal/train/memory_needs.h"

namespace colossal::train {

/// Returns a list of objects {"name", "from", "checksum"}, one for each frozen model, the same on every rank. Rank 0
/// reads the files (run::checksum_of). Communication: comm::agree() and a broadcast over all ranks of `mesh`. Errors:
/// those of run::checksum_of(), on every rank.
nlohmann::json needed_models(const std::vector<run::ResolvedFurther>& further, comm::Mesh& mesh);

/// Returns the names of the models of both lists that have other weights in `now` than in `saved`, joined; "" if none.
std::string changed_models(const nlohmann::json& now, const nlohmann::json& saved);

/// Returns a line for the log: "teacher: gpt2 of 859008 parameters from gpt2-tiny, frozen, 3.3 MiB over all ranks".
std::string to_string(const run::ResolvedFurther& further, const ModelSize& size);

}  // namespace colossal::train
