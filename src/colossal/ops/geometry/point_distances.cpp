#include "colossal/ops/geometry/point_distances.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/tensor/apply_function.h"
#include "colossal/tensor/flops.h"
#include "colossal/tensor/moved_bytes.h"
#include "colossal/tensor/whole_operator.h"

namespace colossal::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

constexpr int64_t kDistancesAtOnce = int64_t{1} << 16;  // of a slice, which stays in the cache for all coordinates

/// Returns points [B, N, H, P, 3] as [B, H, N, 3 P].
at::Tensor by_heads(const at::Tensor& points) { return points.flatten(-2).transpose(1, 2).contiguous(); }

void add_squares(const at::Tensor& out, const at::Tensor& q, const at::Tensor& k) {
  const int64_t rows = q.size(2), pairs_of_row = out.size(0) * out.size(1) * out.size(3);
  const int64_t at_once = std::clamp<int64_t>(kDistancesAtOnce / std::max<int64_t>(pairs_of_row, 1), 1, rows);
  for (int64_t first = 0; first < rows; first += at_once) {
    const int64_t count = std::min(at_once, rows - first);
    const at::Tensor slice = out.narrow(2, first, count);
    for (int64_t c = 0; c < q.size(3); ++c) {
      const at::Tensor difference =
          q.narrow(2, first, count).narrow(3, c, 1) - k.select(3, c).unsqueeze(2);  // [B, H, count, M]
      slice.addcmul_(difference, difference);
    }
  }
}

struct SummedSquares : Function<SummedSquares> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& q_points, const at::Tensor& k_points) {
    const at::Tensor q = by_heads(q_points), k = by_heads(k_points);
    at::Tensor out = at::empty({q.size(0), q.size(1), q.size(2), k.size(2)}, q.options());
    const tensor::KernelBytes bytes({q, k}, {out});
    if (!out.is_meta() && out.numel() > 0) add_squares(out.zero_(), q, k);
    if (context) context->save_for_backward({q, k}), context->saved_data["points"] = q_points.size(-2);
    return out;
  }

  /// d/dq_i of sum g_ij |q_i - k_j|^2 = 2 (q_i sum_j g_ij - sum_j g_ij k_j), and the same for k.
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &q = saved[0], &k = saved[1], &g = gradients[0];
    const int64_t points = context->saved_data["points"].toInt();
    tensor::announce_product(q.size(0) * q.size(1) * q.size(2), q.size(3), k.size(2), q.scalar_type());
    tensor::announce_product(k.size(0) * k.size(1) * k.size(2), k.size(3), q.size(2), q.scalar_type());
    const at::Tensor dq = 2 * (q * g.sum(-1).unsqueeze(-1) - at::matmul(g, k));
    const at::Tensor dk = 2 * (k * g.sum(-2).unsqueeze(-1) - at::matmul(g.transpose(-1, -2), q));
    const auto as_given = [&](const at::Tensor& x) {
      return x.transpose(1, 2).unflatten(-1, at::IntArrayRef{points, 3});
    };
    return {as_given(dq), as_given(dk)};
  }
};

}  // namespace

at::Tensor summed_squared_distances(const at::Tensor& q, const at::Tensor& k) {
  require(q.dim() == 5 && k.dim() == 5 && q.size(4) == 3 && q.size(0) == k.size(0) &&
              q.sizes().slice(2) == k.sizes().slice(2) && q.scalar_type() == k.scalar_type(),
          "geometry", "points must be [B, N, H, P, 3] and [B, M, H, P, 3] of one dtype: got ", q.sizes(), " and ",
          k.sizes());
  if (tensor::OperatorRecorder* recorder = tensor::operator_recorder())
    return recorder->record({"summed_squared_distances", "bnhPX,bmhPX->bhnm", {q, k}, [](const auto& in) {
                               return summed_squared_distances(in[0], in[1]);
                             }});
  return tensor::apply_function<SummedSquares>(q, k);
}

}  // namespace colossal::ops
