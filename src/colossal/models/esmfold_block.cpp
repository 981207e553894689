#include "colossal/models/esmfold_block.h"

#include <ATen/ATen.h>

#include "colossal/base/error.h"
#include "colossal/models/folding/kept_inputs.h"
#include "colossal/nn/layers.h"
#include "colossal/nn/open_gate.h"
#include "colossal/ops/activation.h"
#include "colossal/ops/attention/biased.h"

namespace colossal::models {
namespace {

const EsmFoldSizes& checked(const EsmFoldSizes& s) {
  const auto divides = [](int64_t width, int64_t features) { return width > 0 && features % width == 0; };
  require(divides(s.sequence_width, s.sequence) && divides(s.pair_width, s.pair) && s.pair % 2 == 0, "model",
          "head widths of ESMFold must divide its features, and its pair features must be even: got widths ",
          s.sequence_width, " and ", s.pair_width, " for ", s.sequence, " and ", s.pair, " features");
  return s;
}

nn::GatedHeads heads_of(int64_t features, int64_t width) { return {.heads = features / width, .width = width}; }

}  // namespace

// One mask of dropout serves all columns j behind "outgoing" and "starting", and all rows i behind the others.
EsmFoldBlock::EsmFoldBlock(nn::Layers& make, const std::string& name, const EsmFoldSizes& s)
    : ranks_(make.axial_ranks()),
      heads_(heads_of(checked(s).sequence, s.sequence_width)),
      norm_(make.layer_norm(name + ".layernorm_1", s.sequence, {})),
      to_pair_norm_(make.layer_norm(name + ".sequence_to_pair.layernorm", s.sequence, {})),
      bias_norm_(make.layer_norm(name + ".pair_to_sequence.layernorm", s.pair, {})),
      to_pair_(nn::normed_layer(make, name + ".sequence_to_pair.proj", s.sequence, s.pair, true)),
      to_pair_out_(nn::normed_layer(make, name + ".sequence_to_pair.o_proj", s.pair, s.pair, true)),
      bias_(nn::normed_layer(make, name + ".pair_to_sequence.linear", s.pair, heads_.heads, false)),
      qkv_(nn::normed_layer(make, name + ".seq_attention.proj", s.sequence, 3 * s.sequence, false)),
      out_(nn::silent_layer(make, name + ".seq_attention.o_proj", s.sequence, s.sequence, true)),
      gate_(nn::open_gate(make, name + ".seq_attention.g_proj", s.sequence, s.sequence, true)),
      triangle_out_(make, name + ".tri_mul_out", s.pair, {.triangle = ops::Triangle::Outgoing, .hidden = s.pair}),
      triangle_in_(make, name + ".tri_mul_in", s.pair, {.triangle = ops::Triangle::Incoming, .hidden = s.pair}),
      start_(make, name + ".tri_att_start", s.pair, heads_of(s.pair, s.pair_width), true),
      end_(make, name + ".tri_att_end", s.pair, heads_of(s.pair, s.pair_width), false),
      sequence_mlp_(make, name + ".mlp_seq", s.sequence, 4),
      pair_mlp_(make, name + ".mlp_pair", s.pair, 4),
      attention_dropout_(make, name + ".dropout", s.dropout, nn::AttendedAxis::First),
      mlp_dropout_(make, name + ".mlp_seq.dropout", s.dropout, nn::AttendedAxis::First),
      out_dropout_(make, name + ".tri_mul_out.dropout", 2 * s.dropout, nn::AttendedAxis::Second),
      in_dropout_(make, name + ".tri_mul_in.dropout", 2 * s.dropout, nn::AttendedAxis::First),
      start_dropout_(make, name + ".tri_att_start.dropout", 2 * s.dropout, nn::AttendedAxis::Second),
      end_dropout_(make, name + ".tri_att_end.dropout", 2 * s.dropout, nn::AttendedAxis::First) {}

at::Tensor EsmFoldBlock::attended(const EsmFoldTrunk& state, const at::Tensor& mask) const {
  const int64_t batch = state.s.size(0), residues = state.s.size(1);
  const at::Tensor x = norm_->forward(state.s);
  // Each head has its q, k and v side by side. A sequence is a group of one row, with a bias of its own.
  // Queries are the residues of this rank, keys all.
  const std::vector<at::Tensor> qkv =
      qkv_->forward(x).view({batch, 1, residues, heads_.heads, 3 * heads_.width}).transpose(2, 3).chunk(3, -1);
  const at::Tensor bias = bias_->forward(bias_norm_->forward(state.z)).permute({0, 3, 1, 2});
  const at::Tensor out =
      ops::biased_attention(ranks_->part(qkv[0], 3), qkv[1], qkv[2],
                            {.bias = bias, .keys = mask.defined() ? nn::seen(mask).unsqueeze(1) : mask});
  return out_->forward(
      ops::sigmoid_gate(gate_->forward(ranks_->part(x, 1)), out.squeeze(1).transpose(1, 2).flatten(2)));
}

at::Tensor EsmFoldBlock::pairs_of(const at::Tensor& s) const {
  const std::vector<at::Tensor> halves = to_pair_->forward(to_pair_norm_->forward(s)).chunk(2, -1);
  const at::Tensor of_j = halves[0].unsqueeze(1), of_i = ranks_->part(halves[1], 1).unsqueeze(2);
  return to_pair_out_->forward(at::cat({of_j * of_i, of_j - of_i}, -1));
}

EsmFoldTrunk EsmFoldBlock::forward(EsmFoldTrunk state, const at::Tensor& mask, const nn::ForwardContext& step) const {
  auto& [s, z] = state;
  copy_kept_inputs({&s, &z});
  const int64_t n = s.size(1);
  const nn::Axis rows{1, n, "rows of pairs"}, columns{2, n, "columns of pairs"};
  const auto dropped = [&](const nn::SharedDropout& dropout, const at::Tensor& x) {
    return dropout.forward(x.unsqueeze(1), step, n).squeeze(1);
  };
  at::Tensor own = ranks_->part(s, 1);
  add_update(own, dropped(attention_dropout_, attended(state, mask)));
  add_update(own, dropped(mlp_dropout_, sequence_mlp_.forward(own, {})));
  s = ranks_->gathered(own, 1, n);
  add_update(z, pairs_of(s));
  const at::Tensor pairs = mask.defined() ? mask.unsqueeze(2) * mask.unsqueeze(1) : mask;
  add_triangle(z, triangle_out_, out_dropout_, pairs, step);
  add_triangle(z, triangle_in_, in_dropout_, pairs, step);
  add_update(z, start_dropout_.forward(start_.forward(z, pairs), step, n));
  z = ranks_->switched(z, rows, columns);
  add_update(z, end_dropout_.forward(end_.forward(z, pairs), step, n));
  add_update(z, pair_mlp_.forward(z, {}));
  z = ranks_->switched(z, columns, rows);
  return state;
}

}  // namespace colossal::models
