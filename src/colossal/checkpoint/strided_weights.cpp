#include "colossal/checkpoint/strided_weights.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>

#include "colossal/base/error.h"
#include "colossal/base/json_file.h"
#include "colossal/checkpoint/hugging_face/weight_folder.h"
#include "colossal/formats/npy.h"
#include "colossal/formats/torch_file.h"

namespace colossal::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr char kStrided[] = "hugging face";

at::ScalarType dtype_of_element(formats::ElementType type) {
  using enum formats::ElementType;
  switch (type) {
    case F64:
      return at::kDouble;
    case F32:
      return at::kFloat;
    case F16:
      return at::kHalf;
    case BF16:
      return at::kBFloat16;
    case I64:
      return at::kLong;
    case I32:
      return at::kInt;
    case I16:
      return at::kShort;
    case I8:
      return at::kChar;
    case U64:
      return at::kUInt64;
    case U32:
      return at::kUInt32;
    case U16:
      return at::kUInt16;
    case U8:
      return at::kByte;
    case Bool:
      return at::kBool;
    case F8E4M3:
      return at::kFloat8_e4m3fn;
    case F8E5M2:
      return at::kFloat8_e5m2;
    case C64:
      return at::kComplexFloat;
  }
  throw Error(kStrided, "an element type without a dtype");
}

at::Tensor read_strided(const formats::TensorFile& file, const formats::StridedTensor& place) {
  const auto options = at::TensorOptions().dtype(dtype_of_element(place.type));
  const int64_t span = place.span();
  if (span == 0) return at::empty(place.shape, options);
  const at::Tensor elements = at::empty({span}, options);
  file.read(place, elements.mutable_data_ptr());
  return elements.as_strided(place.shape, place.strides).contiguous();
}

/// Returns the path of the pickle of a folder, or of its index; none = it has neither.
std::optional<std::string> find_pickle(const std::string& folder) {
  std::error_code none;
  for (const std::string variant : {"", ".fp16"})
    for (const char* stem : {"pytorch_model", "diffusion_pytorch_model"}) {
      const std::string file = concat(folder, "/", stem);
      for (const std::string& path : {concat(file, variant, ".bin"), concat(file, ".bin.index", variant, ".json"),
                                      concat(file, variant, ".bin.index.json")})
        if (fs::exists(path, none)) return path;
    }
  return {};
}

/// Opens the files that an index names, and checks that they hold its tensors.
std::vector<std::unique_ptr<formats::TensorFile>> open_indexed(const std::string& folder, const std::string& path) {
  std::map<std::string, std::unique_ptr<formats::TensorFile>> files;
  for (const auto& [name, file] : read_weight_map(path)) {
    const std::string where = concat(folder, "/", file);
    auto& open = files[where];
    if (!open) open = std::make_unique<formats::TorchFile>(where);
    require(open->tensors().contains(name), kStrided, path, ": ", where, " does not hold ", printable(name));
  }
  std::vector<std::unique_ptr<formats::TensorFile>> all;
  for (auto& [where, file] : files) all.push_back(std::move(file));
  return all;
}

}  // namespace

StridedWeights::StridedWeights(std::vector<std::unique_ptr<formats::TensorFile>> files) : files_(std::move(files)) {
  for (const auto& file : files_)
    for (const auto& [name, place] : file->tensors()) {
      TensorEntry entry{name, dtype_of_element(place.type), place.shape};
      uint64_t numbers = 1;
      for (const int64_t size : place.shape) numbers *= static_cast<uint64_t>(size);
      entry.end = numbers * static_cast<uint64_t>(formats::bytes_of(place.type));
      const auto [found, is_new] = stored_.emplace(name, Stored{file.get(), &place, std::move(entry)});
      require(is_new, kStrided, file->path(), ": ", printable(name), " is in another file too");
      entries_[name] = &found->second.entry;
    }
}

at::Tensor StridedWeights::tensor(const std::string& name) const {
  const Stored& stored = stored_.at(name);
  return read_strided(*stored.file, *stored.place);
}

at::Tensor StridedWeights::row(const std::string& name, int64_t row) const {
  const Stored& stored = stored_.at(name);
  formats::StridedTensor part = *stored.place;
  require(!part.shape.empty() && row >= 0 && row < part.shape[0], kStrided, stored.file->path(), ": a row of ",
          printable(name), " must be within it: got ", row);
  part.begin += static_cast<uint64_t>(row * part.strides[0] * formats::bytes_of(part.type));
  part.shape.erase(part.shape.begin());
  part.strides.erase(part.strides.begin());
  return read_strided(*stored.file, part);
}

bool has_strided_name(const std::string& file) {
  const std::set<std::string> endings{".bin", ".ckpt", ".npz", ".pt", ".pth"};
  return endings.contains(fs::path(file).extension().string());
}

bool is_strided_file(const std::string& path) {
  std::error_code none;
  return has_strided_name(path) && fs::is_regular_file(path, none);
}

std::unique_ptr<WeightSource> open_strided_weights(const std::string& file) {
  std::vector<std::unique_ptr<formats::TensorFile>> files;
  if (file.ends_with(".npz"))
    files.push_back(std::make_unique<formats::NpzFile>(file));
  else
    files.push_back(std::make_unique<formats::TorchFile>(file));
  return std::make_unique<StridedWeights>(std::move(files));
}

std::unique_ptr<WeightSource> open_pickled_folder(const std::string& folder) {
  if (has_weight_files(folder)) return nullptr;
  const std::optional<std::string> path = find_pickle(folder);
  if (!path) return nullptr;
  if (!path->ends_with(".json")) return open_strided_weights(*path);
  return std::make_unique<StridedWeights>(open_indexed(folder, *path));
}

}  // namespace colossal::checkpoint
