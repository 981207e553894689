// Saves and loads checkpoints of a training run. A checkpoint becomes visible only when it is complete, and loads under
// any parallel layout.
//
//   checkpoints/step-000100/manifest.json             what is where: shapes, blocks, checksums, progress; written last
//                           rank-00000.safetensors    the blocks that that rank wrote
//   checkpoints/.step-000200.partial/                 a save under way, or what a killed one left; never read
//
// All ranks must see the same folder. Each logical element is stored once. If several ranks hold a block, one of them
// writes it, chosen so that all ranks write about as many bytes (checkpoint/local_boxes.h). When loading, a rank reads
// the parts of stored blocks that intersect its own blocks.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/checkpoint/folder.h"  // step_path, complete_steps
#include "colossal/nn/parameter.h"
#include "colossal/tensor/flat_part.h"
#include "colossal/tensor/mesh_coordinates.h"
#include "colossal/tensor/shard_spec.h"
#include "colossal/tensor/stored.h"

namespace colossal {
class RunLock;
}
namespace colossal::comm {
class Group;
}

namespace colossal::checkpoint {

/// One tensor of the state: a parameter or a moment of the optimizer. It may be offloaded: save() and load() load it
/// into memory while they use it.
struct NamedTensor {
  std::string name;
  tensor::Stored value;  ///< shape spec.local_shape(coordinates), or [part->size] if there is a part
  tensor::ShardSpec spec;
  std::optional<tensor::FlatPart> part{};
  /// Rows of dimension 0 of the logical tensor that exist: all, or of a moment those that train (nn::Treatment::rows).
  /// Then all parts of all ranks hold exactly the elements of these rows
  nn::RowRange rows{};
};

/// State that a run needs to continue. `progress` is small and equal on all ranks: step, data position, loss scale,
/// seeds, config. Random generators that differ between ranks are not stored: they are functions of (seed, step), see
/// ops/random.
struct TrainingState {
  std::vector<NamedTensor> tensors;
  nlohmann::json progress;
  /// Number of neighbouring replicas of a tensor that share it (ZeRO), each with its own `part`. 1 = every replica
  /// holds the whole tensor. 0, or more than there are replicas = all replicas share it.
  int64_t sharers = 1;
};

/// Saves `state` as folder/step-<step> and replaces a checkpoint of the same step. It then removes all but the
/// `keep_last` newest checkpoints (0 = keep all) and what unfinished saves left. Rank 0 takes the lock of
/// run_folder_of(folder) for the time of the save, unless `held` is that lock; other ranks ignore `held`.
///
/// Communication: every rank of `world` must call; world's ranks must be the ranks of `coordinates` in mesh order.
///                Messages are small: flags by all_reduce, and each rank's table of blocks, sent to rank 0.
/// Errors: throws the same Error on every rank, e.g. if the disk of one rank is full or names differ in shape. Earlier
///         checkpoints survive, and no new one is visible. Error("run"): another run is writing to the run folder.
/// Cost: each rank writes and flushes its share of the blocks, with one host copy of the largest block at a time.
///       Offloaded tensors are loaded in the order of `state`, from at most two memory::Shard at a time.
void save(const std::string& folder, int64_t step, const TrainingState& state, comm::Group& world,
          const tensor::MeshCoordinates& coordinates, int keep_last, const RunLock* held = nullptr);

/// Other stored tensors from which load() fills tensors of a state, by the names of both.
struct Substitutes {
  /// Read in place of the tensor of the same name, if they are stored. Rows that they lack (NamedTensor::rows) are read
  /// from the tensor of the same name
  std::map<std::string, std::string> preferred{};
  /// Read if no tensor of the same name is stored
  std::map<std::string, std::string> fallback{};
};

/// Fills the tensors of `state` in place from the checkpoint at `path` (folder/step-000100) and replaces
/// `state.progress`. The layout under which it was saved does not matter. Padding is set to zero. With a `prefix`, the
/// checkpoint may have more tensors than `state`, if their names do not start with it (e.g. weights without their
/// optimizer). Floating-point values are then converted to the dtypes of `state`, as those of substitutes always are.
/// `unused`: names of other stored tensors that `state` need not have; one rank that has a name is enough.
///
/// Communication: every rank of `world` must call. Flags by all_reduce; one all_reduce has a flag per stored tensor.
/// Errors: throws the same Error on every rank, before any tensor is changed. One cause: names, dtypes or logical
///         shapes that differ from `state`, over all ranks; the message is a table of name, wanted and found. The other
///         cause: a damaged file (checksum, truncation, inconsistent manifest). If an offloaded tensor cannot be loaded
///         to be filled, every rank throws too, but then `state` is partly overwritten.
/// Cost: tensors are loaded one after the other, as in save(), and pages of files are released after they are read.
void load(const std::string& path, TrainingState& state, comm::Group& world, const tensor::MeshCoordinates& coordinates,
          const std::string& prefix = "", const std::set<std::string>& unused = {},
          const Substitutes& substitutes = {});

/// The error for a checkpoint of another model, optimizer or run; the same on every rank.
struct OtherRun : Error {
  explicit OtherRun(const Error& error) : Error(error) {}
};

/// Function that throws an Error if the progress of a checkpoint shows that it is from another run.
using ProgressCheck = std::function<void(const nlohmann::json& progress)>;
/// Loads a checkpoint like load(), but returns the Error of a damaged one, the same on every rank, with nothing
/// changed. Throws OtherRun for a checkpoint of another model, optimizer or run, or one that `check` refuses.
/// Communication: the same as load().
std::optional<Error> load_unless_damaged(const std::string& path, TrainingState& state, comm::Group& world,
                                         const tensor::MeshCoordinates& coordinates, const std::string& prefix = "",
                                         const ProgressCheck& check = {}, const std::set<std::string>& unused = {},
                                         const Substitutes& substitutes = {});

/// Returns the path of the newest complete checkpoint in `folder` as this rank sees it; none = there is no checkpoint.
std::optional<std::string> latest(const std::string& folder);
/// Reads the progress of a checkpoint without its tensors. Errors: a missing or damaged manifest.
nlohmann::json read_progress(const std::string& path);

}  // namespace colossal::checkpoint
