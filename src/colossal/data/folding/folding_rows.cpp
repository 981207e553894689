#include "colossal/data/folding/folding_rows.h"

#include <ATen/ATen.h>

#include <string_view>
#include <utility>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/data/folding/feature_fields.h"
#include "colossal/protein/residues.h"

namespace colossal::data {
namespace {

/// Returns whether rows of these sizes have a field.
bool is_in_rows(const FeatureField& field, const FoldingRowSizes& sizes) {
  const std::string_view name = field.name;
  if (field.has_passes() || name == "target_feat") return sizes.has_alignments;
  return sizes.templates > 0 || !field.dims.starts_with('T');
}

std::vector<int64_t> sizes_of_field(int64_t rows, const FeatureField& field, const FoldingRowSizes& sizes) {
  std::vector<int64_t> shape{rows};
  for (const char dim : field.dims) {
    const int64_t size = dim == 'P'   ? sizes.passes
                         : dim == 'S' ? sizes.clusters
                         : dim == 'E' ? sizes.extra
                         : dim == 'T' ? sizes.templates
                                      : sizes.residues;
    if (dim != 'P' || size > 0) shape.push_back(size);
  }
  shape.insert(shape.end(), field.features.begin(), field.features.end());
  return shape;
}

}  // namespace

tensor::Batch make_folding_rows(int64_t rows, const FoldingRowSizes& sizes, at::Device device) {
  const auto numbers = at::TensorOptions(device).dtype(at::kFloat);
  tensor::Batch batch;
  for (const FeatureField& field : feature_fields())
    if (is_in_rows(field, sizes))
      batch.add(field.name, feature_of(at::zeros(sizes_of_field(rows, field, sizes),
                                                 field.types > 0 ? numbers.dtype(at::kLong) : numbers)));
  tensor::Field counts = feature_of(at::zeros({rows}, numbers));
  counts.ignored = 0;
  batch.add(kChainCounts, std::move(counts));
  return batch;
}

void add_true_atoms(tensor::Batch& row, const TrueAtoms& atoms) {
  row.add("all_atom_positions", feature_of(atoms.positions.unsqueeze(0)));
  row.add("all_atom_mask", feature_of(atoms.mask.unsqueeze(0)));
  row.add("resolution", feature_of(at::full({1}, atoms.resolution, at::kFloat)));
}

void fill_folding_row(const tensor::Batch& row, tensor::Batch& batch, int64_t index) {
  for (const auto& [name, field] : batch.fields()) {
    at::Tensor into = field.tensor.select(0, index);
    if (name == kChainCounts) {
      into.fill_(1);
      continue;
    }
    into.fill_(name == "aatype" ? protein::kUnknownType : 0);
    const at::Tensor from = row.at(name).select(0, 0);
    require(from.dim() == into.dim(), "data", name, " of a chain must have the dimensions of the batch, ", into.sizes(),
            ": got ", from.sizes());
    for (int64_t dim = 0; dim < from.dim(); ++dim) {
      require(from.size(dim) <= into.size(dim), "data", name, " of a chain must be no larger than that of the batch, ",
              field.tensor.select(0, index).sizes(), ": got ", from.sizes());
      into = into.narrow(dim, 0, from.size(dim));
    }
    into.copy_(from);
  }
}

}  // namespace colossal::data
