#include "colossal/models/evoformer_block.h"

#include <ATen/ATen.h>

#include "colossal/models/folding/kept_inputs.h"
#include "colossal/nn/layers.h"

namespace colossal::models {
namespace {

nn::TriangleOptions triangle_of(const EvoformerSizes& sizes, ops::Triangle triangle) {
  return {.triangle = triangle, .hidden = sizes.triangle, .fused = sizes.fused};
}

}  // namespace

// One mask of dropout serves all rows i of z, and all columns j behind the ending attention.
PairStack::PairStack(nn::Layers& make, const std::string& name, const EvoformerSizes& s)
    : ranks_(make.axial_ranks()),
      out_(make, name + ".tri_mul_out", s.pair, triangle_of(s, ops::Triangle::Outgoing)),
      in_(make, name + ".tri_mul_in", s.pair, triangle_of(s, ops::Triangle::Incoming)),
      start_(make, name + ".tri_att_start", s.pair, s.edges, true),
      end_(make, name + ".tri_att_end", s.pair, s.edges, false),
      transition_(make, name + ".pair_transition", s.pair, s.transition),
      out_dropout_(make, name + ".tri_mul_out.dropout", s.pair_dropout, nn::AttendedAxis::First),
      in_dropout_(make, name + ".tri_mul_in.dropout", s.pair_dropout, nn::AttendedAxis::First),
      start_dropout_(make, name + ".tri_att_start.dropout", s.pair_dropout, nn::AttendedAxis::First),
      end_dropout_(make, name + ".tri_att_end.dropout", s.pair_dropout, nn::AttendedAxis::Second) {}

at::Tensor PairStack::forward(at::Tensor z, const at::Tensor& mask, const nn::ForwardContext& step) const {
  const int64_t n = z.size(2);
  const nn::Axis rows{1, n, "rows of pairs"}, columns{2, n, "columns of pairs"};
  add_triangle(z, out_, out_dropout_, mask, step);
  add_triangle(z, in_, in_dropout_, mask, step);
  add_update(z, start_dropout_.forward(start_.forward(z, mask), step, n));
  z = ranks_->switched(z, rows, columns);
  add_update(z, end_dropout_.forward(end_.forward(z, mask), step, n));
  add_update(z, transition_.forward(z, {}));
  return ranks_->switched(z, columns, rows);
}

EvoformerBlock::EvoformerBlock(nn::Layers& make, const std::string& name, const EvoformerSizes& s)
    : ranks_(make.axial_ranks()),
      outer_first_(s.outer_first),
      row_(make, name + ".msa_att_row", s.alignment, s.pair, s.rows),
      row_dropout_(make, name + ".msa_att_row.dropout", s.alignment_dropout, nn::AttendedAxis::First),
      column_(s.global
                  ? nullptr
                  : std::make_unique<nn::ColumnAttention>(make, name + ".msa_att_col._msa_att", s.alignment, s.rows)),
      global_(s.global ? std::make_unique<nn::GlobalColumnAttention>(make, name + ".msa_att_col", s.alignment, s.rows)
                       : nullptr),
      transition_(make, name + ".msa_transition", s.alignment, s.transition),
      outer_(make, name + ".outer_product_mean", s.alignment, s.pair, s.outer),
      pair_(make, name + ".pair_stack", s) {}

at::Tensor EvoformerBlock::outer(const at::Tensor& m_of_columns, const EvoformerMasks& masks,
                                 const at::Tensor& z) const {
  return outer_.forward(m_of_columns, masks.alignment, z.size(2));
}

Evoformer EvoformerBlock::forward(Evoformer state, const EvoformerMasks& masks, const nn::ForwardContext& step) const {
  auto& [m, z] = state;
  copy_kept_inputs({&m, &z});
  const int64_t n = z.size(2);
  const nn::Axis rows{1, masks.rows_of(m), "rows of the alignment"}, residues{2, n, "residues"};
  if (outer_first_) add_update(z, outer(ranks_->switched(m, rows, residues), masks, z));
  add_update(m, row_dropout_.forward(row_.forward(m, z, masks.alignment), step, n));
  m = ranks_->switched(m, rows, residues);
  add_update(m, column_ ? column_->forward(m, masks.alignment) : global_->forward(m, masks.alignment));
  add_update(m, transition_.forward(m, {}));
  const at::Tensor update = outer_first_ ? at::Tensor() : outer(m, masks, z);
  const auto back = ranks_->begin_switch(m, residues, rows);  // goes on beside the work on z
  if (update.defined()) add_update(z, update);
  z = pair_.forward(z, masks.pair, step);
  m = back->wait();
  return state;
}

}  // namespace colossal::models
