#include "colossal/checkpoint/hugging_face/external_part.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

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

constexpr std::string_view kIndex = "{}";

/// Returns the name of a tensor that holds entry `index` of a stack.
std::string name_of_entry(std::string name, int64_t index) {
  return name.replace(name.find(kIndex), kIndex.size(), std::to_string(index));
}

/// Returns the sizes along dimension 1 of the tensors that each entry of a stack has.
std::vector<int64_t> sizes_in_entry(const nn::Parameter& parameter, const nn::ExternalName& name) {
  const size_t dims = parameter.spec.shape.size();
  require(dims >= 2 && !name.transposed && name.leading_ones == 0, kComponent, name.ours,
          " must have at least two dimensions to be a stack, not transposed and without leading ones: got ", dims,
          " dimensions");
  for (const nn::ExternalRows& part : name.parts)
    require(part.is_whole() && part.name.find(kIndex) != std::string::npos, kComponent, name.ours,
            " is a stack, so its parts must be whole tensors named with {} in place of the index: got ", part.name);
  if (name.parts.size() == 1) return {parameter.spec.shape[1]};
  const std::vector<tensor::Segment>& segments = parameter.spec.splits.at(1).segments;
  require(segments.size() == name.parts.size(), kComponent, name.ours, " has ", segments.size(),
          " segments in dimension 1 but ", name.parts.size(), " names");
  std::vector<int64_t> sizes;
  for (const tensor::Segment& segment : segments) sizes.push_back(segment.size);
  return sizes;
}

/// Adds the parts of a stack, entry by entry.
void add_stack(const nn::Parameter& parameter, const nn::ExternalName& name, std::vector<ExternalPart>& parts) {
  const int64_t entries = rows_in(parameter);
  const bool is_joint = name.parts.size() == 1 && name.parts.front().name.find(kIndex) == std::string::npos;
  if (is_joint) {
    for (int64_t entry = 0; entry < entries; ++entry)
      parts.push_back({.parameter = &parameter,
                       .name = name.parts.front().name,
                       .box = rows_box(parameter, entry, 1),
                       .transposed = false,
                       .first = entry,
                       .stack = Stack::Joint});
    return;
  }
  const std::vector<int64_t> sizes = sizes_in_entry(parameter, name);
  for (int64_t entry = 0; entry < entries; ++entry) {
    int64_t at = 0;
    for (size_t i = 0; i < sizes.size(); at += sizes[i++]) {
      Box box = rows_box(parameter, entry, 1);
      box.start[1] = at;
      box.size[1] = sizes[i];
      parts.push_back({.parameter = &parameter,
                       .name = name_of_entry(name.parts[i].name, entry),
                       .box = std::move(box),
                       .transposed = false,
                       .stack = Stack::Separate});
    }
  }
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
  std::vector<int64_t> ours = shape();
  if (stack == Stack::Separate) ours.erase(ours.begin());
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
  if (stack == Stack::Separate) return tensor.unsqueeze(0);
  const at::Tensor ours = leading_ones == 0 ? tensor : tensor.flatten(0, leading_ones);
  return transposed ? ours.t() : ours;
}

at::Tensor ExternalPart::to_theirs(const at::Tensor& tensor) const {
  if (stack == Stack::Separate) return tensor.squeeze(0);
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
    if (name.stacked) {
      add_stack(parameter, name, parts);
      continue;
    }
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

std::vector<nn::FolderMatrix> matrices_of(const std::vector<const ExternalPart*>& parts) {
  std::vector<nn::FolderMatrix> matrices;
  std::map<std::string, size_t> indices;  // by the names of tensors
  for (const ExternalPart* part : parts) {
    const size_t d = part->stack == Stack::None ? 0 : 1;  // the dimension of rows in boxes
    const auto [index, is_new] = indices.try_emplace(part->name, matrices.size());
    if (is_new)
      matrices.push_back(
          {.parts = {}, .rows = d == 0 ? part->rows : part->box.size[1], .transposed = part->transposed});
    nn::FolderRows rows{.row = part->box.start[d], .count = part->box.size[d]};
    if (d == 0) rows.first = part->first, rows.stride = part->stride;
    matrices[index->second].parts.push_back(rows);
  }
  return matrices;
}

}  // namespace colossal::checkpoint
