#include "colossal/checkpoint/manifest.h"

#include <ATen/ATen.h>

#include "colossal/base/checksum.h"
#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/base/json_file.h"
#include "colossal/checkpoint/safetensors.h"

namespace colossal::checkpoint {
namespace {

using nlohmann::json;

constexpr int kVersion = 1;

std::vector<int64_t> sizes(const json& list) {
  std::vector<int64_t> values;
  for (const json& value : list) {
    const bool fits = value.is_number_unsigned() ? value.get<uint64_t>() <= uint64_t{INT64_MAX}
                                                 : value.is_number_integer() && value.get<int64_t>() >= 0;
    require(fits, "checkpoint", "sizes must be whole numbers below 2^63: got ", value.dump());
    values.push_back(value.get<int64_t>());
  }
  return values;
}

std::string joined(const std::vector<int64_t>& values) {
  std::string text;
  for (int64_t value : values) text += (text.empty() ? "" : ",") + std::to_string(value);
  return text;
}

at::ScalarType dtype_named(const std::string& name) {
  for (int i = 0; i < static_cast<int>(at::ScalarType::NumOptions); ++i)
    if (name == c10::toString(static_cast<at::ScalarType>(i))) return static_cast<at::ScalarType>(i);
  throw Error("checkpoint", concat("unknown dtype ", printable(name)));
}

void check_inside(const Box& box, const std::vector<int64_t>& shape, const std::string& name) {
  bool inside = box.start.size() == shape.size() && box.size.size() == shape.size();
  for (size_t d = 0; inside && d < shape.size(); ++d)
    inside = box.size[d] > 0 && box.start[d] <= shape[d] && box.size[d] <= shape[d] - box.start[d];
  require(inside, "checkpoint", "a block of ", printable(name), " is outside its shape [", joined(shape), "]");
}

}  // namespace

std::string block_name(const std::string& tensor, const Box& box) { return tensor + "@" + joined(box.start); }

std::string shard_name(int rank) {
  const std::string digits = std::to_string(rank);
  return "rank-" + std::string(digits.size() < 5 ? 5 - digits.size() : 0, '0') + digits + ".safetensors";
}

json block_row(const std::string& name, const StoredTensor& tensor, const Box& box, const std::string& checksum) {
  return {{"name", name},          {"dtype", c10::toString(tensor.dtype)},
          {"shape", tensor.shape}, {"start", box.start},
          {"size", box.size},      {"checksum", checksum}};
}

json layout_of(const tensor::MeshCoordinates& coordinates) {
  json layout = json::object();
  for (const tensor::MeshCoordinates::Axis& axis : coordinates.axes()) layout[axis.name] = axis.size;
  return layout;
}

void Manifest::add(int rank, const json& table) {
  for (const json& row : table) {
    const std::string name = row.at("name");
    const StoredTensor described{dtype_named(row.at("dtype")), sizes(row.at("shape")), {}};
    StoredTensor& tensor = tensors.try_emplace(name, described).first->second;
    require(tensor.dtype == described.dtype && tensor.shape == described.shape, "checkpoint", "ranks disagree on ",
            printable(name), ": ", tensor.dtype, " [", joined(tensor.shape), "] and ", described.dtype, " [",
            joined(described.shape), "]");
    const Box box{sizes(row.at("start")), sizes(row.at("size"))};
    check_inside(box, tensor.shape, name);
    tensor.blocks.push_back({rank, box, row.at("checksum")});
  }
}

void Manifest::check_complete() const {
  for (const auto& [name, tensor] : tensors) {
    int64_t stored = 0;
    for (const StoredBlock& block : tensor.blocks) stored += block.box.numel();
    const int64_t wanted = Box{{}, tensor.shape}.numel();
    require(stored == wanted, "checkpoint", "the stored blocks of ", printable(name), " must hold each of its ", wanted,
            " elements once: got ", stored);
  }
}

void Manifest::write(const std::string& path) const {
  json rows = json::array();
  for (const auto& [name, tensor] : tensors) {
    for (const StoredBlock& block : tensor.blocks) {
      rows.push_back(block_row(name, tensor, block.box, block.checksum));
      rows.back()["rank"] = block.rank;
    }
  }
  json manifest = {{"format", "colossal checkpoint"},
                   {"version", kVersion},
                   {"step", step},
                   {"layout", layout},
                   {"blocks", rows},
                   {"progress", progress}};
  manifest["checksum"] = checksum(manifest.dump());
  write_file(path, manifest.dump(1) + "\n");
}

Manifest Manifest::read(const std::string& path) {
  json stored = read_json_object(path, "checkpoint");
  try {
    const std::string wanted = stored.at("checksum");
    stored.erase("checksum");
    require(checksum(stored.dump()) == wanted, "checkpoint", "damaged: its checksum is not that of its content");
    require(stored.at("version") == kVersion, "checkpoint", "version must be ", kVersion, ": got ",
            stored.at("version").dump());
    Manifest manifest{stored.at("step"), stored.at("layout"), stored.at("progress"), {}};
    for (const json& row : stored.at("blocks")) manifest.add(row.at("rank"), json::array({row}));
    manifest.check_complete();
    return manifest;
  } catch (const json::exception& error) {
    throw Error("checkpoint", concat(path, ": not a manifest: ", error.what()));
  } catch (const Error& error) {
    throw Error("checkpoint", concat(path, ": ", error.what()));
  }
}

}  // namespace colossal::checkpoint
