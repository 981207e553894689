// Comparison of the inputs of all ranks, which must be equal: program, flags, config, data, module, weights.
//
//   const auto everyone = train::group_of_all(world);
//   train::require_same(*everyone, train::program_inputs());
//   train::require_same(*everyone, train::config_inputs(config));
//
// Ranks that a launcher starts separately may get different flags, programs or files. Without these checks they train
// anyway, and their checkpoint mixes two models.
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
#include "colossal/train/module_tensors.h"

namespace colossal::train {

/// Named values that a rank got as input.
struct RankInputs {
  std::string component;  ///< component of the error
  std::vector<std::pair<std::string, std::string>> values;
  std::string remedy;
};

/// Creates the group of all ranks of `world`. Collective.
std::shared_ptr<comm::Group> group_of_all(comm::World& world);

/// Returns the versions of the program, of LibTorch and of the compiler.
RankInputs program_inputs();
/// Returns every key of `config`; of [run] only `folder` and `matmul`, because the others do not change a result.
RankInputs config_inputs(const run::Config& config);
/// Returns the leaves of `traits` by their paths. `traits` has the members of data::Batches::state().
RankInputs data_inputs(const nlohmann::json& traits);
/// Returns the parameters and buffers of a module by name, with their shapes.
RankInputs module_inputs(const ModuleTensors& tensors);

/// Compares the inputs of all ranks. Collective.
/// Communication: as comm::find_difference().
/// Errors: the same Error on every rank, with the names that differ and the values of rank 0 and of the first rank that
///         differs. Long values are cut to the part around the first difference. If only the order of the values
///         differs, the message says that.
void require_same(comm::Group& ranks, const RankInputs& inputs);

/// The source of weights, which decides what the error recommends if they differ.
enum class WeightOrigin {
  Drawn,  ///< each rank drew them from the same seed
  Read,   ///< each rank read them from a checkpoint or a folder
};

/// Compares the weights of ranks that hold the same part of a parameter, by checksums. `weights` is the result of
/// Engine::stored_weights(). `sharers` is the number of ranks that shard them under ZeRO
/// (checkpoint::TrainingState::sharers). Collective among all ranks of `mesh`.
///
/// Communication: every rank sends 16 bytes for each part of a parameter to rank 0; two broadcasts, two agreements.
/// Cost: one read of the parts that other ranks hold too: memory speed on the host (above 10 GB/s). An accelerator
///       copies them to the host in pieces of 64 MiB, a disk tier reads them.
/// Errors ("run"): the same Error on every rank, with the first parameter that differs and two ranks.
void require_same_weights(comm::Mesh& mesh, const std::vector<checkpoint::NamedTensor>& weights, int64_t sharers,
                          WeightOrigin origin);

}  // namespace colossal::train
