#include "colossal/nn/alignment_layers.h"

#include <ATen/ATen.h>

#include "colossal/nn/layers.h"
#include "colossal/nn/open_gate.h"
#include "colossal/ops/dispatch.h"
#include "colossal/ops/triangle.h"

namespace colossal::nn {
namespace {

/// Added to the number of rows, so that a pair without any divides by something.
constexpr double kNoRows = 1e-3;

}  // namespace

RowAttention::RowAttention(Layers& make, const std::string& name, int64_t features, int64_t pair_features,
                           const GatedHeads& heads)
    : ranks_(make.axial_ranks()),
      norm_m_(make.layer_norm(name + ".layer_norm_m", features, {})),
      norm_z_(make.layer_norm(name + ".layer_norm_z", pair_features, {})),
      bias_(normed_layer(make, name + ".linear_z", pair_features, heads.heads, false)),
      attention_(make, name + ".mha", features, heads) {}

at::Tensor RowAttention::forward(const at::Tensor& m, const at::Tensor& z, const at::Tensor& mask) const {
  const at::Tensor bias = ranks_->gathered(bias_->forward(norm_z_->forward(z)), 1, z.size(2)).permute({0, 3, 1, 2});
  return attention_.forward(norm_m_->forward(m), AttendedAxis::Second, {.bias = bias, .mask = ranks_->part(mask, 1)});
}

ColumnAttention::ColumnAttention(Layers& make, const std::string& name, int64_t features, const GatedHeads& heads)
    : ranks_(make.axial_ranks()),
      norm_(make.layer_norm(name + ".layer_norm_m", features, {})),
      attention_(make, name + ".mha", features, heads) {}

at::Tensor ColumnAttention::forward(const at::Tensor& m, const at::Tensor& mask) const {
  return attention_.forward(norm_->forward(m), AttendedAxis::First, {.mask = ranks_->part(mask, 2)});
}

GlobalColumnAttention::GlobalColumnAttention(Layers& make, const std::string& name, int64_t features,
                                             const GatedHeads& heads)
    : ranks_(make.axial_ranks()),
      norm_(make.layer_norm(name + ".layer_norm_m", features, {})),
      attention_(make, name + ".global_attention", features, heads) {}

at::Tensor GlobalColumnAttention::forward(const at::Tensor& m, const at::Tensor& mask) const {
  const at::Tensor all =
      mask.defined() ? ranks_->part(mask, 2) : at::ones(m.sizes().slice(0, 3), m.options().requires_grad(false));
  return attention_.forward(norm_->forward(m), all);
}

OuterProduct::OuterProduct(Layers& make, const std::string& name, int64_t features, int64_t pair_features,
                           int64_t hidden)
    : ranks_(make.axial_ranks()),
      norm_(make.layer_norm(name + ".layer_norm", features, {})),
      left_(normed_layer(make, name + ".linear_1", features, hidden, true)),
      right_(normed_layer(make, name + ".linear_2", features, hidden, true)),
      weight_(make.vector(name + ".linear_out.weight", {pair_features, hidden * hidden}, {.decay = true})),
      bias_(make.vector(name + ".linear_out.bias", {pair_features}, {})) {}

at::Tensor OuterProduct::forward(const at::Tensor& m, const at::Tensor& mask, int64_t residues) const {
  const at::Tensor x = norm_->forward(m), own = ranks_->part(mask, 2);
  at::Tensor a = left_->forward(x), b = right_->forward(x);
  const auto wide = m.options().requires_grad(false).dtype(ops::wide_type(m));
  at::Tensor counts;
  if (mask.defined()) {
    const at::Tensor here = own.to(a.scalar_type()).unsqueeze(-1);
    a = a * here, b = b * here;
    counts = at::matmul(own.to(wide).transpose(1, 2), mask.to(wide)) + kNoRows;
  } else {
    counts = at::full({m.size(0), m.size(2), residues}, static_cast<double>(m.size(1)) + kNoRows, wide);
  }
  return ops::outer_product_mean(a, ranks_->gathered(b, 2, residues), weight_->value(), bias_->value(), counts);
}

}  // namespace colossal::nn
