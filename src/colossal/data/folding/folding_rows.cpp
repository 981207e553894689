#include "colossal/data/folding/folding_rows.h"

#include <ATen/ATen.h>

#include <string_view>
#include <utility>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/protein/residues.h"

namespace colossal::data {
namespace {

using tensor::Dim;

/// Returns a field of which all dimensions but the first are neither tokens nor features.
tensor::Field chain_field(at::Tensor values, std::optional<int64_t> ignored = {}) {
  std::vector<Dim> dims(static_cast<size_t>(values.dim()), Dim::Other);
  dims.front() = Dim::Row;
  return {std::move(values), std::move(dims), ignored};
}

/// Adds the fields of alignments and templates.
class RowFields {
 public:
  RowFields(int64_t rows, const FoldingRowSizes& sizes, at::Device device)
      : rows_(rows), sizes_(sizes), numbers_(at::TensorOptions(device).dtype(at::kFloat)) {}

  void add(const char* name, std::vector<int64_t> sizes, bool are_indices = false) {
    sizes.insert(sizes.begin(), rows_);
    batch.add(name, chain_field(at::zeros(sizes, are_indices ? numbers_.dtype(at::kLong) : numbers_)));
  }
  void add_of_passes(const char* name, std::vector<int64_t> sizes, bool are_indices = false) {
    if (sizes_.passes > 0) sizes.insert(sizes.begin(), sizes_.passes);
    add(name, std::move(sizes), are_indices);
  }
  void add_alignments() {
    const int64_t n = sizes_.residues, s = sizes_.clusters, e = sizes_.extra;
    add("target_feat", {n, 22});
    add_of_passes("msa_feat", {s, n, 49});
    add_of_passes("msa_mask", {s, n});
    add_of_passes("true_msa", {s, n}, /*are_indices=*/true);
    add_of_passes("bert_mask", {s, n});
    add_of_passes("extra_msa", {e, n}, /*are_indices=*/true);
    for (const char* name : {"extra_msa_mask", "extra_has_deletion", "extra_deletion_value"})
      add_of_passes(name, {e, n});
  }
  void add_templates() {
    const int64_t n = sizes_.residues, t = sizes_.templates;
    add("template_aatype", {t, n}, /*are_indices=*/true);
    add("template_mask", {t});
    add("template_all_atom_positions", {t, n, protein::kAtom37, 3});
    add("template_all_atom_masks", {t, n, protein::kAtom37});
    add("template_pseudo_beta", {t, n, 3});
    add("template_pseudo_beta_mask", {t, n});
  }

  tensor::Batch batch;

 private:
  int64_t rows_;
  const FoldingRowSizes& sizes_;
  at::TensorOptions numbers_;
};

}  // namespace

tensor::Batch make_folding_rows(int64_t rows, const FoldingRowSizes& sizes, at::Device device) {
  RowFields fields(rows, sizes, device);
  const int64_t n = sizes.residues;
  fields.add("aatype", {n}, /*are_indices=*/true);
  fields.add("residue_index", {n}, /*are_indices=*/true);
  fields.add("seq_mask", {n});
  if (sizes.has_alignments) fields.add_alignments();
  if (sizes.templates > 0) fields.add_templates();
  fields.add("all_atom_positions", {n, protein::kAtom37, 3});
  fields.add("all_atom_mask", {n, protein::kAtom37});
  fields.add("resolution", {});
  fields.batch.add(kChainCounts, chain_field(at::zeros({rows}, at::TensorOptions(device).dtype(at::kFloat)), 0));
  return std::move(fields.batch);
}

void add_true_atoms(tensor::Batch& row, const TrueAtoms& atoms) {
  row.add("all_atom_positions", chain_field(atoms.positions.unsqueeze(0)));
  row.add("all_atom_mask", chain_field(atoms.mask.unsqueeze(0)));
  row.add("resolution", chain_field(at::full({1}, atoms.resolution, at::kFloat)));
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
