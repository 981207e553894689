// Rows of batches of chains: features (data/folding/features.h) and true atoms, padded to the sizes of the batch.
//
//   tensor::Batch batch = data::make_folding_rows(8, {.residues = 256, .clusters = 128, .extra = 1024, .passes = 4});
//   tensor::Batch row = data::make_features(chain, options);                                  // one row
//   data::add_true_atoms(row, {.positions = positions, .mask = mask, .resolution = 2.1});
//   data::fill_folding_row(row, batch, 3);
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "colossal/tensor/batch.h"

namespace colossal::data {

/// Name of the field [B] that is 1 in rows that count, and 0 in those that an evaluation reads a second time.
inline constexpr char kChainCounts[] = "counts";

/// The sizes of the rows of a batch.
struct FoldingRowSizes {
  int64_t residues = 256;
  int64_t clusters = 128, extra = 1024;  ///< rows of the two alignments
  int64_t passes = 0;          ///< 0 = the fields that differ from pass to pass have no passes (pass_fields.h)
  bool has_alignments = true;  ///< false = the model reads sequences alone
  int64_t templates = 0;       ///< 0 = no fields of templates
};

/// Returns a batch of empty rows on `device`, with the fields of models/folding/folding_model.h but the recycled ones,
/// the labels of run/objectives/folding/folding_terms.h, and kChainCounts. All are fp32 or int64.
tensor::Batch make_folding_rows(int64_t rows, const FoldingRowSizes& sizes, at::Device device = at::kCPU);

/// The true atoms of a chain.
struct TrueAtoms {
  at::Tensor positions;   ///< [N, 37, 3] in Angstrom
  at::Tensor mask;        ///< [N, 37]: 1 = the atom is known
  double resolution = 0;  ///< in Angstrom; 0 = unknown
};

/// Adds the labels of a chain to its features, which are a batch of one row.
void add_true_atoms(tensor::Batch& row, const TrueAtoms& atoms);

/// Fills row `row` of a batch of make_folding_rows() on the host with a batch of one row. What the chain lacks of the
/// residues, rows and passes is padding: zeros, and X as type. Fields that the batch does not have are left out.
/// Errors ("data"): a field of the batch that the row lacks; a row that is larger than the batch.
void fill_folding_row(const tensor::Batch& row, tensor::Batch& batch, int64_t index);

}  // namespace colossal::data
