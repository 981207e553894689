#include "colossal/models/esm2_layers.h"

#include <ATen/ATen.h>

#include <vector>

#include "colossal/base/error.h"
#include "colossal/nn/attention_cache.h"
#include "colossal/nn/attention_shape.h"
#include "colossal/nn/batch_step.h"
#include "colossal/ops/activation.h"
#include "colossal/ops/rotary.h"

namespace colossal::models {
namespace {

constexpr double kReadShare = 1 - 0.15 * 0.8;  // tokens that were not replaced by the mask when ESM-2 was trained

/// Returns the sequence of each token of a row, [B, S] counted from 0; undefined = each row is one. `documents` of the
/// rows that this rank has.
at::Tensor sequence_numbers(const at::Tensor& documents, const nn::ForwardContext& step, const at::Tensor& like) {
  if (documents.defined()) {
    const at::Tensor there = documents.to(like.device(), /*non_blocking=*/true);
    const int64_t tokens = there.size(1);
    const at::Tensor changes = there.narrow(1, 1, tokens - 1).ne(there.narrow(1, 0, tokens - 1));
    return at::cat({at::zeros({there.size(0), 1}, there.options()), changes.to(at::kLong).cumsum(1)}, 1);
  }
  const nn::Sequences& sequences = nn::sequences_of(step);
  if (sequences.lengths.size() <= 1) return {};
  std::vector<int64_t> numbers;
  for (size_t i = 0; i < sequences.lengths.size(); ++i)
    numbers.insert(numbers.end(), sequences.lengths[i], static_cast<int64_t>(i));
  return at::tensor(numbers, at::TensorOptions().dtype(at::kLong).device(like.device()))
      .unsqueeze(0)
      .expand({like.size(0), -1});
}

}  // namespace

Esm2Embedding::Esm2Embedding(const std::string& name, int64_t vocabulary, int64_t hidden, const Esm2Masking& masking,
                             nn::Layers& layers)
    : masking_(masking), table_(layers.embedding(name, vocabulary, hidden, kDeviation)), runs_(layers.token_runs()) {}

at::Tensor Esm2Embedding::factors(const at::Tensor& ids, const nn::ForwardContext& step, at::ScalarType dtype) const {
  const nn::Tokens here = runs_->here(step);
  const at::Tensor masked = here.of(ids).eq(masking_.mask_id).to(dtype);  // [B, own tokens]
  const at::Tensor documents = step.documents.defined() ? here.rows_of(step.documents) : at::Tensor();
  const at::Tensor numbers = sequence_numbers(documents, step, masked);
  const auto factor = [](const at::Tensor& length, const at::Tensor& count) {
    return kReadShare * length / (length - count).clamp_min(1);  // at least 1 for a sequence of mask tokens
  };
  at::Tensor factors;
  if (numbers.defined()) {
    nn::Share all = here.sequence;  // documents have all tokens, whatever tokens the rank was given
    all.given.clear();
    const at::Tensor own = all.of(numbers, 1, "documents"), zeros = at::zeros(numbers.sizes(), masked.options());
    const at::Tensor lengths = zeros.scatter_add(1, numbers, at::ones_like(zeros)),
                     counts = runs_->sum(zeros.scatter_add(1, own, masked));
    factors = factor(lengths, counts).gather(1, own);
  } else {
    const at::Tensor count = runs_->sum(masked.sum(1, true));
    factors = factor(at::full_like(count, here.sequence.whole_size(masked.size(1))), count);
  }
  return (factors * (1 - masked)).unsqueeze(-1);
}

at::Tensor Esm2Embedding::forward(const at::Tensor& ids, const nn::ForwardContext& step) const {
  const at::Tensor x = table_->forward(ids, step);
  if (!masking_.token_dropout) return x;
  const at::ScalarType wide = at::promote_types(x.scalar_type(), at::kFloat);
  return (x * factors(ids, step, wide)).to(x.scalar_type());
}

BlockVariant esm2_block(const ModelShape& shape, double theta) {
  return {.activation = ops::exact_gelu,
          .attention = {.causal = false},
          .rotary = std::make_shared<const ops::RotaryTable>(shape.head_dim, theta)};
}

namespace {

int64_t head_size_of(const std::string& name, const Esm2BlockSizes& sizes) {
  require(sizes.heads > 0 && sizes.hidden % sizes.heads == 0 && sizes.hidden / sizes.heads % 2 == 0, "model",
          "the heads of ", name, " must divide its features into even sizes, whose halves are rotated: got ",
          sizes.heads, " heads and ", sizes.hidden, " features");
  return sizes.hidden / sizes.heads;
}

}  // namespace

Esm2WholeBlock::Esm2WholeBlock(const std::string& name, const Esm2BlockSizes& sizes, nn::Layers& layers)
    : heads_(sizes.heads),
      head_dim_(head_size_of(name, sizes)),
      rotary_(std::make_shared<const ops::RotaryTable>(head_dim_, sizes.theta)),
      norm_1_(layers.layer_norm(name + ".norm_1", sizes.hidden, {sizes.norm_epsilon})),
      norm_2_(layers.layer_norm(name + ".norm_2", sizes.hidden, {sizes.norm_epsilon})),
      qkv_(layers.dense(name + ".attention.qkv", sizes.hidden, 3 * sizes.hidden, {})),
      out_(layers.dense(name + ".attention.out", sizes.hidden, sizes.hidden, {})),
      up_(layers.dense(name + ".mlp.up", sizes.hidden, sizes.ffn, {})),
      down_(layers.dense(name + ".mlp.down", sizes.ffn, sizes.hidden, {})),
      attention_(nn::whole_attention(0, {sizes.hidden, heads_, heads_, head_dim_}, {.causal = false})) {}

at::Tensor Esm2WholeBlock::forward(const at::Tensor& x, const nn::ForwardContext& step) const {
  nn::Heads heads = nn::split_heads(qkv_->forward(norm_1_->forward(x)), heads_, heads_, head_dim_);
  nn::turn(heads, step, *rotary_);
  const at::Tensor attended = x + out_->forward(attention_->forward(heads, step).tensor);
  return attended + down_->forward(ops::exact_gelu(up_->forward(norm_2_->forward(attended))));
}

nn::ForwardContext esm2_step(const at::Tensor& mask, const nn::ForwardContext& step) {
  nn::ForwardContext language = step;
  const auto numbers = at::TensorOptions().dtype(at::kLong).device(mask.device());
  language.positions = at::arange(mask.size(1), numbers).unsqueeze(0).expand({mask.size(0), -1}).contiguous();
  language.documents = mask.eq(0).to(at::kLong);
  language.known_documents = std::make_shared<nn::BatchDocuments>(language.documents);
  language.cut = nullptr;
  return language;
}

}  // namespace colossal::models
