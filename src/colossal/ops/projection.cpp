#include "colossal/ops/projection.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "colossal/base/error.h"
#include "colossal/ops/dispatch.h"
#include "colossal/ops/products/matmul.h"
#include "colossal/tensor/flops.h"

namespace colossal::ops {
namespace {

// Bytes of a slice's logits in fp32. Accelerators get larger slices, because they have the memory, and because their
// products of few tokens are limited by reading the weight.
constexpr int64_t kSliceBytes = int64_t{64} << 20, kAcceleratorSliceBytes = int64_t{512} << 20;

/// Returns the number of columns with which logits are computed. GPUs multiply narrow numbers several times as fast if
/// it is a multiple of 64: with the 50257 of GPT-2, cuBLAS runs kernels that load one number at a time.
int64_t padded_columns(const at::Tensor& weight) {
  const int64_t columns = weight.size(0);
  return is_for_accelerator(weight) && narrow_type(weight) != Narrow::None ? (columns + 63) / 64 * 64 : columns;
}

}  // namespace

LocalProjection::LocalProjection(int64_t tokens, const at::Tensor& weight, const at::TensorOptions& options)
    : type_(weight.scalar_type()) {
  use(weight);
  buffer_ = empty_rows(tokens, weight_.size(0), options);
}

// If columns are padded, the weight is a copy with rows of zeros at its end, and so is the rounded gradient with
// columns of zeros.
void LocalProjection::use(const at::Tensor& weight) {
  columns_ = weight.size(0);
  weight_ = weight.to(product_type(weight));
  const int64_t padded = padded_columns(weight_);
  if (padded == columns_) return;
  const at::Tensor whole = at::zeros({padded, weight_.size(1)}, weight_.options());
  whole.narrow(0, 0, columns_).copy_(weight_);
  weight_ = whole;
}

at::Tensor LocalProjection::logits(const at::Tensor& hidden, const at::Tensor&) {
  const tensor::FactorScope factors(type_);
  hidden_ = hidden.to(weight_.scalar_type());
  auto logits = buffer_.narrow(0, 0, hidden.size(0)).narrow(1, 0, weight_.size(0));
  matmul_nt_(logits, hidden_, weight_, 0);
  return logits.narrow(1, 0, columns_);
}

void LocalProjection::gradients(const at::Tensor& logits_gradient, at::Tensor* hidden, at::Tensor* weight) {
  const tensor::FactorScope factors(type_);
  const auto d = narrowed(logits_gradient);
  if (hidden) matmul_nn_(*hidden, d, weight_);
  if (weight) matmul_tn(d.narrow(1, 0, columns_), hidden_, *weight);
}

at::Tensor LocalProjection::narrowed(const at::Tensor& logits_gradient) {
  const auto type = weight_.scalar_type();
  if (!is_for_accelerator(logits_gradient) || logits_gradient.scalar_type() == type) return logits_gradient.to(type);
  if (!rounded_.defined()) rounded_ = empty_rows(buffer_.size(0), buffer_.size(1), weight_.options());
  const at::Tensor rounded = rounded_.narrow(0, 0, logits_gradient.size(0)).narrow(1, 0, weight_.size(0));
  rounded.narrow(1, columns_, weight_.size(0) - columns_).zero_();
  rounded.narrow(1, 0, columns_).copy_(logits_gradient);
  return rounded;
}

int64_t slice_tokens(int64_t tokens, int64_t columns, at::Device device) {
  const int64_t bytes = is_for_accelerator(device) ? kAcceleratorSliceBytes : kSliceBytes;
  const int64_t most = std::max<int64_t>(bytes / (4 * std::max<int64_t>(columns, 1)), 16);
  const int64_t slices = std::max<int64_t>((tokens + most - 1) / most, 1);
  return std::max<int64_t>((tokens + slices - 1) / slices, 1);
}

void check_projected(const char* component, const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& bias,
                     const at::Tensor& labels, const VocabularyRange& range, bool whole, bool local, double soft_cap) {
  require(hidden.dim() == 2 && weight.dim() == 2 && hidden.size(1) == weight.size(1) &&
              hidden.scalar_type() == weight.scalar_type(),
          component, "hidden must be [T,H] and weight [rows,H] of one dtype: got ", hidden.sizes(), " and ",
          weight.sizes());
  require((labels.dim() == 1 || (labels.dim() == 2 && !local)) && labels.size(-1) == hidden.size(0) &&
              labels.scalar_type() == at::kLong,
          component, "labels must be int64 [T]: got ", labels.sizes(), " for hidden ", hidden.sizes());
  require(range.first >= 0 && range.valid >= 0 && (!local || range.valid <= weight.size(0)), component,
          "valid rows must be at most the rows of the weight: got ", range.valid, " of ", weight.size(0));
  require(!bias.defined() || (bias.dim() == 1 && (!local || bias.size(0) == weight.size(0))), component,
          "the bias must be [rows]: got ", bias.defined() ? bias.sizes() : at::IntArrayRef(), " for ", weight.size(0),
          " rows");
  require(soft_cap >= 0, component, "soft_cap must be 0 (none) or more: got ", soft_cap);
  if (labels.numel() == 0 || !labels.is_cpu()) return;
  const auto good = labels.ge(0).logical_or(labels.eq(kIgnoredLabel));
  const auto wrong = whole ? good.logical_and(labels.lt(range.first + range.valid)).logical_not() : good.logical_not();
  if (*wrong.any().const_data_ptr<bool>())
    throw Error(component, concat("labels must be token ids", whole ? concat(" below ", range.valid) : "", " or ",
                                  kIgnoredLabel, ": got ", labels.masked_select(wrong)[0].item<int64_t>()));
}

}  // namespace colossal::ops
