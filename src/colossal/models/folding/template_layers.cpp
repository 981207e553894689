#include "colossal/models/folding/template_layers.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>
#include <limits>

#include "colossal/models/folding/kept_inputs.h"
#include "colossal/models/folding/one_hot.h"
#include "colossal/models/folding/residue_tables.h"
#include "colossal/nn/open_gate.h"
#include "colossal/ops/activation.h"
#include "colossal/ops/dispatch.h"
#include "colossal/ops/geometry/residues.h"
#include "colossal/protein/residues.h"

namespace colossal::models {
namespace {

constexpr int64_t kTemplateTypes = 22, kPairFeatures = 88, kAngleFeatures = 57;
constexpr ops::DistanceLimits kTemplateDistances{3.25, 50.75, 39};
constexpr double kTorsionEpsilon = 1e-8;  // AlphaFold's, of squared lengths of torsions

/// Returns 1 where all of the named atoms are there: mask [..., 37] -> [...].
at::Tensor have_atoms(const at::Tensor& mask, std::initializer_list<int64_t> atoms) {
  at::Tensor all;
  for (const int64_t atom : atoms) all = all.defined() ? all * mask.select(-1, atom) : mask.select(-1, atom);
  return all;
}

std::unique_ptr<nn::Dense> rectified_layer(nn::Layers& make, const std::string& name, int64_t in, int64_t out) {
  return make.dense(name, in, out, {.deviation = std::sqrt(2. / static_cast<double>(in))});
}

nn::TriangleOptions template_triangle(const TemplateSizes& sizes, ops::Triangle triangle) {
  return {.triangle = triangle, .hidden = sizes.triangle};
}

}  // namespace

TemplateEmbedding::TemplateEmbedding(const TemplateSizes& s, nn::Layers& make)
    : ranks_(make.axial_ranks()),
      dtype_(make.parameters().options().dtype),
      pair_(rectified_layer(make, "template_embedder.template_pair_embedder.linear", kPairFeatures, s.features)),
      angle_1_(
          rectified_layer(make, "template_embedder.template_single_embedder.linear_1", kAngleFeatures, s.alignment)),
      angle_2_(rectified_layer(make, "template_embedder.template_single_embedder.linear_2", s.alignment, s.alignment)) {
}

at::Tensor TemplateEmbedding::pairs(const tensor::Batch& batch) const {
  const at::Tensor &beta = batch.at("template_pseudo_beta"), &seen = batch.at("template_pseudo_beta_mask");
  const at::Tensor types = one_hot(batch.at("template_aatype"), kTemplateTypes, dtype_);
  const at::Tensor backbone =
      have_atoms(batch.at("template_all_atom_masks"), {protein::kAtomN, protein::kAtomCa, protein::kAtomC});
  const int64_t rows = beta.size(0), templates = beta.size(1), n = beta.size(2);
  std::vector<at::Tensor> runs;
  const nn::Range own = ranks_->own(n);
  for_rows(*ranks_, n, rows * templates * n * kPairFeatures, [&](int64_t run, int64_t count) {
    const int64_t first = own.first + run;
    const auto both = [&](const at::Tensor& mask) {
      return (mask.narrow(2, first, count).unsqueeze(-1) * mask.unsqueeze(2)).to(dtype_).unsqueeze(-1);
    };
    const std::vector<int64_t> wide{rows, templates, count, n, -1};
    const at::Tensor bins =
        ops::bins_of_squares(ops::squared_distances(beta.narrow(2, first, count), beta), kTemplateDistances) - 1;
    const at::Tensor with_backbone = both(backbone);
    const at::Tensor features =
        at::cat({one_hot(bins, kTemplateDistances.count, dtype_), both(seen), types.unsqueeze(2).expand(wide),
                 types.narrow(2, first, count).unsqueeze(3).expand(wide),
                 at::zeros({rows, templates, count, n, 3}, types.options()), with_backbone},
                -1);
    runs.push_back(pair_->forward(features * with_backbone));
  });
  return runs.size() == 1 ? runs[0] : at::cat(runs, 2);
}

at::Tensor TemplateEmbedding::rows(const tensor::Batch& batch) const {
  const at::Tensor &places = batch.at("template_all_atom_positions"), &types = batch.at("template_aatype");
  // In fp64, because angles of missing atoms are what kTorsionEpsilon leaves of them: in fp32 they would be rounding
  // noise.
  const at::Tensor wide = places.to(at::kDouble);
  const ops::ResidueTables tables = residue_tables(wide.options());
  const ops::Torsions torsions = ops::torsions_of(wide, batch.at("template_all_atom_masks").to(at::kDouble),
                                                  types.clamp_max(protein::kUnknownType), tables, kTorsionEpsilon);
  const at::Tensor features = at::cat({one_hot(types, kTemplateTypes, dtype_), torsions.sin_cos.flatten(-2).to(dtype_),
                                       torsions.other.flatten(-2).to(dtype_), torsions.mask.to(dtype_)},
                                      -1);
  return angle_2_->forward(ops::activation("relu").plain(angle_1_->forward(features)));
}

at::Tensor template_rows_mask(const tensor::Batch& batch) {
  return have_atoms(batch.at("template_all_atom_masks"),
                    {protein::kAtomN, protein::kAtomCa, protein::kAtomC, protein::kAtomO}) *
         batch.at("seq_mask").unsqueeze(1);
}

TemplateBlock::TemplateBlock(nn::Layers& make, const std::string& name, const TemplateSizes& s)
    : ranks_(make.axial_ranks()),
      start_(make, name + ".tri_att_start", s.features, s.edges, true),
      end_(make, name + ".tri_att_end", s.features, s.edges, false),
      out_(make, name + ".tri_mul_out", s.features, template_triangle(s, ops::Triangle::Outgoing)),
      in_(make, name + ".tri_mul_in", s.features, template_triangle(s, ops::Triangle::Incoming)),
      transition_(make, name + ".pair_transition", s.features, s.transition) {
  using nn::AttendedAxis;
  for (int64_t t = 0; t < s.templates; ++t) {
    const auto dropout = [&](const char* layer, AttendedAxis shared) {
      return nn::SharedDropout(make, name + layer + ".dropout." + std::to_string(t), s.dropout, shared);
    };
    dropouts_.push_back({dropout(".tri_att_start", AttendedAxis::First), dropout(".tri_att_end", AttendedAxis::Second),
                         dropout(".tri_mul_out", AttendedAxis::First), dropout(".tri_mul_in", AttendedAxis::First)});
  }
}

at::Tensor TemplateBlock::of_one(at::Tensor x, const at::Tensor& mask, const Dropouts& dropout,
                                 const nn::ForwardContext& step) const {
  const int64_t n = x.size(2);
  const nn::Axis rows{1, n, "rows of pairs"}, columns{2, n, "columns of pairs"};
  add_update(x, dropout.start.forward(start_.forward(x, mask), step, n));
  x = ranks_->switched(x, rows, columns);
  add_update(x, dropout.end.forward(end_.forward(x, mask), step, n));
  x = ranks_->switched(x, columns, rows);
  add_triangle(x, out_, dropout.out, mask, step);
  add_triangle(x, in_, dropout.in, mask, step);
  add_update(x, transition_.forward(x, {}));
  return x;
}

at::Tensor TemplateBlock::forward(at::Tensor pairs, const at::Tensor& mask, const nn::ForwardContext& step) const {
  copy_kept_inputs({&pairs});
  std::vector<at::Tensor> all;
  for (int64_t t = 0; t < pairs.size(1); ++t) {
    const at::Tensor old = pairs.select(1, t);
    all.push_back(of_one(old, mask, dropouts_.at(static_cast<size_t>(t)), step));
    if (at::GradMode::is_enabled() || ranks_->size() == 1) continue;
    old.copy_(all.back());  // a switch gave it memory of its own
    all.back() = old;
  }
  return at::GradMode::is_enabled() && !all.empty() ? at::stack(all, 1) : pairs;
}

TemplateAttention::TemplateAttention(nn::Layers& make, const std::string& name, const TemplateSizes& s)
    : ranks_(make.axial_ranks()),
      heads_(s.points),
      norm_(make.layer_norm(name + ".layer_norm", s.features, {})),
      q_(nn::normed_layer(make, name + ".mha.linear_q", s.pair, s.points.heads * s.points.width, false)),
      k_(nn::normed_layer(make, name + ".mha.linear_k", s.features, s.points.heads * s.points.width, false)),
      v_(nn::normed_layer(make, name + ".mha.linear_v", s.features, s.points.heads * s.points.width, false)),
      o_(nn::silent_layer(make, name + ".mha.linear_o", s.points.heads * s.points.width, s.pair, true)) {}

/// Returns what rows z [B, R, N, pair] get of the same rows of templates, [B, T, R, N, features].
at::Tensor TemplateAttention::attended(const at::Tensor& z, const at::Tensor& pairs, const at::Tensor& mask) const {
  const auto of_heads = [&](const at::Tensor& x) {
    return x.unflatten(-1, at::IntArrayRef{heads_.heads, heads_.width});
  };
  const at::Tensor x = norm_->forward(pairs);
  const at::Tensor q = of_heads(q_->forward(z)).unsqueeze(1), k = of_heads(k_->forward(x)),
                   v = of_heads(v_->forward(x));
  const auto wide = ops::wide_type(z);
  const at::Tensor hidden = mask.eq(0).view({mask.size(0), mask.size(1), 1, 1, 1});
  const at::Tensor scores = (q * k).sum(-1, false, wide) / std::sqrt(static_cast<double>(heads_.width));
  const at::Tensor weights = scores.masked_fill(hidden, std::numeric_limits<float>::lowest()).softmax(1);
  const at::Tensor out = (weights.to(v.scalar_type()).unsqueeze(-1) * v).sum(1).flatten(-2);
  const at::Tensor has_any = mask.sum(1).gt(0).to(z.scalar_type()).view({-1, 1, 1, 1});
  return o_->forward(out) * has_any;
}

at::Tensor TemplateAttention::joined(at::Tensor z, const at::Tensor& pairs, const at::Tensor& mask) const {
  copy_kept_inputs({&z});
  const int64_t templates = pairs.size(1), n = z.size(2);
  if (templates == 0) return z;
  for_rows(*ranks_, n, z.size(0) * templates * n * heads_.heads * heads_.width, [&](int64_t first, int64_t count) {
    at::Tensor some = z.narrow(1, first, count);
    const at::Tensor update = attended(some, pairs.narrow(2, first, count), mask);
    if (at::GradMode::is_enabled())
      z = z + update;
    else
      some.add_(update);
  });
  return z;
}

}  // namespace colossal::models
