#include "colossal/data/folding/feature_fields.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/data/folding/clusters.h"
#include "colossal/protein/residues.h"

namespace colossal::data {
namespace {

constexpr int64_t kAnyNumber = int64_t{1} << 31;

int64_t wanted_size(char dim, const FeatureSizes& sizes) {
  switch (dim) {
    case 'N':
      return sizes.residues;
    case 'S':
      return sizes.clusters;
    case 'E':
      return sizes.extra;
    case 'T':
      return sizes.templates;
    default:
      return 0;
  }
}

at::Tensor padded_field(const FeatureField& field, const at::Tensor& values, const FeatureSizes& sizes) {
  std::vector<int64_t> padding;  // of the last dimension first, before and after it
  bool changes = false;
  for (size_t i = field.dims.size(); i-- > 0;) {
    const int64_t size = values.size(static_cast<int64_t>(i) + 1), wanted = wanted_size(field.dims[i], sizes);
    require(wanted == 0 || size <= wanted, "features", "`", field.name, "` must have at most ", wanted,
            " elements to be padded to that: got ", size, "; crop the chain or draw fewer rows");
    padding.insert(padding.end(), {0, wanted == 0 ? 0 : wanted - size});
    changes |= padding.back() > 0;
  }
  if (!changes) return values;
  padding.insert(padding.begin(), 2 * field.features.size(), 0);
  return at::constant_pad_nd(values, padding, field.padding);
}

}  // namespace

std::span<const FeatureField> feature_fields() {
  constexpr int64_t kAtoms = protein::kAtom37;
  static const std::vector<FeatureField> fields{
      {.name = "aatype", .dims = "N", .types = protein::kTableTypes, .padding = protein::kUnknownType},
      {.name = "residue_index", .dims = "N", .types = kAnyNumber},
      {.name = "seq_mask", .dims = "N"},
      {.name = "target_feat", .dims = "N", .features = {kTargetFeatures}},
      {.name = "msa_feat", .dims = "PSN", .features = {kAlignmentFeatures}},
      {.name = "msa_mask", .dims = "PSN"},
      {.name = "true_msa", .dims = "PSN", .types = kLetterTypes, .is_label = true},
      {.name = "bert_mask", .dims = "PSN", .is_label = true},
      {.name = "extra_msa", .dims = "PEN", .types = kLetterTypes},
      {.name = "extra_msa_mask", .dims = "PEN"},
      {.name = "extra_has_deletion", .dims = "PEN"},
      {.name = "extra_deletion_value", .dims = "PEN"},
      {.name = "template_aatype", .dims = "TN", .types = protein::kGapType + 1},
      {.name = "template_mask", .dims = "T"},
      {.name = "template_all_atom_positions", .dims = "TN", .features = {kAtoms, 3}},
      {.name = "template_all_atom_masks", .dims = "TN", .features = {kAtoms}},
      {.name = "template_pseudo_beta", .dims = "TN", .features = {3}},
      {.name = "template_pseudo_beta_mask", .dims = "TN"},
      {.name = "all_atom_positions", .dims = "N", .features = {kAtoms, 3}, .is_label = true},
      {.name = "all_atom_mask", .dims = "N", .features = {kAtoms}, .is_label = true},
      {.name = "resolution", .dims = "", .is_label = true},
  };
  return fields;
}

tensor::Field feature_of(at::Tensor values) {
  std::vector<tensor::Dim> dims(static_cast<size_t>(values.dim()), tensor::Dim::Other);
  dims.at(0) = tensor::Dim::Row;
  return {std::move(values), std::move(dims)};
}

tensor::Batch padded_features(const tensor::Batch& batch, const FeatureSizes& sizes) {
  tensor::Batch padded;
  for (const auto& [name, field] : batch.fields()) {
    const auto known = std::find_if(feature_fields().begin(), feature_fields().end(),
                                    [&name = name](const FeatureField& other) { return other.name == name; });
    tensor::Field copy = field;
    if (known != feature_fields().end()) copy.tensor = padded_field(*known, field.tensor, sizes);
    padded.add(name, std::move(copy));
  }
  return padded;
}

}  // namespace colossal::data
