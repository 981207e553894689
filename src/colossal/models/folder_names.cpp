#include "colossal/models/folder_names.h"

#include <algorithm>
#include <optional>

#include "colossal/base/article.h"
#include "colossal/base/error.h"
#include "colossal/models/decoder.h"
#include "colossal/nn/serial_layers.h"

namespace colossal::models {
namespace {

/// Returns the row of `rows` for the parameter `name`, with its names in the folder, each after the prefix `theirs`.
std::optional<nn::ExternalName> find_row(const std::vector<nn::ExternalName>& rows, const std::string& name,
                                         const std::string& theirs) {
  const std::string ending = name.substr(std::min(name.rfind('.'), name.size()));
  for (const nn::ExternalName& row : rows) {
    const bool is_parameter = row.ours == name;
    if (!is_parameter && row.ours + ending != name) continue;
    nn::ExternalName found = row;
    for (nn::ExternalRows& part : found.parts) part.name = theirs + part.name + (is_parameter ? "" : ending);
    if (!row.joint.empty()) found.joint = theirs + row.joint;
    return found;
  }
  return {};
}

/// Returns the names in the folder of the parameter or buffer `name`.
std::optional<nn::ExternalName> find_name(const ModelShape& shape, const FolderNames& names, const std::string& name) {
  if (std::optional<nn::ExternalName> row = find_row(names.outside, name, "")) return row;
  if (const std::optional<int64_t> block = block_of(name, shape.blocks())) {
    const std::string ours = concat("blocks.", *block, ".");
    const std::string theirs =
        names.each_block.empty() ? concat(names.blocks, *block, ".") : names.each_block.at(*block);
    return find_row(names.in_block, name.substr(ours.size()), theirs);
  }
  for (const auto& [ours, theirs] : names.further_blocks)
    if (name.starts_with(ours)) return find_row(names.in_block, name.substr(ours.size()), theirs);
  if (shape.outputs() > 0 && name == concat(kScoreHead, ".weight")) return nn::ExternalName{name, {kScoreTensor}};
  return {};
}

}  // namespace

std::vector<nn::ExternalName> names_in_folder(const ModelShape& shape, const FolderNames& names) {
  nn::Parameters parameters({}, {.device = at::kMeta, .without_memory = true});  // buffers would have memory elsewhere
  nn::SerialLayers layers(parameters);
  make_model(shape, layers);
  std::vector<nn::ExternalName> found;
  for (const nn::Parameter& parameter : parameters.declared()) {
    if (parameter.is_added) continue;
    std::optional<nn::ExternalName> row = find_name(shape, names, parameter.name);
    require(row.has_value(), "model", "hugging_face.names of ", with_article(shape.architecture->name),
            " must hold every parameter: got none for ", parameter.name);
    row->ours = parameter.name;
    found.push_back(std::move(*row));
  }
  for (const nn::Buffer& buffer : parameters.buffers()) {
    std::optional<nn::ExternalName> row = find_name(shape, names, buffer.name);
    if (!row) continue;
    row->ours = buffer.name;
    found.push_back(std::move(*row));
  }
  return found;
}

std::vector<nn::ExternalRows> heads_in_groups(const std::string& tensor, const nn::AttentionShape& s) {
  if (s.kv_heads == 1) return {tensor};  // already in our order, q, k, v
  const int64_t q = s.heads / s.kv_heads * s.head_dim, group = q + 2 * s.head_dim;
  std::vector<nn::ExternalRows> rows;
  for (int64_t i = 0; i < s.kv_heads; ++i) rows.emplace_back(tensor, i * group, q);
  for (const int64_t behind : {q, q + s.head_dim})
    for (int64_t i = 0; i < s.kv_heads; ++i) rows.emplace_back(tensor, i * group + behind, s.head_dim);
  return rows;
}

std::vector<nn::ExternalRows> heads_of_pairs(const std::string& tensor, int64_t heads, int64_t size, int64_t turned) {
  std::vector<nn::ExternalRows> rows;
  for (int64_t head = 0; head < heads; ++head) {
    for (const int64_t of_pair : {0, 1}) rows.emplace_back(tensor, head * size + of_pair, turned / 2, 2);
    if (turned < size) rows.emplace_back(tensor, head * size + turned, size - turned);
  }
  return rows;
}

std::vector<nn::ExternalCopy> copies_in_folder(const ModelShape& shape) {
  const HuggingFace& folder = shape.architecture->hugging_face;
  const bool has_head = shape.tied && !folder.head.empty();
  std::vector<nn::ExternalCopy> further = folder.copies;
  if (folder.copies_of)
    for (nn::ExternalCopy& copy : folder.copies_of(shape)) further.push_back(std::move(copy));
  if (!has_head && further.empty()) return {};
  std::vector<nn::ExternalCopy> copies;
  const std::vector<nn::ExternalName> names = folder.names(shape);
  const auto has = [&](const std::string& tensor) {
    return std::any_of(names.begin(), names.end(), [&](const nn::ExternalName& name) {
      return std::any_of(name.parts.begin(), name.parts.end(),
                         [&](const nn::ExternalRows& part) { return part.name == tensor; });
    });
  };
  if (has_head)
    for (const nn::ExternalName& name : names)
      if (name.ours == "embedding.weight") copies.push_back(tied_copy(folder.head, name.parts.at(0).name));
  for (const nn::ExternalCopy& copy : further)
    if (has(copy.original) && !has(copy.name)) copies.push_back(copy);
  return copies;
}

nn::ExternalCopy tied_copy(std::string name, std::string original) {
  return {std::move(name), std::move(original), "tie_word_embeddings of config.json (true if it is missing)",
          "set it to false if the head has its own weights"};
}

IgnoredTensor rotary_table(std::string name) {
  return {std::move(name), "the frequencies follow from the keys of config.json"};
}

IgnoredTensor causal_mask(std::string name) { return {std::move(name), "the mask of every causal model is the same"}; }

}  // namespace colossal::models
