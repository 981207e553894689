// Checkpoints of a training run: complete or invisible, and loadable under any layout.
//
//   checkpoints/step-000100/manifest.json             what is where: shapes, blocks, checksums, progress; written last
//                           rank-00000.safetensors    the blocks that that rank wrote
//   checkpoints/.step-000200.partial/                 a save under way, or what a killed one left; never read
//
// All ranks must see the same folder. Each logical element is stored once; who stores what several ranks hold is dealt
// out by bytes (checkpoint/writers.h); on loading, a rank reads the parts of stored blocks that intersect its own.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/checkpoint/folder.h"  // step_path, complete_steps
#include "colossal/tensor/flat_part.h"
#include "colossal/tensor/place.h"
#include "colossal/tensor/shard_spec.h"
#include "colossal/tensor/stored.h"

namespace colossal::comm {
class Group;
}

namespace colossal::checkpoint {

/// One tensor of the state: a parameter, a moment of the optimizer. It is brought into memory while it is saved or
/// loaded, and need not be there before.
struct NamedTensor {
  std::string name;
  tensor::Stored value;  ///< of spec.local_shape(place); with a part 1-D, of its size
  tensor::ShardSpec spec;
  std::optional<tensor::FlatPart> part{};
};

/// What a run needs to continue. `progress` is small and equal on all ranks: step, data position, loss scale, seeds,
/// config. Generators that differ between ranks are not in it: they are functions of (seed, step), see
/// ops/random.
struct TrainingState {
  std::vector<NamedTensor> tensors;
  nlohmann::json progress;
  /// How many neighbours among a tensor's replicas (ZeRO's sharers) hold a `part` of it each. 1: every replica holds
  /// all; 0, or more than a tensor has replicas: all of them share it.
  int64_t sharers = 1;
};

/// Saves `state` as folder/step-<step>, replacing one of the same step, then removes all but the `keep_last` newest
/// (0 keeps everything) and what earlier saves left unfinished.
///
/// Communication: every rank of `world`, which are the ranks of `place` in mesh order, must call. Small messages
///                only: flags by all_reduce, and each rank's table of blocks sent to rank 0.
/// Errors: throws the same Error on every rank (a full disk on one of them, names that differ in shape); the
///         checkpoints that were there survive and no new one is visible.
/// Cost: each rank writes and flushes its share of the blocks; one host copy of the largest block at a time. Tensors
///       are brought in the order of `state`, those of two shards at most at one time.
void save(const std::string& folder, int64_t step, const TrainingState& state, comm::Group& world,
          const tensor::Place& place, int keep_last);

/// Fills the tensors of `state` in place from the checkpoint at `path` (folder/step-000100) and replaces
/// `state.progress`. The layout it was saved under does not matter. Padding is set to zero. Stored tensors whose names
/// do not begin with `prefix` may be more than `state` asks for: the weights without their optimizer. With a prefix
/// floating-point numbers are converted to the dtype that `state` wants.
///
/// Communication: every rank of `world` must call; flags by all_reduce, one of them a tensor.
/// Errors: throws the same Error on every rank, before any tensor is changed: a table of name, wanted and found unless
///         names, dtypes and logical shapes are exactly those of `state`, all ranks together; a damaged file (checksum,
///         truncation, inconsistent manifest). A tensor that cannot be brought to be filled is an Error on every rank
///         behind that: `state` is of no use then.
/// Cost: as of save(), tensors are brought one after the other, and what is read of files stays in memory no longer.
void load(const std::string& path, TrainingState& state, comm::Group& world, const tensor::Place& place,
          const std::string& prefix = "");

/// What a checkpoint of another model, optimizer or run is refused with; the same on every rank.
struct OtherRun : Error {
  explicit OtherRun(const Error& error) : Error(error) {}
};

/// Refuses, by an Error, a checkpoint whose progress shows that it is of another run.
using ProgressCheck = std::function<void(const nlohmann::json& progress)>;
/// load() of a checkpoint that `check` accepts, told apart: a damaged one is returned as the Error that says how, the
/// same on every rank, and nothing was changed; one of another model, optimizer or run throws OtherRun. Communication:
/// that of load().
std::optional<Error> load_unless_damaged(const std::string& path, TrainingState& state, comm::Group& world,
                                         const tensor::Place& place, const std::string& prefix = "",
                                         const ProgressCheck& check = {});

/// Path of the newest complete checkpoint in `folder`, if any: as this rank sees it.
std::optional<std::string> latest(const std::string& folder);
/// The progress of a checkpoint without its tensors. Errors: no or a damaged manifest.
nlohmann::json read_progress(const std::string& path);

}  // namespace colossal::checkpoint
