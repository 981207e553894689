#include "colossal/models/folding/folding_model.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "colossal/base/article.h"
#include "colossal/base/error.h"
#include "colossal/models/folding/residue_tables.h"
#include "colossal/models/folding/structure_module.h"
#include "colossal/models/registry.h"

namespace colossal::models {
namespace {

/// Returns a field of which all dimensions but the first are neither tokens nor features.
tensor::Field field_of(at::Tensor values) {
  std::vector<tensor::Dim> dims(static_cast<size_t>(values.dim()), tensor::Dim::Other);
  dims.at(0) = tensor::Dim::Row;
  return {std::move(values), std::move(dims)};
}

}  // namespace

FoldingSizes folding_of(const ModelShape& shape) {
  const auto sizes = shape.part<FoldingSizes>();
  require(sizes.single > 0, "fold", "the model must fold proteins: got ", with_article(shape.architecture->name),
          ", which ", shape.task().purpose(), "; name a folding model, such as ESMFold or AlphaFold 2");
  return sizes;
}

FoldedAtoms folded_atoms(const FoldingHeads& heads, const States& end, const at::Tensor& types) {
  const at::Tensor frames = end[static_cast<size_t>(heads.frames)].select(1, -1);
  const at::Tensor angles = unit_angles(end[static_cast<size_t>(heads.angles)].select(1, -1));
  const ops::ResidueTables tables = residue_tables(frames.options());
  const ops::QuaternionFrames last{.quaternion = frames.narrow(-1, 0, 4), .translation = frames.narrow(-1, 4, 3)};
  FoldedAtoms atoms{.backbones = last.rigid(), .angles = angles};
  atoms.groups = ops::group_frames(atoms.backbones, angles, types, tables);
  atoms.positions14 = ops::atoms14(atoms.groups, types, tables);
  atoms.positions37 = ops::atoms37(atoms.positions14, types, tables);
  atoms.exists37 = ops::residue_rows(tables.mask37, types);
  return atoms;
}

nn::Range own_rows(const FoldingHeads& heads, const tensor::Batch& batch) {
  const int64_t rows = batch.at("msa_feat").size(1);
  return first_of(heads.ranks->own(rows + (heads.has_template_rows ? batch.at("template_aatype").size(1) : 0)), rows);
}

nn::Range first_of(const nn::Range& own, int64_t count) {
  const int64_t first = std::min(own.first, count);
  return {first, std::clamp<int64_t>(count - first, 0, own.size)};
}

nn::Range after_first_of(const nn::Range& own, int64_t count) {
  const int64_t first = std::max<int64_t>(own.first - count, 0);
  return {first, std::clamp<int64_t>(own.first + own.size - count - first, 0, own.size)};
}

at::Tensor query_row(const at::Tensor& m, const nn::AxialRanks& ranks) {
  if (ranks.rank() == 0) return m.select(1, 0);
  return m.narrow(1, 0, 0).sum(1);  // zeros, which depend on m, because all ranks send in backward
}

Recycled recycled(const FoldingHeads& heads, const States& end, const tensor::Batch& batch) {
  const at::Tensor& types = batch.at("aatype");
  const at::Tensor single =
      heads.single >= 0 ? end[static_cast<size_t>(heads.single)]
                        : heads.ranks->total(query_row(end[static_cast<size_t>(heads.alignment)], *heads.ranks));
  return {.single = single.detach(),
          .pair = end[static_cast<size_t>(heads.pair)].detach(),
          .beta = heads.beta(folded_atoms(heads, end, types).positions37, types).detach(),
          .language = heads.language >= 0 ? end[static_cast<size_t>(heads.language)].detach() : at::Tensor()};
}

at::Tensor own_recycled_pairs(const tensor::Batch& batch, const nn::AxialRanks& ranks) {
  const at::Tensor& pairs = batch.at("recycled_pair");
  return pairs.size(1) == pairs.size(2) ? ranks.part(pairs, 1) : pairs;
}

tensor::Batch with_recycled(const tensor::Batch& batch, const Recycled& recycled, const ModelShape& shape,
                            const nn::AxialRanks* ranks) {
  const FoldingSizes sizes = folding_of(shape);
  const at::Tensor& mask = batch.at("seq_mask");
  const int64_t rows = mask.size(0), residues = mask.size(1), own = ranks ? ranks->own(residues).size : residues;
  const auto or_zeros = [&](const at::Tensor& given, at::IntArrayRef wanted) {
    return field_of(given.defined() ? given : at::zeros(wanted, mask.options()));
  };
  const tensor::Batch told = batch.with("recycled_single", or_zeros(recycled.single, {rows, residues, sizes.single}))
                                 .with("recycled_pair", or_zeros(recycled.pair, {rows, own, residues, sizes.pair}))
                                 .with("recycled_beta", or_zeros(recycled.beta, {rows, residues, 3}));
  return recycled.language.defined() ? told.with("language_states", field_of(recycled.language)) : told;
}

tensor::Batch example_folding(const ModelShape& shape, const FoldingBatch& sizes, at::ScalarType dtype) {
  const FoldingSizes model = folding_of(shape);
  const auto numbers = at::TensorOptions(at::kMeta).dtype(dtype), indices = numbers.dtype(at::kLong);
  const int64_t b = sizes.rows, n = sizes.residues, s = sizes.clusters, e = sizes.extra, t = model.templates;
  tensor::Batch batch;
  const auto add = [&](const char* name, const at::TensorOptions& options, at::IntArrayRef wanted) {
    batch.add(name, field_of(at::empty(wanted, options)));
  };
  add("aatype", indices, {b, n});
  add("residue_index", indices, {b, n});
  add("seq_mask", numbers, {b, n});
  if (model.reads_alignments) {
    add("target_feat", numbers, {b, n, 22});
    add("msa_feat", numbers, {b, s, n, 49});
    add("msa_mask", numbers, {b, s, n});
    add("extra_msa", indices, {b, e, n});
    for (const char* name : {"extra_msa_mask", "extra_has_deletion", "extra_deletion_value"})
      add(name, numbers, {b, e, n});
  }
  if (t > 0) {
    add("template_aatype", indices, {b, t, n});
    add("template_mask", numbers, {b, t});
    add("template_all_atom_positions", numbers, {b, t, n, 37, 3});
    add("template_all_atom_masks", numbers, {b, t, n, 37});
    add("template_pseudo_beta", numbers, {b, t, n, 3});
    add("template_pseudo_beta_mask", numbers, {b, t, n});
  }
  return with_recycled(batch, {}, shape);
}

}  // namespace colossal::models
