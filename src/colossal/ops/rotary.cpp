#include "colossal/ops/rotary.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/ops/device_tables.h"
#include "colossal/ops/dispatch.h"
#include "colossal/ops/parallel.h"

namespace colossal::ops {

struct RotaryTable::State {
  int64_t head_size = 0;
  at::Tensor frequencies;
  std::mutex mutex;
  std::vector<at::Tensor> copies;  // of the frequencies, one on each other device
  at::Tensor wide, narrow;         // [n, 2, D/2] in fp64 and fp32; replaced by longer ones, never written again
};

RotaryTable::RotaryTable(int64_t head_size, double theta, std::optional<RotaryScaling> scaling)
    : state_(std::make_shared<State>()) {
  require(head_size > 0 && head_size % 2 == 0, "rotary", "head size must be even and positive: got ", head_size);
  require(theta > 0, "rotary", "theta must be positive: got ", theta);
  if (scaling)
    require(scaling->factor > 0 && scaling->low_freq_factor > 0 &&
                scaling->high_freq_factor > scaling->low_freq_factor && scaling->original_max_position > 0,
            "rotary",
            "scaling needs factor > 0, high_freq_factor > low_freq_factor > 0 and original_max_position > 0: got ",
            scaling->factor, ", ", scaling->high_freq_factor, ", ", scaling->low_freq_factor, ", ",
            scaling->original_max_position);
  state_->head_size = head_size;
  state_->frequencies = at::empty({head_size / 2}, at::kDouble);
  auto* frequency = state_->frequencies.data_ptr<double>();
  for (int64_t i = 0; i < head_size / 2; ++i) {
    double f = std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_size));
    if (scaling) {
      // Turns that the frequency makes over the original context decide: many are kept, few are stretched.
      const double turns = static_cast<double>(scaling->original_max_position) * f / (2 * M_PI);
      const double kept = std::clamp(
          (turns - scaling->low_freq_factor) / (scaling->high_freq_factor - scaling->low_freq_factor), 0.0, 1.0);
      f = (1 - kept) * f / scaling->factor + kept * f;
    }
    frequency[i] = f;
  }
}

int64_t RotaryTable::head_size() const { return state_->head_size; }

at::Tensor RotaryTable::frequencies(at::Device device) const {
  if (device.is_cpu()) return state_->frequencies;
  const std::lock_guard lock(state_->mutex);
  for (const at::Tensor& copy : state_->copies)
    if (copy.device() == device) return copy;
  return state_->copies.emplace_back(state_->frequencies.to(device));
}

at::Tensor RotaryTable::cos_sin(int64_t positions, at::ScalarType dtype) const {
  const std::lock_guard lock(state_->mutex);
  if (!state_->wide.defined() || state_->wide.size(0) < positions) {
    at::NoGradGuard no_grad;
    const int64_t known = state_->wide.defined() ? state_->wide.size(0) : 0;
    const auto position = at::arange(std::max<int64_t>({positions, 2 * known, 64}), at::kDouble);
    const auto angle = at::outer(position, state_->frequencies);
    state_->wide = at::stack({angle.cos(), angle.sin()}, 1);
    state_->narrow = state_->wide.to(at::kFloat);
  }
  return dtype == at::kDouble ? state_->wide : state_->narrow;
}

at::Tensor rotary_reference(const at::Tensor& x, const at::Tensor& positions, const RotaryTable& table) {
  const auto type = wide_type(x);
  // fp64 angles: fp32 loses the phase of high frequencies at long positions.
  const auto angle = (positions.to(at::kDouble).unsqueeze(-1) * table.frequencies(x.device())).unsqueeze(2);
  const auto cosine = angle.cos().to(type), sine = angle.sin().to(type);
  const auto halves = x.to(type).chunk(2, -1);
  return at::cat({halves[0] * cosine - halves[1] * sine, halves[1] * cosine + halves[0] * sine}, -1)
      .to(x.scalar_type());
}

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

constexpr int64_t kGrainElements = 8192;

void check(const at::Tensor& x, const at::Tensor& positions, const RotaryTable& table) {
  require(x.dim() == 4 && x.size(3) == table.head_size(), "rotary", "input must be [B,S,N,", table.head_size(),
          "]: got ", x.sizes());
  require(positions.dim() == 2 && positions.size(0) == x.size(0) && positions.size(1) == x.size(1) &&
              positions.scalar_type() == at::kLong,
          "rotary", "positions must be int64 [B,S] of input ", x.sizes(), ": got ", positions.sizes());
}

bool is_turned_by_us(const at::Tensor& x) { return has_kernel(x) || has_device_kernels(x); }

// What our kernels take for these positions of `x`: of a CPU cosines and sines [n, 2, D/2], enough of them for the
// largest. Of other devices the frequencies: to learn the largest position the host would wait.
at::Tensor angles_for(const at::Tensor& x, const at::Tensor& positions, const RotaryTable& table) {
  if (!x.is_cpu()) {
    require(positions.device() == x.device(), "rotary", "positions must be where the input is, on ", x.device(),
            ": got ", positions.device());
    return table.frequencies(x.device());
  }
  const auto type = wide_type(x);
  if (positions.numel() == 0) return table.cos_sin(1, type);
  const auto [smallest, largest] = positions.aminmax();  // where kernels are, on the host: nobody waits
  const int64_t first = *smallest.const_data_ptr<int64_t>(), last = *largest.const_data_ptr<int64_t>();
  require(first >= 0, "rotary", "positions must not be negative: got ", first);
  return table.cos_sin(last + 1, type);
}

// x may have any strides as long as elements of a head are adjacent and (b, s) is one evenly spaced dimension.
// `angles`:
// what angles_for() gives.
at::Tensor turn(const at::Tensor& input, const at::Tensor& positions, const at::Tensor& angles, int sign) {
  const bool rows_even = input.size(0) == 1 || input.stride(0) == input.stride(1) * input.size(1);
  const auto x = input.stride(3) == 1 && rows_even ? input : input.contiguous();
  auto y = at::empty(x.sizes(), x.options());
  const auto task_of = [&](auto element) {
    using T = decltype(element);
    return RotaryRows<T>{.heads = x.size(2),
                         .head_size = x.size(3),
                         .x_row_stride = x.stride(1),
                         .x_head_stride = x.stride(2),
                         .x = pointer<T>(x),
                         .y = pointer<T>(y),
                         .positions = pointer<int64_t>(positions),
                         .sign = static_cast<WideOf<T>>(sign)};
  };
  if (with_device_kernels(x, [&](auto element, const auto& kernel, void* stream) {
        auto task = task_of(element);
        task.frequencies = pointer<double>(angles);
        kernel.rotary(task, x.size(0) * x.size(1), stream);
      }))
    return y;
  with_element_type(x, [&](auto element) {
    using T = decltype(element);
    auto task = task_of(element);
    task.cos_sin = pointer<WideOf<T>>(angles);
    const auto& kernel = kernels<T>();
    const int64_t grain = std::max<int64_t>(kGrainElements / std::max<int64_t>(x.size(2) * x.size(3), 1), 1);
    parallel_for(0, x.size(0) * x.size(1), grain, [&](int64_t from, int64_t to) { kernel.rotary(task, from, to); });
  });
  return y;
}

struct Rotary : Function<Rotary> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& positions,
                            const at::Tensor& angles) {
    context->save_for_backward({positions, angles});
    return turn(x, positions, angles, 1);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    return {turn(gradients[0], saved[0], saved[1], -1), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor rotary(const at::Tensor& x, const at::Tensor& positions, const RotaryTable& table) {
  check(x, positions, table);
  if (!is_turned_by_us(x)) return rotary_reference(x, positions, table);
  return Rotary::apply(x, positions.contiguous(), angles_for(x, positions, table));
}

std::pair<at::Tensor, at::Tensor> rotary(const at::Tensor& q, const at::Tensor& k, const at::Tensor& positions,
                                         const RotaryTable& table) {
  check(q, positions, table);
  check(k, positions, table);
  if (!is_turned_by_us(q)) return {rotary_reference(q, positions, table), rotary_reference(k, positions, table)};
  const auto angles = angles_for(q, positions, table);
  const auto dense = positions.contiguous();
  return {Rotary::apply(q, dense, angles), Rotary::apply(k, dense, angles)};
}

}  // namespace colossal::ops
