// Models that fold proteins: the fields that they read, the states in which they end, and their heads.
//
//   const models::FoldingHeads& heads = *model.folding;                              // null = another kind of model
//   batch = models::with_recycled(batch, {}, shape);                                 // the first pass
//   const models::States end = ...;                                                  // of a pass, after Model::norm
//   const models::FoldedAtoms atoms = models::folded_atoms(heads, end, batch.at("aatype"));
//   batch = models::with_recycled(batch, models::recycled(heads, end, batch), shape);       // the next pass
//
// A family sets FoldingSizes in Architecture::settle and Model::folding. Its model reads these fields of B chains with
// N residues, padded ones included. All dimensions but the first are Dim::Other. Masks are 1 or 0, in the dtype of the
// model or a wider one; `aatype`, `residue_index` and other indices are int64.
//
//   aatype            [B, N] types of residues (protein/residues.h)
//   residue_index     [B, N] their numbers in the chain, from 0. ESMFold: with the gaps between chains of a complex
//   seq_mask          [B, N] 0 = padding
//   recycled_single   [B, N, FoldingSizes::single] of the pass before: the first row of m, or s; zeros at first
//   recycled_pair     [B, N, N, FoldingSizes::pair] z of it. Without gradients the embedding may overwrite the field,
//                     so that z has no second copy
//   recycled_beta     [B, N, 3] places of CB in Angstrom, fp32 at least; of AlphaFold CA of glycines
//
// A model that reads alignments (FoldingSizes::reads_alignments) also reads these, under the names of AlphaFold, for S
// clustered and E further rows:
//
//   target_feat [B, N, 22], msa_feat [B, S, N, 49], msa_mask [B, S, N], extra_msa [B, E, N] (int64), extra_msa_mask,
//   extra_has_deletion and extra_deletion_value [B, E, N]
//
// and with FoldingSizes::templates, for T templates:
//
//   template_aatype [B, T, N], template_mask [B, T], template_all_atom_positions [B, T, N, 37, 3],
//   template_all_atom_masks [B, T, N, 37], template_pseudo_beta [B, T, N, 3], template_pseudo_beta_mask [B, T, N]
//
// A model with protein language states (ESMFold) reads a further field if the batch has it:
//
//   language_states   [B, N, single] what its language model and the layers after that make of the chain, so that
//                     later passes need not run them. A training pass (ForwardContext::training) does not read the
//                     field, because the gradients of these layers go through them
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>

#include "colossal/models/model.h"
#include "colossal/models/shape_parts.h"
#include "colossal/nn/axial_ranks.h"
#include "colossal/ops/geometry/residues.h"
#include "colossal/ops/geometry/rigid.h"
#include "colossal/tensor/batch.h"

namespace colossal::models {

/// The states in which a folding model ends, and its heads. Functions may be called on ranks of the last stage only,
/// and get the states after Model::norm. Ranks may cut pairs and alignments (nn/axial_ranks.h): each then has rows of
/// both, and all of what belongs to residues. Logits are of the dtype of the model.
struct FoldingHeads {
  /// The ranks that cut the representations.
  std::shared_ptr<const nn::AxialRanks> ranks = std::make_shared<const nn::AxialRanks>();
  bool has_template_rows = false;  ///< the alignment that ranks cut has T rows of templates after S
  /// Indices of Model::states:
  int pair = 0;        ///< z [B, N, N, pair]
  int single = -1;     ///< s [B, N, single], which is recycled; -1 = the first row of `alignment` is
  int alignment = -1;  ///< m [B, S, N, single], without the rows of templates; -1 = the model has no alignment
  int language = -1;   ///< the value of the field `language_states` of later passes; -1 = the model has none
  int structure = 0;   ///< [B, N, structure]: the result of the structure module's last layer
  int unfolded = 0;    ///< [B, N, structure]: s before the structure module; read only where `resolved` is set
  /// [B, L, N, 7] of all layers of the structure module, fp32 at least: unit quaternion and place in Angstrom
  int frames = 0;
  int angles = 0;  ///< [B, L, N, 7, 2] as the layers computed them, not of length 1; fp32 at least

  /// Logits of LDDT [B, N, A, 50] from the state `structure`, of A = 1 point or 37 atoms of each residue.
  std::function<at::Tensor(const at::Tensor& structure)> lddt{};
  /// Logits of pair distances [B, R, N, 64] for R rows of z [B, R, N, pair], with the same columns as rows: z_ji as
  /// `mirrored`.
  std::function<at::Tensor(const at::Tensor& rows, const at::Tensor& mirrored)> distogram{};
  /// Logits of errors of aligned points [B, R, N, 64] for R rows of z; null = the model has no such head.
  std::function<at::Tensor(const at::Tensor& rows)> errors{};
  /// Logits of letters [B, S, N, 23] from m; null = none.
  std::function<at::Tensor(const at::Tensor& alignment)> letters{};
  /// Logits of resolved atoms [B, N, 37] from the state `unfolded`, not from `structure`; null = none.
  std::function<at::Tensor(const at::Tensor& unfolded)> resolved{};
  /// Where CB is, [B, N, 3], from atoms [B, N, 37, 3]: computed from the backbone (ESMFold), or that of the atoms.
  std::function<at::Tensor(const at::Tensor& atoms37, const at::Tensor& types)> beta{};
  /// The block that reads the recycled fields; -1 = the embedding does.
  int reader = -1;
};

/// What a pass reads of the one before. Of ranks that cut pairs, each has its rows of `pair`.
struct Recycled {
  at::Tensor single;      ///< [B, N, single]
  at::Tensor pair;        ///< [B, N, N, pair]
  at::Tensor beta;        ///< [B, N, 3]
  at::Tensor language{};  ///< [B, N, single] of a model with language states; undefined = another model
};

/// Atoms that a pass has placed, in Angstrom, fp32 at least.
struct FoldedAtoms {
  ops::Rigid backbones;    ///< [B, N]
  ops::Rigid groups;       ///< [B, N, 8]
  at::Tensor angles;       ///< [B, N, 7, 2] of length 1
  at::Tensor positions14;  ///< [B, N, 14, 3]
  at::Tensor positions37;  ///< [B, N, 37, 3]; zeros for atoms that the type does not have
  at::Tensor exists37;     ///< [B, N, 37]
};

/// Returns the sizes of a model that folds proteins. Errors ("fold"): another kind of model.
FoldingSizes folding_of(const ModelShape& shape);

/// Returns the atoms of the last layer of the structure module.
FoldedAtoms folded_atoms(const FoldingHeads& heads, const States& end, const at::Tensor& types);

/// Returns those of the indices `own` that are among the first `count`, and those after them less `count`.
nn::Range first_of(const nn::Range& own, int64_t count);
nn::Range after_first_of(const nn::Range& own, int64_t count);

/// Returns the first row of the alignment m [B, own rows, N, c] on the rank that has it, and zeros on others:
/// [B, N, c].
at::Tensor query_row(const at::Tensor& m, const nn::AxialRanks& ranks);

/// Returns the rows of the clustered alignment that this rank has.
nn::Range own_rows(const FoldingHeads& heads, const tensor::Batch& batch);

/// Returns what the next pass reads, without gradients. Ranks that cut an alignment send its first row, N single.
Recycled recycled(const FoldingHeads& heads, const States& end, const tensor::Batch& batch);

/// Returns the batch with the fields of `recycled`, which are zeros of the dtype of seq_mask if it is empty (the first
/// pass). The field `language_states` is added if it is defined there, and else left as it is.
/// `ranks`: those that cut the pairs, so that zeros are of this rank's rows; null = none.
tensor::Batch with_recycled(const tensor::Batch& batch, const Recycled& recycled, const ModelShape& shape,
                            const nn::AxialRanks* ranks = nullptr);

/// Returns this rank's rows of the field `recycled_pair`, which has them or all.
at::Tensor own_recycled_pairs(const tensor::Batch& batch, const nn::AxialRanks& ranks);

/// The sizes of a batch.
struct FoldingBatch {
  int64_t rows = 1, residues = 0;
  int64_t clusters = 0, extra = 0;  ///< rows of the two alignments
};

/// Returns a batch on meta with all fields that a model of this shape reads, recycled ones included, in `dtype`.
tensor::Batch example_folding(const ModelShape& shape, const FoldingBatch& sizes, at::ScalarType dtype = at::kFloat);

}  // namespace colossal::models
