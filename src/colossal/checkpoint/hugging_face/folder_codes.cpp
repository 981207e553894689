#include "colossal/checkpoint/hugging_face/folder_codes.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/base/json_file.h"

namespace colossal::checkpoint {
namespace {

/// Returns a matrix as the source has it quantized. Errors: it does not.
nn::FolderCodes codes_of(const std::string& name, const WeightSource& files) {
  if (std::optional<ops::Nf4Weight> nf4 = files.nf4(name)) return std::move(*nf4);
  std::optional<ops::GroupCodes> codes = files.codes(name);
  require(codes.has_value(), "quantization", printable(name),
          " must be quantized with finite scales, because its parameter keeps codes: got numbers or other scales; read "
          "the folder whose form it has, or a file that is not damaged");
  codes->check();
  return std::move(*codes);
}

/// Calls visit(entry, sources) with the sources of each entry of a stack, or with -1 and all of them.
template <class Visit>
void for_entries(const Sources& sources, const Visit& visit) {
  if (sources.front()->part->stack == Stack::None) return visit(-1, sources);
  std::map<int64_t, Sources> entries;
  for (const PartSource* source : sources) entries[source->part->box.start[0]].push_back(source);
  for (const auto& [entry, own] : entries) visit(entry, own);
}

/// Returns the matrices of a weight or an entry.
std::vector<nn::FolderMatrix> matrices_of_sources(const Sources& sources) {
  std::vector<const ExternalPart*> parts;
  for (const PartSource* source : sources) parts.push_back(source->part);
  return matrices_of(parts);
}

/// Returns the names of the tensors of matrices_of_sources().
std::vector<std::string> tensors_of_sources(const Sources& sources) {
  std::vector<std::string> names;
  for (const PartSource* source : sources)
    if (std::find(names.begin(), names.end(), source->name) == names.end()) names.push_back(source->name);
  return names;
}

/// Adds the forms of the matrices of a weight or an entry to those of other entries. Returns false if one is not
/// quantized, or has another form.
bool add_codes(const Sources& sources, const WeightSource& files, std::vector<nn::FolderMatrix>& matrices) {
  std::vector<nn::FolderMatrix> own = matrices_of_sources(sources);
  const std::vector<std::string> tensors = tensors_of_sources(sources);
  const bool is_first = matrices.empty();
  for (size_t i = 0; i < own.size(); ++i) {
    own[i].codes = files.codes_form(tensors[i]);
    own[i].transposed = false;  // codes are [out, in] in every folder
    if (!own[i].codes || sources.front()->part->leading_ones != 0 || (!is_first && !matrices[i].codes)) return false;
    if (is_first) continue;
    const bool minima = own[i].codes->minima || matrices[i].codes->minima;  // entries without get some
    own[i].codes->minima = matrices[i].codes->minima = minima;
    if (own[i].codes != matrices[i].codes) return false;
  }
  if (is_first) matrices = std::move(own);
  return true;
}

}  // namespace

std::optional<std::vector<nn::FolderMatrix>> coded_matrices_of(const Sources& sources, const WeightSource& files) {
  const ExternalPart& first = *sources.front()->part;
  if (first.parameter->spec.shape.size() != (first.stack == Stack::None ? 2 : 3)) return {};
  std::vector<nn::FolderMatrix> matrices;
  bool is_coded = true;
  for_entries(sources, [&](int64_t, const Sources& own) { is_coded = is_coded && add_codes(own, files, matrices); });
  if (!is_coded) return {};
  return matrices;
}

void copy_codes(const Sources& sources, const WeightSource& files, const NamedTensor& value, const at::Tensor& to,
                const nn::FrozenForm& form, const tensor::MeshCoordinates& coordinates) {
  to.zero_();
  const std::vector<tensor::LocalBox> boxes = value.spec.local_boxes(coordinates);
  for_entries(sources, [&](int64_t entry, const Sources& own) {
    std::optional<int64_t> here;  // index among the matrices of this rank
    for (const tensor::LocalBox& box : boxes)
      if (entry < 0 || (entry >= box.start[0] && entry < box.start[0] + box.size[0]))
        here = entry < 0 ? 0 : entry - box.start[0] + box.local_start[0];
    if (!here) return;
    const std::vector<std::string> tensors = tensors_of_sources(own);
    for (size_t i = 0; i < tensors.size(); ++i) {
      form.take(i, codes_of(tensors[i], files), entry < 0 ? to : to[*here]);
      files.leave(tensors[i]);
    }
  });
}

}  // namespace colossal::checkpoint
