// What the ranks of a run are given: program, flags, config, data, module, weights. It must be the same on all of them.
//
//   const auto everyone = train::group_of_all(world);
//   train::require_same(*everyone, train::program_inputs());
//   train::require_same(*everyone, train::config_inputs(config));
//
// Ranks that a launcher starts one by one may get different flags, programs or files. Without these checks they train
// on, and their checkpoint mixes two models.
#pragma once
#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "colossal/checkpoint/checkpoint.h"
#include "colossal/comm/mesh.h"
#include "colossal/comm/world.h"
#include "colossal/run/config.h"

namespace torch::nn {
class Module;
}

namespace colossal::train {

/// Named values that a rank was given.
struct RankInputs {
  std::string component;  ///< of the error
  std::vector<std::pair<std::string, std::string>> values;
  std::string remedy;
};

/// The group of all ranks of `world`. Collective.
std::shared_ptr<comm::Group> group_of_all(comm::World& world);

/// The versions of the program, of LibTorch and of the compiler.
RankInputs program_inputs();
/// Every key of `config`; of [run] only `folder` and `matmul`, because the others do not change a result.
RankInputs config_inputs(const run::Config& config);
/// The leaves of `traits`, which has the members of data::Batches::state(), by their paths.
RankInputs data_inputs(const nlohmann::json& traits);
/// Parameters and buffers of `module` by name, with their shapes.
RankInputs module_inputs(const torch::nn::Module& module);

/// Compares the inputs of all ranks. Collective.
/// Communication: that of comm::find_difference().
/// Errors: on every rank the same Error: what differs, with the values of rank 0 and of the first rank that differs;
///         of long values the pieces around the first difference. If the values differ in their order alone, that.
void require_same(comm::Group& ranks, const RankInputs& inputs);

/// What weights come from. It decides what to do if they differ.
enum class WeightOrigin {
  Drawn,  ///< each rank has drawn them from the same seed
  Read,   ///< each rank has read them from a checkpoint or a folder
};

/// Compares the weights of ranks that hold the same part of a parameter, by checksums. `weights` are those of
/// Engine::weights(), shared by `sharers` ranks under ZeRO (checkpoint::TrainingState::sharers). Collective among all
/// ranks of `mesh`.
///
/// Communication: every rank sends 16 bytes for each part of a parameter to rank 0; two broadcasts, two agreements.
/// Cost: one reading of the parts that other ranks hold too: memory speed on the host (above 10 GB/s); an accelerator
///       copies them to the host in pieces of 64 MiB, a disk tier reads them.
/// Errors ("run"): on every rank the same Error, which names the first parameter that differs and two ranks.
void require_same_weights(comm::Mesh& mesh, const std::vector<checkpoint::NamedTensor>& weights, int64_t sharers,
                          WeightOrigin origin);

}  // namespace colossal::train
