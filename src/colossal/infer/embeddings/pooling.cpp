#include "colossal/infer/embeddings/pooling.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "colossal/base/error.h"

namespace colossal::infer {

const std::vector<std::string>& pooling_names() {
  static const std::vector<std::string> names{"cls", "mean", "max", "last", "pooler"};  // same order as Pooling
  return names;
}

Pooling pooling_of(const std::string& name) {
  const auto& names = pooling_names();
  const auto found = std::find(names.begin(), names.end(), name);
  require(found != names.end(), "embed", "a pooling must be one of cls, mean, max, last, pooler: got ", name);
  return static_cast<Pooling>(found - names.begin());
}

at::Tensor pooled(const at::Tensor& hidden, const std::vector<int64_t>& lengths, Pooling pooling) {
  const at::Tensor rows = hidden[0].to(at::promote_types(hidden.scalar_type(), at::kFloat));
  std::vector<at::Tensor> vectors;
  for (const at::Tensor& text : rows.split_with_sizes(lengths, 0)) {
    const bool is_end = pooling == Pooling::Cls || pooling == Pooling::Last;
    if (is_end) vectors.push_back(text[pooling == Pooling::Last ? text.size(0) - 1 : 0]);
    if (!is_end) vectors.push_back(pooling == Pooling::Max ? text.amax(0) : text.mean(0));
  }
  return at::stack(vectors);
}

at::Tensor normalized(const at::Tensor& vectors) { return vectors / vectors.norm(2, {1}, true).clamp_min(1e-12); }

void TextPool::add(const at::Tensor& states) {
  if (states.size(0) == 0) return;
  const bool is_first = tokens_ == 0;
  tokens_ += states.size(0);
  switch (pooling_) {
    case Pooling::Mean: {
      const at::Tensor sum = states.sum({0}, /*keepdim=*/false, at::kDouble);
      value_ = is_first ? sum : value_ + sum;
      break;
    }
    case Pooling::Max: {
      const at::Tensor most = states.amax(0);
      value_ = is_first ? most : at::maximum(value_, most);
      break;
    }
    case Pooling::Last:
      value_ = states[states.size(0) - 1].clone();  // not a view, which would keep all states
      break;
    default:
      if (is_first) value_ = states[0].clone();
  }
}

std::vector<float> TextPool::vector() const {
  at::Tensor whole = value_.to(at::promote_types(value_.scalar_type(), at::kFloat));
  if (pooling_ == Pooling::Mean) whole = whole / tokens_;
  if (normalizes_) whole = normalized(whole.unsqueeze(0)).squeeze(0);
  whole = whole.to(at::kCPU, at::kFloat).contiguous();
  const float* values = whole.const_data_ptr<float>();
  return {values, values + whole.numel()};
}

}  // namespace colossal::infer
