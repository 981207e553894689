#include "colossal/tensor/batch.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "colossal/base/error.h"
#include "colossal/base/join.h"

namespace colossal::tensor {
namespace {

const Batch::Named* found(const std::vector<Batch::Named>& fields, std::string_view name) {
  const auto field =
      std::find_if(fields.begin(), fields.end(), [&](const Batch::Named& other) { return other.name == name; });
  return field == fields.end() ? nullptr : &*field;
}

std::string names_of(const std::vector<Batch::Named>& fields) {
  return fields.empty() ? "no fields" : join(fields, ", ", &Batch::Named::name);
}

}  // namespace

void Batch::add(const std::string& name, Field field) {
  require(!name.empty(), "data", "a field of a batch must have a name: got an empty one");
  require(!found(fields_, name), "data", "the names of a batch's fields must differ: got `", name,
          "` twice; rename one of them");
  const at::Tensor& t = field.tensor;
  require(t.defined(), "data", "field `", name, "` must have a tensor: got an undefined one; leave the field out");
  require(t.dim() > 0 && static_cast<int64_t>(field.dims.size()) == t.dim(), "data", "field `", name,
          "` must name the kind of each dimension: got ", field.dims.size(), " kinds for sizes ", t.sizes());
  require(field.dims.front() == Dim::Row && std::count(field.dims.begin(), field.dims.end(), Dim::Row) == 1, "data",
          "field `", name, "` must have rows in its first dimension and in no other one: got sizes ", t.sizes(),
          "; put the samples first");
  require(fields_.empty() || t.size(0) == rows(), "data", "field `", name, "` must have the ", rows(),
          " rows of the batch: got ", t.size(0), "; give every field one row per sample");
  fields_.push_back({name, std::move(field)});
}

Batch Batch::with(const std::string& name, Field field) const {
  Batch result = without(name);
  result.add(name, std::move(field));
  return result;
}

Batch Batch::without(std::string_view name) const {
  Batch result = *this;
  std::erase_if(result.fields_, [&](const Named& named) { return named.name == name; });
  return result;
}

const Field& Batch::field(std::string_view name) const {
  const Named* named = found(fields_, name);
  require(named != nullptr, "data", "the batch must have a field `", name, "`: got ", names_of(fields_),
          "; add it where the samples are made, or read one of these");
  return named->field;
}

at::Tensor Batch::find(std::string_view name) const {
  const Named* named = found(fields_, name);
  return named ? named->field.tensor : at::Tensor();
}

int64_t Batch::rows() const { return fields_.empty() ? 0 : fields_.front().field.tensor.size(0); }

int64_t Batch::tokens() const {
  for (const auto& [name, field] : fields_) {
    const auto dim = std::find(field.dims.begin(), field.dims.end(), Dim::Token);
    if (dim != field.dims.end()) return field.tensor.size(dim - field.dims.begin());
  }
  return 0;
}

Batch Batch::part(int64_t first, int64_t count) const {
  require(first >= 0 && count >= 0 && first + count <= rows(), "data", "a part of a batch must lie in its ", rows(),
          " rows: got rows ", first, " to ", first + count - 1);
  return map([&](const Field& field) { return field.tensor.narrow(0, first, count); });
}

Batch Batch::map(const std::function<at::Tensor(const Field&)>& change) const {
  Batch changed;
  changed.wanted = wanted;
  changed.fields_.reserve(fields_.size());
  for (const auto& [name, field] : fields_)
    changed.add(name, {change(field), field.dims, field.ignored, field.stays_whole});
  return changed;
}

Batch joined_rows(const std::vector<Batch>& parts) {
  require(!parts.empty(), "data", "rows must come from one batch or more: got none");
  Batch joined;
  for (const auto& [name, field] : parts.front().fields()) {
    std::vector<at::Tensor> tensors;
    for (const Batch& part : parts) tensors.push_back(part.at(name));
    joined.add(name, {at::cat(tensors), field.dims, field.ignored, field.stays_whole});
  }
  return joined;
}

}  // namespace colossal::tensor
