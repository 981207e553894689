#include <ATen/ATen.h>

#include <filesystem>

#include "colossal/base/checksum.h"
#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/base/json_fields.h"
#include "colossal/base/json_file.h"
#include "colossal/base/run_folder.h"
#include "colossal/checkpoint/checkpoint.h"
#include "colossal/checkpoint/folder.h"
#include "colossal/checkpoint/local_boxes.h"
#include "colossal/checkpoint/manifest.h"
#include "colossal/checkpoint/safetensors.h"
#include "colossal/comm/agreement.h"
#include "colossal/comm/group.h"

namespace colossal::checkpoint {
namespace {

using nlohmann::json;

void check_state(const TrainingState& state, const tensor::MeshCoordinates& coordinates) {
  for (const NamedTensor& tensor : state.tensors) {
    const std::vector<int64_t> wanted =
        tensor.part ? std::vector<int64_t>{tensor.part->size} : tensor.spec.local_shape(coordinates);
    require(tensor.value.sizes() == at::IntArrayRef(wanted), "checkpoint", tensor.name, " must have ",
            tensor.part ? "its part's size " : "its spec's local shape ", at::IntArrayRef(wanted), ": got ",
            tensor.value.sizes());
  }
}

/// Returns the blocks that this rank writes, by the name under which they are stored.
std::map<std::string, WrittenBlock> by_stored_name(const std::vector<WrittenBlock>& blocks) {
  std::map<std::string, WrittenBlock> named;
  for (const WrittenBlock& written : blocks) {
    const std::string& name = written.tensor->name;
    const bool added = named.emplace(block_name(name, {written.block.start, written.block.size}), written).second;
    require(added, "checkpoint", "two tensors are named ", name);
  }
  return named;
}

/// Writes this rank's file, if there is anything to write, and returns its rows of the manifest.
std::vector<BlockRow> write_shard(const std::string& path, const TrainingState& state,
                                  const tensor::MeshCoordinates& coordinates) {
  const std::vector<WrittenBlock> written = written_blocks(state, coordinates);
  const std::map<std::string, WrittenBlock> blocks = by_stored_name(written);
  std::vector<BlockRow> table;
  if (blocks.empty()) return table;
  std::vector<TensorEntry> entries;
  for (const WrittenBlock& block : written)
    entries.push_back({block_name(block.tensor->name, {block.block.start, block.block.size}),
                       block.tensor->value.scalar_type(), block.block.size});
  SafetensorsWriter writer(path, std::move(entries), {}, SafetensorsWriter::Order::AsGiven);
  tensor::Held held;  // reused, so that each group of tensors is loaded once: see Stored
  for (const TensorEntry& entry : writer.entries()) {
    const WrittenBlock& block = blocks.at(entry.name);
    block.tensor->value.read_into(held);
    const at::Tensor host = at_local_box(*block.tensor, held.value, coordinates, block.block).to(at::kCPU).contiguous();
    writer.write(host);
    const std::vector<int64_t>& shape = block.tensor->spec.shape;
    const StoredTensor described{entry.dtype, shape, {}, stored_rows(block.tensor->rows, shape)};
    table.push_back(block_row(block.tensor->name, described, {block.block.start, block.block.size},
                              checksum(host.const_data_ptr(), host.nbytes())));
  }
  writer.finish();
  return table;
}

/// Returns every rank's table on rank 0, and an empty list on other ranks.
std::vector<json> gather_tables(const std::vector<BlockRow>& table, comm::Group& world) {
  std::vector<json> tables;
  for (const std::string& text : comm::gather_text(world, at::kCPU, 0, to_json_list(table).dump()))
    tables.push_back(parse_json(text, "the table of a rank", "checkpoint"));
  return tables;
}

/// Called on rank 0 only. Makes the checkpoint visible, as its last act.
void finish_save(const std::string& folder, int64_t step, const TrainingState& state,
                 const tensor::MeshCoordinates& coordinates, const std::vector<json>& tables) {
  Manifest manifest{step, layout_of(coordinates), state.progress, {}};
  for (size_t rank = 0; rank < tables.size(); ++rank) {
    for (const json& row : tables[rank]) {
      auto block = read_stored<BlockRow>(row, "checkpoint");
      block.rank = static_cast<int>(rank);
      manifest.add(block);
    }
  }
  manifest.check_complete();
  manifest.write(partial_path(folder, step) + "/manifest.json");
  publish(folder, step);
}

}  // namespace

void save(const std::string& folder, int64_t step, const TrainingState& state, comm::Group& world,
          const tensor::MeshCoordinates& coordinates, int keep_last, const RunLock* held) {
  // Ranks exchange flags and tables in host tensors, because the state may be on a device on one rank and not on
  // another.
  const bool first = world.rank() == 0;
  std::optional<RunLock> lock;
  comm::agree(world, at::kCPU, [&] {
    if (!first || held) return;
    create_folder(run_folder_of(folder));
    lock.emplace(run_folder_of(folder));
  });
  try {
    comm::agree(world, at::kCPU, [&] {
      require(step >= 0, "checkpoint", "step must not be negative: got ", step);
      check_state(state, coordinates);
      if (first) begin_partial(folder, step);
    });
    std::vector<BlockRow> table;
    comm::agree(world, at::kCPU, [&] {
      table = write_shard(partial_path(folder, step) + "/" + shard_name(world.rank()), state, coordinates);
    });
    const std::vector<json> tables = gather_tables(table, world);
    comm::agree(world, at::kCPU, [&] {
      if (first) finish_save(folder, step, state, coordinates, tables);
    });
  } catch (const Error&) {
    std::error_code ignored;
    if (first) std::filesystem::remove_all(partial_path(folder, step), ignored);
    throw;
  }
  if (first) prune(folder, step, keep_last);
}

}  // namespace colossal::checkpoint
