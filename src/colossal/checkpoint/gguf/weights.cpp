#include "colossal/checkpoint/gguf/weights.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>

#include "colossal/base/error.h"
#include "colossal/base/json_file.h"
#include "colossal/base/mapped_file.h"
#include "colossal/checkpoint/gguf/blocks.h"
#include "colossal/checkpoint/gguf/latent.h"
#include "colossal/checkpoint/gguf/rotary.h"
#include "colossal/ops/parallel.h"

namespace colossal::checkpoint {
namespace {

at::ScalarType dtype_of(const formats::GgufType& type) {
  const std::string_view name = type.name;
  return name == "F16" ? at::kHalf : name == "BF16" ? at::kBFloat16 : at::kFloat;
}

bool is_latent(GgufChange change) { return change == GgufChange::LatentKeys || change == GgufChange::LatentValues; }

}  // namespace

GgufWeights::GgufWeights(const std::string& path) : file_(path) {
  const GgufFamily& family = family_of(file_);
  const std::string prefix = concat(family.architecture, ".attention.head_count");
  heads_.heads = file_.integer(prefix);
  heads_.kv_heads = file_.integer(prefix + "_kv", heads_.heads);
  if (has_latent(family)) heads_ = latent_heads(file_);
  for (const formats::GgufTensor& tensor : file_.tensors()) {
    if (is_rope_factors(tensor.name)) continue;
    require(can_decode(*tensor.type), "gguf", path, ": ", printable(tensor.name), " has type ", tensor.type->name,
            ", which is not supported; convert the file to one of Q8_0, Q6_K, Q5_K, Q4_K, F16, BF16, F32");
    const GgufPlace place = folder_place(family, tensor.name, file_).value_or(GgufPlace{tensor.name});
    if (is_latent(place.change)) {
      add_latent(tensor, place);
      continue;
    }
    if (!is_stack_name(place.name) || place.name == tensor.name) {
      add(tensor, place);
      continue;
    }
    const int64_t count = file_.integer(concat(family.architecture, ".expert_count"));
    require(tensor.shape.size() > 1 && tensor.shape.front() == count, "gguf", path, ": ", printable(tensor.name),
            " must have a matrix for each of ", count, " experts: got ", tensor.shape.front());
    for (int64_t entry = 0; entry < count; ++entry)
      add(tensor, {name_of_entry(place.name, entry), place.change, entry});
  }
  check_latents();
  for (const auto& [name, place] : places_) entries_[name] = &place.entry;
}

/// Adds the keys or the values of a latent to the tensor of the folder that has both.
void GgufWeights::add_latent(const formats::GgufTensor& tensor, const GgufPlace& place) {
  const bool are_keys = place.change == GgufChange::LatentKeys;
  const size_t rank_at = are_keys ? 1 : 2;
  require(tensor.shape.size() == 3, "gguf", file_.path(), ": ", printable(tensor.name),
          " must have 3 dimensions, of which the first is heads: got ", tensor.shape.size());
  const auto [found, is_new] = places_.try_emplace(place.name);
  Place& its = found->second;
  const formats::GgufTensor*& own = are_keys ? its.tensor : its.values;
  require((is_new || is_latent(its.change)) && !own, "gguf", file_.path(), ": ", printable(tensor.name),
          " is stored under another name, too");
  own = &tensor;
  its.change = GgufChange::LatentKeys;
  const at::ScalarType dtype = dtype_of(*tensor.type);
  its.entry = {place.name,
               is_new || its.entry.dtype == dtype ? dtype : at::kFloat,
               {heads_.heads * (heads_.nope + heads_.value), tensor.shape[rank_at]}};
}

void GgufWeights::check_latents() const {
  using Shape = std::vector<int64_t>;
  for (const auto& [name, place] : places_) {
    if (!is_latent(place.change)) continue;
    require(place.tensor && place.values, "gguf", file_.path(), ": ",
            printable((place.tensor ? place.tensor : place.values)->name), " needs ",
            place.tensor ? "attn_v_b" : "attn_k_b", " in its layer: got none");
    const int64_t rank = place.entry.shape[1];
    require(place.tensor->shape == Shape({heads_.heads, rank, heads_.nope}) &&
                place.values->shape == Shape({heads_.heads, heads_.value, rank}),
            "gguf", file_.path(), ": ", printable(place.tensor->name), " and attn_v_b must be [heads, rank, features] ",
            "and [heads, features, rank], with ", heads_.heads, " heads of ", heads_.nope, " and ", heads_.value,
            " features and one rank: got other shapes; convert the model again");
  }
}

void GgufWeights::add(const formats::GgufTensor& tensor, const GgufPlace& place) {
  TensorEntry entry{place.name, dtype_of(*tensor.type), tensor.shape};
  if (place.entry >= 0) entry.shape.erase(entry.shape.begin());
  if (place.change == GgufChange::Transposed) std::reverse(entry.shape.begin(), entry.shape.end());
  const bool is_new = places_.emplace(place.name, Place{&tensor, place.change, std::move(entry), place.entry}).second;
  require(is_new, "gguf", file_.path(), ": ", printable(tensor.name), " is stored under another name, too");
}

/// Returns the blocks of a tensor of the folder. The rows of a stack are whole blocks, so those of an entry are too.
std::string_view GgufWeights::blocks(const Place& place) const {
  const std::string_view all = file_.bytes(*place.tensor);
  if (place.index < 0) return all;
  const size_t size = all.size() / static_cast<size_t>(place.tensor->shape.front());
  return all.substr(static_cast<size_t>(place.index) * size, size);
}

/// Returns the values in the order of the file: a view of it if they are stored as plain numbers.
at::Tensor GgufWeights::read(const Place& place) const {
  const formats::GgufType& type = *place.tensor->type;
  const at::IntArrayRef whole = place.tensor->shape, shape = place.index < 0 ? whole : whole.slice(1);
  const char* own = blocks(place).data();
  if (type.block == 1)
    return at::from_blob(
        const_cast<char*>(own), shape, [mapping = file_.mapping()](void*) {},
        at::TensorOptions().dtype(dtype_of(type)));
  const at::Tensor numbers = at::empty(shape, at::kFloat);
  auto* to = numbers.mutable_data_ptr<float>();
  constexpr int64_t kAtOnce = 32768;  // elements that are worth a thread
  ops::parallel_for(0, numbers.numel() / type.block, kAtOnce / type.block, [&](int64_t first, int64_t end) {
    decode_gguf(type, own + first * type.bytes, (end - first) * type.block, to + first * type.block);
  });
  return numbers;
}

at::Tensor GgufWeights::tensor(const std::string& name) const {
  const Place& place = places_.at(name);
  const at::Tensor numbers = read(place);
  if (place.values) {
    const at::Tensor values = read({.tensor = place.values, .change = place.change, .entry = {}});
    const at::ScalarType dtype = place.entry.dtype;
    return latent_joined(numbers.to(dtype), values.to(dtype), heads_);
  }
  // A sum in 16 bits would be rounded once more.
  return to_folder(place.change == GgufChange::OneMore ? numbers.to(at::kFloat) : numbers, place.change, heads_);
}

bool GgufWeights::may_be_codes(const Place& place) {
  return place.entry.shape.size() == 2 && !place.values && place.change != GgufChange::Transposed &&
         place.change != GgufChange::OneMore;
}

std::optional<CodesForm> GgufWeights::codes_form(const std::string& name) const {
  const Place& place = places_.at(name);
  if (!may_be_codes(place)) return {};
  const std::string_view type = place.tensor->type->name;  // as codes_of_gguf() supports it
  if (type == "Q8_0") return CodesForm{.bits = 8, .group = 32};
  if (type == "Q4_0") return CodesForm{.bits = 4, .group = 32};
  if (type == "Q4_1" || type == "Q4_K") return CodesForm{.bits = 4, .group = 32, .minima = true};
  return {};
}

std::optional<ops::GroupCodes> GgufWeights::codes(const std::string& name) const {
  const Place& place = places_.at(name);
  const std::vector<int64_t>& shape = place.entry.shape;
  if (!may_be_codes(place)) return std::nullopt;
  std::optional<ops::GroupCodes> codes = codes_of_gguf(*place.tensor->type, blocks(place).data(), shape[0], shape[1]);
  if (!codes) return codes;
  for (at::Tensor* part : {&codes->codes, &codes->scales, &codes->minima})
    if (part->defined()) *part = to_folder(*part, place.change, heads_);
  return codes;
}

void GgufWeights::leave(const std::string& name) const {
  const Place& place = places_.at(name);
  file_.leave(*place.tensor);
  if (place.values) file_.leave(*place.values);
}

bool GgufWeights::can_wait(const std::string& name) const {
  const Place& place = places_.at(name);
  return file_.is_in_memory(*place.tensor) && (!place.values || file_.is_in_memory(*place.values));
}

const formats::GgufTensor* GgufWeights::raw(const std::string& name) const {
  const auto found = places_.find(name);
  return found == places_.end() || found->second.values ? nullptr : found->second.tensor;
}

}  // namespace colossal::checkpoint
