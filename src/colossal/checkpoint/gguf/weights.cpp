#include "colossal/checkpoint/gguf/weights.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>

#include "colossal/base/error.h"
#include "colossal/base/json_file.h"
#include "colossal/base/mapped_file.h"
#include "colossal/checkpoint/gguf/blocks.h"
#include "colossal/checkpoint/gguf/codes.h"
#include "colossal/checkpoint/gguf/rotary.h"

namespace colossal::checkpoint {
namespace {

at::ScalarType dtype_of(const formats::GgufType& type) {
  const std::string_view name = type.name;
  return name == "F16" ? at::kHalf : name == "BF16" ? at::kBFloat16 : at::kFloat;
}

/// Returns the values in the order of the file: a view of it if they are stored as plain numbers.
at::Tensor read(const formats::GgufFile& file, const formats::GgufTensor& tensor) {
  const at::ScalarType dtype = dtype_of(*tensor.type);
  const char* blocks = file.bytes(tensor).data();
  if (tensor.type->block == 1)
    return at::from_blob(
        const_cast<char*>(blocks), tensor.shape, [mapping = file.mapping()](void*) {},
        at::TensorOptions().dtype(dtype));
  const at::Tensor numbers = at::empty(tensor.shape, at::kFloat);
  decode_gguf(*tensor.type, blocks, tensor.numbers(), numbers.mutable_data_ptr<float>());
  return numbers;
}

}  // namespace

GgufWeights::GgufWeights(const std::string& path) : file_(path) {
  const GgufFamily& family = family_of_architecture(file_.text("general.architecture"), path);
  const std::string prefix = concat(family.architecture, ".attention.head_count");
  heads_.heads = file_.integer(prefix);
  heads_.kv_heads = file_.integer(prefix + "_kv", heads_.heads);
  for (const formats::GgufTensor& tensor : file_.tensors()) {
    if (is_rope_factors(tensor.name)) continue;
    require(can_decode(*tensor.type), "gguf", path, ": ", printable(tensor.name), " has type ", tensor.type->name,
            ", which is not supported; convert the file to one of Q8_0, Q6_K, Q5_K, Q4_K, F16, BF16, F32");
    const GgufPlace place = folder_place(family, tensor.name, file_).value_or(GgufPlace{tensor.name});
    TensorEntry entry{place.name, dtype_of(*tensor.type), tensor.shape};
    if (place.change == GgufChange::Transposed) std::reverse(entry.shape.begin(), entry.shape.end());
    const bool is_new = places_.emplace(place.name, Place{&tensor, place.change, std::move(entry)}).second;
    require(is_new, "gguf", path, ": ", printable(tensor.name), " is stored under another name, too");
  }
  for (const auto& [name, place] : places_) entries_[name] = &place.entry;
}

at::Tensor GgufWeights::tensor(const std::string& name) const {
  const Place& place = places_.at(name);
  const at::Tensor numbers = read(file_, *place.tensor);
  // A sum in 16 bits would be rounded once more.
  return to_folder(place.change == GgufChange::OneMore ? numbers.to(at::kFloat) : numbers, place.change, heads_);
}

std::optional<ops::GroupCodes> GgufWeights::codes(const std::string& name) const {
  const Place& place = places_.at(name);
  const formats::GgufTensor& tensor = *place.tensor;
  if (tensor.shape.size() != 2 || place.change == GgufChange::Transposed || place.change == GgufChange::OneMore)
    return std::nullopt;
  std::optional<ops::GroupCodes> codes =
      codes_of_gguf(*tensor.type, file_.bytes(tensor).data(), tensor.shape[0], tensor.shape[1]);
  if (!codes) return codes;
  for (at::Tensor* part : {&codes->codes, &codes->scales, &codes->minima})
    if (part->defined()) *part = to_folder(*part, place.change, heads_);
  return codes;
}

const formats::GgufTensor* GgufWeights::raw(const std::string& name) const {
  const auto found = places_.find(name);
  return found == places_.end() ? nullptr : found->second.tensor;
}

}  // namespace colossal::checkpoint
