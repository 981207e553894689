#include "colossal/ops/rotary.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <span>

#include "colossal/base/error.h"
#include "colossal/ops/device/tables.h"
#include "colossal/ops/dispatch.h"
#include "colossal/ops/parallel.h"
#include "colossal/tensor/apply_function.h"
#include "colossal/tensor/moved_bytes.h"

namespace colossal::ops {
namespace {

/// Returns the largest of `positions` plus one. It refuses accelerators, because the host would have to wait for them.
int64_t longest_of(const at::Tensor& positions) {
  require(positions.is_cpu(), "rotary",
          "frequencies that depend on the sequence length need it if positions are on an accelerator, ",
          positions.device(), ": got none");
  return positions.numel() == 0 ? 0 : positions.max().item<int64_t>() + 1;
}

}  // namespace

at::Tensor rotary_reference(const at::Tensor& x, const at::Tensor& positions, const RotaryTable& table,
                            int64_t length) {
  const auto type = wide_type(x);
  const int64_t rotated = table.rotated(), rest = x.size(-1) - rotated;
  if (table.depends_on_length() && length == 0) length = longest_of(positions);
  // fp64 angles: fp32 loses the phase of high frequencies at long positions.
  const at::Tensor frequencies = table.frequencies(x.device(), length);
  const auto angle = (positions.to(at::kDouble).unsqueeze(-1) * frequencies).unsqueeze(2);
  const double factor = table.attention_factor();
  const auto turned = [&](const at::Tensor& of_angle) { return (factor == 1 ? of_angle : of_angle * factor).to(type); };
  const auto cosine = turned(angle.cos()), sine = turned(angle.sin());
  const auto halves = (rest == 0 ? x : x.narrow(-1, 0, rotated)).to(type).chunk(2, -1);
  const at::Tensor y =
      at::cat({halves[0] * cosine - halves[1] * sine, halves[1] * cosine + halves[0] * sine}, -1).to(x.scalar_type());
  return rest == 0 ? y : at::cat({y, x.narrow(-1, rotated, rest)}, -1);
}

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

constexpr int64_t kGrainElements = 8192;

void check(const at::Tensor& x, const at::Tensor& positions, const RotaryTable& table) {
  require(x.dim() == 4 && x.size(3) >= table.rotated(), "rotary", "input must be [B,S,N,D] with D at least the ",
          table.rotated(), " rotated features: got ", x.sizes());
  require(positions.dim() == 2 && positions.size(0) == x.size(0) && positions.size(1) == x.size(1) &&
              positions.scalar_type() == at::kLong,
          "rotary", "positions must be int64 [B,S] of input ", x.sizes(), ": got ", positions.sizes());
}

bool is_turned_by_us(const at::Tensor& x) { return has_kernel(x) || has_device_kernels(x); }

/// Input of our kernels.
struct Angles {
  /// For a CPU: cosines and sines [n, 2, R/2], enough for the largest position. For other devices: the frequencies,
  /// because the host would have to wait to learn the largest position.
  at::Tensor numbers;
  at::Tensor positions;  // contiguous; for a CPU row indices of `numbers`
  int64_t rotated;
  double factor;  // factor of cosines and sines; 1 if `numbers` includes it
};

Angles angles_for(const at::Tensor& x, const at::Tensor& positions, const RotaryTable& table, int64_t length) {
  const at::Tensor dense = positions.contiguous();
  if (!x.is_cpu()) {
    require(positions.device() == x.device(), "rotary", "positions must be on the device of the input, ", x.device(),
            ": got ", positions.device());
    if (table.depends_on_length() && length == 0) length = longest_of(positions);
    return {table.frequencies(x.device(), length), dense, table.rotated(), table.attention_factor()};
  }
  const auto type = wide_type(x);
  if (dense.numel() == 0) return {table.turns(0, 1, type).cos_sin, dense, table.rotated(), 1};
  const std::span<const int64_t> all(dense.const_data_ptr<int64_t>(), static_cast<size_t>(dense.numel()));
  const auto [smallest, largest] = std::minmax_element(all.begin(), all.end());
  const int64_t first = *smallest, last = *largest;
  require(first >= 0, "rotary", "positions must not be negative: got ", first);
  const RotaryTable::Turns turns = table.turns(first, last + 1, type, length > 0 ? length : last + 1);
  return {turns.cos_sin, turns.first == 0 ? dense : dense - turns.first, table.rotated(), 1};
}

// x may have any strides as long as elements of a head are adjacent and (b, s) is one evenly spaced dimension.
at::Tensor turn(const at::Tensor& input, const Angles& angles, int sign) {
  const bool rows_even = input.size(0) == 1 || input.stride(0) == input.stride(1) * input.size(1);
  const auto x = input.stride(3) == 1 && rows_even ? input : input.contiguous();
  auto y = at::empty(x.sizes(), x.options());
  const tensor::KernelBytes bytes({x, angles.numbers}, {y});
  const auto task_of = [&](auto element) {
    using T = decltype(element);
    return RotaryRows<T>{.heads = x.size(2),
                         .head_size = x.size(3),
                         .rotated = angles.rotated,
                         .x_row_stride = x.stride(1),
                         .x_head_stride = x.stride(2),
                         .x = pointer<T>(x),
                         .y = pointer<T>(y),
                         .positions = pointer<int64_t>(angles.positions),
                         .cos_sin = nullptr,
                         .frequencies = nullptr,
                         .factor = static_cast<WideOf<T>>(angles.factor),
                         .sign = static_cast<WideOf<T>>(sign)};
  };
  if (with_device_kernels(x, [&](auto element, const auto& kernel, void* stream) {
        auto task = task_of(element);
        task.frequencies = pointer<double>(angles.numbers);
        kernel.rotary(task, x.size(0) * x.size(1), stream);
      }))
    return y;
  with_element_type(x, [&](auto element) {
    using T = decltype(element);
    auto task = task_of(element);
    task.cos_sin = pointer<WideOf<T>>(angles.numbers);
    const auto& kernel = kernels<T>();
    const int64_t grain = std::max<int64_t>(kGrainElements / std::max<int64_t>(x.size(2) * x.size(3), 1), 1);
    parallel_for(0, x.size(0) * x.size(1), grain, [&](int64_t from, int64_t to) { kernel.rotary(task, from, to); });
  });
  return y;
}

struct Rotary : Function<Rotary> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& numbers,
                            const at::Tensor& positions, int64_t rotated, double factor) {
    if (context) {
      context->save_for_backward({numbers, positions});
      context->saved_data["rotated"] = rotated;
      context->saved_data["factor"] = factor;
    }
    return turn(x, {numbers, positions, rotated, factor}, 1);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const Angles angles{saved[0], saved[1], context->saved_data["rotated"].toInt(),
                        context->saved_data["factor"].toDouble()};
    const at::Tensor none;
    return {turn(gradients[0], angles, -1), none, none, none, none};
  }
};

at::Tensor turned(const at::Tensor& x, const Angles& angles) {
  return tensor::apply_function<Rotary>(x, angles.numbers, angles.positions, angles.rotated, angles.factor);
}

}  // namespace

at::Tensor rotary(const at::Tensor& x, const at::Tensor& positions, const RotaryTable& table, int64_t length) {
  check(x, positions, table);
  if (!is_turned_by_us(x)) return rotary_reference(x, positions, table, length);
  return turned(x, angles_for(x, positions, table, length));
}

std::pair<at::Tensor, at::Tensor> rotary(const at::Tensor& q, const at::Tensor& k, const at::Tensor& positions,
                                         const RotaryTable& table, int64_t length) {
  check(q, positions, table);
  check(k, positions, table);
  if (!is_turned_by_us(q))
    return {rotary_reference(q, positions, table, length), rotary_reference(k, positions, table, length)};
  const Angles angles = angles_for(q, positions, table, length);
  return {turned(q, angles), turned(k, angles)};
}

}  // namespace colossal::ops
