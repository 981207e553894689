#include "colossal/ops/triangle.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "colossal/base/error.h"
#include "colossal/ops/dispatch.h"
#include "colossal/ops/parallel.h"
#include "colossal/tensor/apply_function.h"
#include "colossal/tensor/flops.h"
#include "colossal/tensor/whole_operator.h"

namespace colossal::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

/// Returns a view whose channels are neighbours.
at::Tensor with_dense_channels(const at::Tensor& x) { return x.stride(3) == 1 || x.size(3) == 1 ? x : x.contiguous(); }

void announce_channels(const at::Tensor& a, const at::Tensor& b) {
  const auto operations = 2.0 * static_cast<double>(a.numel()) * static_cast<double>(b.size(1));
  tensor::announce_flops(operations, {tensor::Operation::Kind::Product, a.scalar_type()});
}

/// Returns x [B,M,N,C], x_mn = sum over k of a_mk b_nk, of views a [B,M,K,C] and b [B,N,K,C].
at::Tensor channel_product(const at::Tensor& a, const at::Tensor& b) {
  const at::NoGradGuard no_grad;
  announce_channels(a, b);
  const auto plain = a.options().requires_grad(false);
  if (!has_kernel(a)) {
    const auto in_front = [](const at::Tensor& x) { return x.permute({0, 3, 1, 2}).contiguous(); };
    const bool widens = a.scalar_type() != wide_type(a) && a.is_cpu();  // LibTorch rounds sums of narrow dtypes there
    const auto type = widens ? wide_type(a) : a.scalar_type();
    return at::matmul(in_front(a.to(type)), in_front(b.to(type)).transpose(-1, -2))
        .permute({0, 2, 3, 1})
        .to(a.scalar_type())
        .contiguous();
  }
  const at::Tensor left = with_dense_channels(a), right = with_dense_channels(b);
  const at::Tensor x = at::empty({a.size(0), a.size(1), b.size(1), a.size(3)}, plain.dtype(wide_type(a)));
  if (a.size(2) == 0 || x.numel() == 0) return x.zero_().to(a.scalar_type());
  with_element_type(a.is_meta() ? at::empty({0}, plain.device(at::kCPU)) : a, [&](auto element) {
    using T = decltype(element);
    const auto& kernel = kernels<T>();
    ChannelProduct<T> task{.rows = a.size(1), .columns = b.size(1), .depth = a.size(2), .channels = a.size(3)};
    task.a_row = left.stride(1), task.a_depth = left.stride(2);
    task.b_column = right.stride(1), task.b_depth = right.stride(2);
    task.c_row = x.stride(1), task.c_column = x.stride(2);
    const int64_t parts = kernel.channel_parts(task), scratch = (kernel.channel_scratch(task) + 15) / 16 * 16;
    const at::Tensor memory = at::empty({parallel_chunks(a.size(0) * parts, 1), scratch}, x.options());
    if (a.is_meta()) return;
    parallel_chunks_for(0, a.size(0) * parts, 1, [&](int64_t chunk, int64_t begin, int64_t end) {
      auto own = task;
      for (int64_t part = begin; part < end; ++part) {
        const int64_t batch = part / parts;
        own.a = pointer<T>(left) + batch * left.stride(0), own.b = pointer<T>(right) + batch * right.stride(0);
        own.c = pointer<WideOf<T>>(x) + batch * x.stride(0);
        kernel.multiply_channels(own, part % parts, part % parts + 1, pointer<WideOf<T>>(memory) + chunk * scratch);
      }
    });
  });
  return x.to(a.scalar_type());
}

struct TriangleProduct : Function<TriangleProduct> {
  /// a [B,I,K,C], b [B,J,K,C].
  static at::Tensor forward(AutogradContext* context, const at::Tensor& a, const at::Tensor& b) {
    if (context) context->save_for_backward({a, b});
    return channel_product(a, b);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &a = saved[0], &b = saved[1], &dx = gradients[0];
    variable_list d(2);
    if (context->needs_input_grad(0)) d[0] = channel_product(dx, b.transpose(1, 2));
    if (context->needs_input_grad(1)) d[1] = channel_product(dx.transpose(1, 2), a.transpose(1, 2));
    return d;
  }
};

void check_triangle(const at::Tensor& a, const at::Tensor& b, Triangle triangle) {
  const int depth = triangle == Triangle::Outgoing ? 2 : 1;
  require(a.dim() == 4 && b.dim() == 4 && a.size(0) == b.size(0) && a.size(depth) == b.size(depth) &&
              a.size(3) == b.size(3) && a.scalar_type() == b.scalar_type(),
          "triangle", "edges must have one batch, third node, number of channels and dtype: got ", a.sizes(), " of ",
          a.scalar_type(), " and ", b.sizes(), " of ", b.scalar_type());
}

}  // namespace

at::Tensor triangle_product(const at::Tensor& a, const at::Tensor& b, Triangle triangle) {
  check_triangle(a, b, triangle);
  if (tensor::OperatorRecorder* recorder = tensor::operator_recorder())
    return recorder->record({"triangle_product",
                             triangle == Triangle::Outgoing ? "biKc,bjKc->bijc" : "bKic,bKjc->bijc",
                             {a, b},
                             [=](const auto& in) { return triangle_product(in[0], in[1], triangle); }});
  if (triangle == Triangle::Outgoing) return tensor::apply_function<TriangleProduct>(a, b);
  return tensor::apply_function<TriangleProduct>(a.transpose(1, 2), b.transpose(1, 2));
}

at::Tensor triangle_product_reference(const at::Tensor& a, const at::Tensor& b, Triangle triangle) {
  check_triangle(a, b, triangle);
  const auto wide = wide_type(a);
  const char* of = triangle == Triangle::Outgoing ? "bikc,bjkc->bijc" : "bkic,bkjc->bijc";
  return at::einsum(of, {a.to(wide), b.to(wide)}).to(a.scalar_type());
}

}  // namespace colossal::ops
