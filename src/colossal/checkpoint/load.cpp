#include <ATen/ATen.h>

#include <algorithm>
#include <memory>
#include <set>

#include "colossal/base/checksum.h"
#include "colossal/base/error.h"
#include "colossal/base/json_file.h"
#include "colossal/checkpoint/checkpoint.h"
#include "colossal/checkpoint/folder.h"
#include "colossal/checkpoint/local_boxes.h"
#include "colossal/checkpoint/manifest.h"
#include "colossal/checkpoint/mismatch.h"
#include "colossal/checkpoint/safetensors.h"
#include "colossal/comm/agreement.h"
#include "colossal/comm/group.h"

namespace colossal::checkpoint {
namespace {

/// Returns the names of the stored tensors that fill a tensor, in the order in which they are read: its own, unless it
/// has a substitute. A second one replaces the rows that it has.
std::vector<std::string> sources_of(const NamedTensor& tensor, const Manifest& manifest,
                                    const Substitutes& substitutes) {
  const auto stored_among = [&](const std::map<std::string, std::string>& names) {
    const auto found = names.find(tensor.name);
    return found == names.end() ? manifest.tensors.end() : manifest.tensors.find(found->second);
  };
  if (const auto preferred = stored_among(substitutes.preferred); preferred != manifest.tensors.end()) {
    if (preferred->second.rows == stored_rows(tensor.rows, tensor.spec.shape)) return {preferred->first};
    return {tensor.name, preferred->first};
  }
  if (manifest.tensors.contains(tensor.name)) return {tensor.name};
  const auto fallback = stored_among(substitutes.fallback);
  return {fallback == manifest.tensors.end() ? tensor.name : fallback->first};
}

/// Returns for each stored tensor, in the manifest's order, whether any rank needs it or names it as `unused`: each
/// pipeline stage has only some.
std::vector<bool> known_anywhere(const TrainingState& state, const Manifest& manifest, comm::Group& world,
                                 std::set<std::string> wanted, const Substitutes& substitutes) {
  for (const NamedTensor& tensor : state.tensors) {
    wanted.insert(tensor.name);
    for (const std::string& source : sources_of(tensor, manifest, substitutes)) wanted.insert(source);
  }
  std::vector<int64_t> flags;
  for (const auto& [name, stored] : manifest.tensors) flags.push_back(wanted.count(name) > 0);
  at::Tensor any = at::tensor(flags, at::kLong);
  if (any.numel() > 0) world.all_reduce(any, comm::Reduce::Max).wait();
  const int64_t* first = any.const_data_ptr<int64_t>();
  return std::vector<bool>(first, first + any.numel());  // braces would make a list of two bools from the pointers
}

/// Returns e.g. "Float [37, 24], rows 30 to 36" for a tensor that has the rows [30, 36) alone.
std::string describe_rows(at::ScalarType dtype, const std::vector<int64_t>& shape, const std::vector<int64_t>& rows) {
  const std::string text = describe(dtype, shape);
  return rows.empty() ? text : concat(text, ", rows ", rows[0], " to ", rows[1]);
}

/// Requires names, dtypes, logical shapes and rows to be equal on both sides. If there is a `prefix`, ignores other
/// stored names that do not start with it, and accepts any floating-point dtype for a floating-point tensor. Ignores
/// the stored names that are not `known`. Rows of substitutes may be others than those of the tensor.
void check_same(const TrainingState& state, const Manifest& manifest, const std::vector<bool>& known,
                const std::string& path, const std::string& prefix, const Substitutes& substitutes) {
  MismatchTable table;
  for (const NamedTensor& tensor : state.tensors) {
    if (tensor.spec.numel() == 0) continue;  // an empty tensor is not stored
    for (const std::string& source : sources_of(tensor, manifest, substitutes)) {
      const auto stored = manifest.tensors.find(source);
      const bool found = stored != manifest.tensors.end(), is_own = source == tensor.name;
      const at::ScalarType dtype = tensor.value.scalar_type();
      const bool converts = found && (!prefix.empty() || !is_own) && at::isFloatingType(dtype) &&
                            at::isFloatingType(stored->second.dtype);
      const std::string want =
          describe_rows(converts ? stored->second.dtype : dtype, tensor.spec.shape,
                        is_own || !found ? stored_rows(tensor.rows, tensor.spec.shape) : stored->second.rows);
      const std::string have =
          found ? describe_rows(stored->second.dtype, stored->second.shape, stored->second.rows) : "-";
      if (want != have) table.add(source, want, have);
    }
  }
  size_t index = 0;
  for (const auto& [name, stored] : manifest.tensors)
    if (!known[index++] && name.starts_with(prefix))
      table.add(name, "-", describe_rows(stored.dtype, stored.shape, stored.rows));
  table.require_empty("checkpoint", path + " is from a different model, optimizer or precision");
}

/// The files of a checkpoint, opened when first needed. Stored tensors are checked against the manifest before they are
/// returned.
class Shards {
 public:
  explicit Shards(std::string path) : path_(std::move(path)) {}

  /// A stored tensor with its file and name, for SafetensorsReader::leave().
  struct Stored {
    at::Tensor value;
    std::shared_ptr<const SafetensorsReader> file;
    std::string name;
  };

  Stored verified(const std::string& name, const StoredTensor& tensor, const StoredBlock& block) {
    const std::string stored_name = block_name(name, block.box);
    auto& reader = readers_[block.rank];
    if (!reader) reader = std::make_shared<SafetensorsReader>(path_ + "/" + shard_name(block.rank));
    const at::Tensor value = reader->tensor(stored_name);
    require(value.scalar_type() == tensor.dtype && value.sizes() == at::IntArrayRef(block.box.size), "checkpoint",
            reader->path(), ": ", printable(stored_name), " differs from the manifest");
    const std::string_view bytes = reader->bytes(stored_name);
    require(checksum(bytes) == block.checksum, "checkpoint", reader->path(), ": ", printable(stored_name),
            " is damaged: its checksum differs from the manifest");
    reader->leave(stored_name);
    return {value, reader, stored_name};
  }

 private:
  std::string path_;
  std::map<int, std::shared_ptr<SafetensorsReader>> readers_;
};

/// A copy from a stored block, which is mapped, to a block of this rank.
struct Copy {
  Shards::Stored stored;
  Box stored_box;
  tensor::LocalBox target;
  Box common;  // intersection of both
};
using Copies = std::vector<std::vector<Copy>>;  // one list per tensor of the state

/// Plans the copies that fill `wanted`, a part of a block `target` of this rank, from the blocks of the stored tensor
/// `name` that intersect it. Throws unless they cover it exactly.
void plan_box(const std::string& name, const Box& wanted, const tensor::LocalBox& target, const StoredTensor& stored,
              Shards& shards, std::vector<Copy>& copies) {
  int64_t covered = 0;
  std::vector<Box> seen;
  for (const StoredBlock& block : stored.blocks) {
    const std::optional<Box> common = intersect(wanted, block.box);
    if (!common) continue;
    for (const Box& other : seen)
      require(!intersect(*common, other), "checkpoint", "two stored blocks of ", printable(name), " overlap");
    seen.push_back(*common);
    covered += common->numel();
    copies.push_back({shards.verified(name, stored, block), block.box, target, *common});
  }
  require(covered == wanted.numel(), "checkpoint", "the stored blocks of ", printable(name), " do not cover it");
}

/// Returns the part of a block for which a stored tensor has rows; none = there is none.
std::optional<Box> stored_part(const tensor::LocalBox& target, const StoredTensor& stored) {
  if (stored.rows.empty()) return Box{target.start, target.size};
  Box rows{std::vector<int64_t>(stored.shape.size(), 0), stored.shape};
  rows.start[0] = stored.rows[0], rows.size[0] = stored.rows[1] - stored.rows[0];
  return intersect({target.start, target.size}, rows);
}

Copies plan_copies(const TrainingState& state, const Manifest& manifest, Shards& shards,
                   const tensor::MeshCoordinates& coordinates, const Substitutes& substitutes) {
  Copies copies(state.tensors.size());
  for (size_t i = 0; i < state.tensors.size(); ++i) {
    const NamedTensor& tensor = state.tensors[i];
    const std::vector<std::string> sources = sources_of(tensor, manifest, substitutes);
    for (const tensor::LocalBox& target : local_boxes_of(tensor, coordinates)) {
      if (Box{{}, target.size}.numel() == 0) continue;
      for (const std::string& source : sources) {
        const StoredTensor& stored = manifest.tensors.at(source);
        if (const auto wanted = stored_part(target, stored))
          plan_box(source, *wanted, target, stored, shards, copies[i]);
      }
    }
  }
  return copies;
}

void fill(const TrainingState& state, const Copies& copies, const tensor::MeshCoordinates& coordinates) {
  tensor::Held held;  // the next tensor replaces it: see Stored
  for (size_t i = 0; i < state.tensors.size(); ++i) {
    state.tensors[i].value.write_into(held);
    held.value.detach().zero_();  // for padding; copies overwrite all other elements
    for (const Copy& copy : copies[i]) {
      at_box(at_local_box(state.tensors[i], held.value, coordinates, copy.target), copy.common, copy.target.start)
          .copy_(at_box(copy.stored.value, copy.common, copy.stored_box.start));
      copy.stored.file->leave(copy.stored.name);
    }
  }
}

}  // namespace

std::optional<Error> load_unless_damaged(const std::string& path, TrainingState& state, comm::Group& world,
                                         const tensor::MeshCoordinates& coordinates, const std::string& prefix,
                                         const ProgressCheck& check, const std::set<std::string>& unused,
                                         const Substitutes& substitutes) {
  // Agreement messages use host tensors, because the state may be on a device on one rank and not on another.
  Manifest manifest;
  Copies copies;
  std::optional<Error> damage = comm::agreed_error(world, at::kCPU, [&] {  // all ranks read the same file
    manifest = Manifest::read(path + "/manifest.json");
  });
  if (damage) return damage;
  const auto require_same_run = [&](const std::function<void()>& work) {
    if (const auto other = comm::agreed_error(world, at::kCPU, work)) throw OtherRun(*other);
  };
  require_same_run([&] {
    try {
      if (check) check(manifest.progress);
    } catch (const Error& error) {
      throw Error(error.component(), concat(path, " is from a different run: ", error.message()));
    }
  });
  const std::vector<bool> known = known_anywhere(state, manifest, world, unused, substitutes);
  require_same_run([&] { check_same(state, manifest, known, path, prefix, substitutes); });
  damage = comm::agreed_error(world, at::kCPU, [&] {
    Shards shards(path);
    copies = plan_copies(state, manifest, shards, coordinates, substitutes);
  });
  if (damage) return damage;
  comm::agree(world, at::kCPU, [&] { fill(state, copies, coordinates); });
  state.progress = std::move(manifest.progress);
  return std::nullopt;
}

void load(const std::string& path, TrainingState& state, comm::Group& world, const tensor::MeshCoordinates& coordinates,
          const std::string& prefix, const std::set<std::string>& unused, const Substitutes& substitutes) {
  const std::optional<Error> damage =
      load_unless_damaged(path, state, world, coordinates, prefix, {}, unused, substitutes);
  if (!damage) return;
  throw Error(damage->component(),
              concat(damage->message(), "; nothing was loaded: move ", path, " away to use the checkpoint before it"))
      .mark_on_all_ranks();
}

std::optional<std::string> latest(const std::string& folder) {
  const std::vector<int64_t> steps = complete_steps(folder);
  if (steps.empty()) return std::nullopt;
  return step_path(folder, steps.back());
}

nlohmann::json read_progress(const std::string& path) { return Manifest::read(path + "/manifest.json").progress; }

}  // namespace colossal::checkpoint
