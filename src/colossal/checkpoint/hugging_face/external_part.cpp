#include "colossal/checkpoint/hugging_face/external_part.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>

#include "colossal/base/error.h"

namespace colossal::checkpoint {
namespace {

constexpr char kComponent[] = "hugging face";

/// Returns the box of rows [row, row + count) of `parameter`.
Box rows_box(const nn::Parameter& parameter, int64_t row, int64_t count) {
  Box box{std::vector<int64_t>(parameter.spec.shape.size(), 0), parameter.spec.shape};
  if (box.size.empty()) return box;
  box.start[0] = row;
  box.size[0] = count;
  return box;
}

int64_t rows_in(const nn::Parameter& parameter) {
  return parameter.spec.shape.empty() ? 1 : parameter.spec.shape.front();
}

/// Returns the number of rows of the parameter that each part of its name has.
std::vector<int64_t> counts_of(const nn::Parameter& parameter, const nn::ExternalName& name) {
  const int64_t all = rows_in(parameter);
  const bool whole = name.parts.empty() || name.parts.front().is_whole();
  std::vector<int64_t> counts;
  int64_t sum = 0;
  for (const nn::ExternalRows& part : name.parts) {
    require(part.is_whole() == whole, kComponent, name.ours,
            " must map to whole tensors or to rows of tensors, not to both; give the rows of ", part.name);
    if (whole) continue;
    require(part.first >= 0 && part.count > 0 && part.stride > 0 && part.count <= all - sum, kComponent, name.ours,
            " has ", all, " rows, of which part ", part.name,
            " must be at least one, from a valid first row: got first ", part.first, ", count ", part.count,
            ", stride ", part.stride, " after ", sum, " rows of other parts");
    counts.push_back(part.count);
    sum += part.count;
  }
  if (!whole) {
    require(sum == all, kComponent, name.ours, " has ", all, " rows, but its parts have ", sum);
    return counts;
  }
  if (name.parts.size() == 1) return {all};
  const std::vector<tensor::Segment>& segments = parameter.spec.splits.at(0).segments;
  require(segments.size() == name.parts.size(), kComponent, name.ours, " has ", segments.size(), " segments but ",
          name.parts.size(), " names");
  for (const tensor::Segment& segment : segments) counts.push_back(segment.size);
  return counts;
}

/// Sets ExternalPart::rows for each tensor of the folder.
void count_rows(std::vector<ExternalPart>& parts) {
  std::map<std::string, std::vector<ExternalPart*>> tensors;
  for (ExternalPart& part : parts) tensors[part.name].push_back(&part);
  for (const auto& [name, own] : tensors) {
    int64_t rows = 0;
    for (const ExternalPart* part : own) rows += part->box.size.empty() ? 1 : part->box.size[0];
    std::vector<bool> taken(rows);
    for (ExternalPart* part : own) {
      part->rows = rows;
      require(part->external_shape() == own.front()->external_shape() && part->transposed == own.front()->transposed,
              kComponent, "rows of ", name, " must have one shape in all parameters: ", part->parameter->name, " and ",
              own.front()->parameter->name, " differ");
      const int64_t count = part->box.size.empty() ? 1 : part->box.size[0];
      for (int64_t i = 0; i < count; ++i) {
        const int64_t row = part->first + i * part->stride;
        require(row < rows && !taken[row], kComponent, "parameters must use the first ", rows, " rows of ", name,
                ", each once: got row ", row, row < rows ? " twice, of " : ", of ", part->parameter->name);
        taken[row] = true;
      }
    }
  }
}

}  // namespace

std::vector<int64_t> ExternalPart::shape() const {
  std::vector<int64_t> all = box.size;
  if (!all.empty()) all.front() = rows;
  return all;
}

std::vector<int64_t> ExternalPart::external_shape() const {
  const std::vector<int64_t> ours = shape();
  std::vector<int64_t> theirs(leading_ones, 1);
  if (transposed)
    theirs.insert(theirs.end(), ours.rbegin(), ours.rend());
  else
    theirs.insert(theirs.end(), ours.begin(), ours.end());
  return theirs;
}

at::Tensor ExternalPart::rows_of(const at::Tensor& whole) const {
  if (box.size.empty()) return whole;
  return whole.slice(0, first, first + (box.size[0] - 1) * stride + 1, stride);
}

at::Tensor ExternalPart::to_ours(const at::Tensor& tensor) const {
  const at::Tensor ours = leading_ones == 0 ? tensor : tensor.flatten(0, leading_ones);
  return transposed ? ours.t() : ours;
}

at::Tensor ExternalPart::to_theirs(const at::Tensor& tensor) const {
  at::Tensor theirs = transposed ? tensor.t() : tensor;
  for (int64_t i = 0; i < leading_ones; ++i) theirs = theirs.unsqueeze(0);
  return theirs;
}

void require_none_added(const nn::Parameters& parameters, const std::string& model) {
  for (const nn::Parameter& parameter : parameters.declared())
    require(!parameter.is_added || parameter.model != model, kComponent,
            "folders have the parameters of a model alone: got ", parameter.name,
            ", which an adapter added; write the model without its adapter");
}

std::vector<ExternalPart> external_parts(const nn::Parameters& parameters, const std::vector<nn::ExternalName>& names,
                                         const std::string& model) {
  std::map<std::string, const nn::Parameter*> unnamed;
  for (const nn::Parameter& parameter : parameters.declared())
    if (!parameter.is_added && parameter.model == model) unnamed[parameter.own_name()] = &parameter;
  for (const nn::Buffer& buffer : parameters.buffers())
    if (buffer.model == model &&
        std::any_of(names.begin(), names.end(), [&](const auto& name) { return name.ours == buffer.own_name(); }))
      unnamed[buffer.own_name()] = &buffer;
  std::vector<ExternalPart> parts;
  for (const nn::ExternalName& name : names) {
    const auto found = unnamed.find(name.ours);
    require(found != unnamed.end(), kComponent, "unknown parameter, or one with two names: ", name.ours);
    const nn::Parameter& parameter = *found->second;
    unnamed.erase(found);
    const bool transposed = name.transposed && parameter.spec.shape.size() == 2;
    const std::vector<int64_t> counts = counts_of(parameter, name);
    int64_t row = 0;
    for (size_t i = 0; i < counts.size(); row += counts[i++]) {
      const nn::ExternalRows& rows = name.parts[i];
      parts.push_back({&parameter, rows.name, rows_box(parameter, row, counts[i]), transposed, name.leading_ones,
                       rows.first, rows.stride});
    }
  }
  require(unnamed.empty(), kComponent, "a parameter of this model has no name in Hugging Face folders: ",
          unnamed.empty() ? "" : unnamed.begin()->first);
  count_rows(parts);
  return parts;
}

}  // namespace colossal::checkpoint
