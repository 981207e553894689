#include "colossal/trace/meta_results.h"

#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>

#include <algorithm>

#include "colossal/base/error.h"

namespace colossal::trace {
namespace {

at::Tensor on_meta(at::IntArrayRef shape, const at::Tensor& like) {
  return at::empty(shape, like.options().device(at::kMeta).requires_grad(false));
}

std::vector<int64_t> integers(const c10::IValue& value) {
  return value.isInt() ? std::vector<int64_t>{value.toInt()} : value.toIntVector();
}

int64_t nth(const std::vector<int64_t>& values, size_t index) {
  return values.size() == 1 ? values[0] : values.at(index);
}

}  // namespace

at::Tensor like_first(const HeardCall& call) { return on_meta(call.self().sizes(), call.self()); }

at::Tensor attention_result(const HeardCall& call) {
  const at::Tensor &query = call.self(), value = call.tensor("value");
  std::vector<int64_t> shape = query.sizes().vec();
  shape.back() = value.size(-1);
  if (shape.size() != 4) return on_meta(shape, query);
  std::swap(shape[1], shape[2]);  // as the kernels lay it out: heads beside each other
  return on_meta(shape, query).transpose(1, 2);
}

at::Tensor embedding_result(const HeardCall& call) {
  const at::Tensor weight = call.tensor("weight");
  std::vector<int64_t> shape = call.tensor("indices").sizes().vec();
  shape.push_back(weight.size(1));
  return on_meta(shape, weight);
}

at::Tensor convolution_result(const HeardCall& call) {
  const at::Tensor &input = call.self(), weight = call.tensor("weight");
  const auto stride = integers(call.argument("stride")), padding = integers(call.argument("padding")),
             dilation = integers(call.argument("dilation"));
  const bool transposed = call.flag("transposed");
  const auto more = transposed ? integers(call.argument("output_padding")) : std::vector<int64_t>{0};
  const int64_t positions = weight.dim() - 2, first = input.dim() - positions;
  std::vector<int64_t> shape = input.sizes().vec();
  shape[first - 1] = transposed ? weight.size(1) * call.argument("groups").toInt() : weight.size(0);
  for (int64_t i = 0; i < positions; ++i) {
    const int64_t reach = nth(dilation, i) * (weight.size(2 + i) - 1), size = input.size(first + i);
    shape[first + i] = transposed ? (size - 1) * nth(stride, i) - 2 * nth(padding, i) + reach + nth(more, i) + 1
                                  : (size + 2 * nth(padding, i) - reach - 1) / nth(stride, i) + 1;
    require(shape[first + i] > 0, "trace", "the kernel of a convolution must fit its input: got ", weight.sizes(),
            " on ", input.sizes());
  }
  return on_meta(shape, input);
}

at::Tensor where_result(const HeardCall& call) {
  const at::Tensor self = call.tensor("self"), other = call.tensor("other");
  const auto values = at::infer_size(self.sizes(), other.sizes());
  const auto shape = at::infer_size(call.tensor("condition").sizes(), values);
  return at::empty(shape, self.options().device(at::kMeta).requires_grad(false).dtype(at::result_type(self, other)));
}

at::Tensor index_select_result(const HeardCall& call) {
  const at::Tensor& self = call.self();
  std::vector<int64_t> shape = self.sizes().vec();
  if (shape.empty()) return on_meta(shape, self);
  const int64_t dim = call.argument("dim").toInt();
  shape.at(dim < 0 ? dim + self.dim() : dim) = call.tensor("index").numel();
  return on_meta(shape, self);
}

at::Tensor pooled_result(const HeardCall& call) {
  std::vector<int64_t> shape = call.self().sizes().vec();
  const std::vector<int64_t> out = integers(call.argument("output_size"));
  std::copy(out.begin(), out.end(), shape.end() - static_cast<int64_t>(out.size()));
  return on_meta(shape, call.self());
}

at::Tensor loss_result(const HeardCall& call) {
  const bool one = call.argument("reduction").toInt() != 0;
  return one ? on_meta({}, call.self())
             : on_meta(at::infer_size(call.self().sizes(), call.arguments.at(1).toTensor().sizes()), call.self());
}

at::Tensor class_loss_result(const HeardCall& call) {
  if (call.argument("reduction").toInt() != 0) return on_meta({}, call.self());
  std::vector<int64_t> shape = call.self().sizes().vec();
  shape.erase(shape.begin() + (shape.size() == 1 ? 0 : 1));
  return on_meta(shape, call.self());
}

std::vector<c10::IValue> results_of_zeros(const HeardCall& call) {
  HeardCall real = call;
  each_tensor(call.arguments, [&](int argument, int element, const at::Tensor& tensor) {
    if (!tensor.is_meta()) return;
    const at::Tensor zero = at::zeros({}, tensor.options().device(at::kCPU));
    put_tensor(real.arguments, argument, element, zero.expand(tensor.sizes()));
  });
  std::vector<c10::IValue> results = run_unheard(real);
  std::vector<c10::IValue> shapes = results;
  each_tensor(results, [&](int argument, int element, const at::Tensor& tensor) {
    const at::TensorOptions options = tensor.options().device(at::kMeta);
    put_tensor(shapes, argument, element, at::empty_strided(tensor.sizes(), tensor.strides(), options));
  });
  return shapes;
}

}  // namespace colossal::trace
