#include "colossal/checkpoint/manifest.h"

#include <ATen/ATen.h>

#include "colossal/base/checksum.h"
#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/base/join.h"
#include "colossal/base/json_fields.h"
#include "colossal/base/json_file.h"
#include "colossal/checkpoint/safetensors.h"

namespace colossal::checkpoint {
namespace {

using nlohmann::json;

constexpr int kVersion = 1;

/// The file. Its members are in alphabetical order, in which the checksum reads them.
struct StoredManifest {
  std::vector<BlockRow> blocks;
  std::string checksum, format = "colossal checkpoint";
  std::string layout, progress;  // JSON
  int64_t step = 0;
  int version = kVersion;

  void fields(Fields& f) {
    f.member("blocks", blocks);
    f.optional(checksum.empty()).member("checksum", checksum);
    f.optional().member("format", format);
    f.json("layout", layout, "sizes of the axes");
    f.json("progress", progress, "state of the training besides its tensors");
    f.member("step", step);
    f.member("version", version);
  }
};

at::ScalarType dtype_named(const std::string& name) {
  for (int i = 0; i < static_cast<int>(at::ScalarType::NumOptions); ++i)
    if (name == c10::toString(static_cast<at::ScalarType>(i))) return static_cast<at::ScalarType>(i);
  throw Error("checkpoint", concat("unknown dtype ", printable(name)));
}

void check_inside(const Box& box, const std::vector<int64_t>& shape, const std::string& name) {
  bool inside = box.start.size() == shape.size() && box.size.size() == shape.size();
  for (size_t d = 0; inside && d < shape.size(); ++d)
    inside = box.size[d] > 0 && box.start[d] <= shape[d] && box.size[d] <= shape[d] - box.start[d];
  require(inside, "checkpoint", "a block of ", printable(name), " is outside its shape [", join(shape, ","), "]");
}

}  // namespace

std::vector<int64_t> stored_rows(const nn::RowRange& rows, const std::vector<int64_t>& shape) {
  if (shape.empty() || (rows.first == 0 && rows.end >= shape.front())) return {};
  return {rows.first, rows.end};
}

std::string block_name(const std::string& tensor, const Box& box) { return tensor + "@" + join(box.start, ","); }

std::string shard_name(int rank) {
  const std::string digits = std::to_string(rank);
  return "rank-" + std::string(digits.size() < 5 ? 5 - digits.size() : 0, '0') + digits + ".safetensors";
}

void BlockRow::fields(Fields& f) {  // in alphabetical order: see StoredManifest
  f.member("checksum", checksum);
  f.member("dtype", dtype);
  f.member("name", name);
  f.member("rank", rank);
  f.optional(rows.empty()).integers("rows", rows, "", "first row that the tensor has, and the end");
  f.integers("shape", shape, "", "sizes of the tensor");
  f.integers("size", size, "", "sizes of the block");
  f.integers("start", start, "", "first indices of the block");
}

BlockRow block_row(const std::string& name, const StoredTensor& tensor, const Box& box, const std::string& checksum) {
  return {.name = name,
          .dtype = c10::toString(tensor.dtype),
          .shape = tensor.shape,
          .start = box.start,
          .size = box.size,
          .checksum = checksum,
          .rows = tensor.rows};
}

json layout_of(const tensor::MeshCoordinates& coordinates) {
  json layout = json::object();
  for (const tensor::MeshCoordinates::Axis& axis : coordinates.axes()) layout[axis.name] = axis.size;
  return layout;
}

void Manifest::add(const BlockRow& row) {
  const StoredTensor described{dtype_named(row.dtype), row.shape, {}, row.rows};
  StoredTensor& tensor = tensors.try_emplace(row.name, described).first->second;
  require(tensor.dtype == described.dtype && tensor.shape == described.shape && tensor.rows == described.rows,
          "checkpoint", "ranks disagree on ", printable(row.name), ": ", tensor.dtype, " [", join(tensor.shape, ","),
          "] and ", described.dtype, " [", join(described.shape, ","), "]");
  const Box box{row.start, row.size};
  check_inside(box, tensor.shape, row.name);
  const bool has_rows =
      tensor.rows.empty() || (tensor.rows.size() == 2 && !row.start.empty() && row.start[0] >= tensor.rows[0] &&
                              row.start[0] + row.size[0] <= tensor.rows[1] && tensor.rows[1] <= tensor.shape[0]);
  require(has_rows, "checkpoint", "a block of ", printable(row.name), " is outside its rows [", join(tensor.rows, ","),
          "]");
  tensor.blocks.push_back({row.rank, box, row.checksum});
}

void Manifest::check_complete() const {
  for (const auto& [name, tensor] : tensors) {
    int64_t stored = 0;
    for (const StoredBlock& block : tensor.blocks) stored += block.box.numel();
    std::vector<int64_t> shape = tensor.shape;
    if (!tensor.rows.empty()) shape[0] = tensor.rows[1] - tensor.rows[0];
    const int64_t wanted = Box{{}, shape}.numel();
    require(stored == wanted, "checkpoint", "the stored blocks of ", printable(name), " must hold each of its ", wanted,
            " elements once: got ", stored);
  }
}

void Manifest::write(const std::string& path) const {
  StoredManifest stored{.layout = layout.dump(), .progress = progress.dump(), .step = step};
  for (const auto& [name, tensor] : tensors) {
    for (const StoredBlock& block : tensor.blocks) {
      stored.blocks.push_back(block_row(name, tensor, block.box, block.checksum));
      stored.blocks.back().rank = block.rank;
    }
  }
  stored.checksum = colossal::checksum(to_json_object(stored).dump());
  write_file(path, to_json_object(std::move(stored)).dump(1) + "\n");
}

Manifest Manifest::read(const std::string& path) {
  json stored = read_json_object(path, "checkpoint");
  try {
    const std::string wanted = stored.at("checksum");
    stored.erase("checksum");
    require(checksum(stored.dump()) == wanted, "checkpoint", "damaged: its checksum is not that of its content");
    require(stored.at("version") == kVersion, "checkpoint", "version must be ", kVersion, ": got ",
            stored.at("version").dump());
    const auto read = read_stored<StoredManifest>(stored, "checkpoint");
    const auto value = [&](const std::string& text) {
      return text.empty() ? json() : parse_json(text, path, "checkpoint");
    };
    Manifest manifest{read.step, value(read.layout), value(read.progress), {}};
    for (const BlockRow& row : read.blocks) manifest.add(row);
    manifest.check_complete();
    return manifest;
  } catch (const json::exception& error) {
    throw Error("checkpoint", concat(path, ": not a manifest: ", error.what()));
  } catch (const Error& error) {
    throw Error("checkpoint", concat(path, ": ", error.what()));
  }
}

}  // namespace colossal::checkpoint
