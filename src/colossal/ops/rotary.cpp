#include "colossal/ops/rotary.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <numeric>
#include <span>

#include "colossal/base/error.h"
#include "colossal/ops/device/tables.h"
#include "colossal/ops/dispatch.h"
#include "colossal/ops/parallel.h"
#include "colossal/tensor/apply_function.h"
#include "colossal/tensor/moved_bytes.h"
#include "colossal/tensor/whole_operator.h"

namespace colossal::ops {

// Frequencies of rotary positions, and the tables made of them. Formulas: transformers' modeling_rope_utils.py.
namespace {

using Reach = RotaryScaling::Kind;

/// Frequencies, their copies on devices, and cosines and sines of some positions. A table of more positions replaces
/// these tensors; their contents never change, so callers may keep them.
struct AngleTable {
  at::Tensor frequencies;
  std::vector<at::Tensor> copies;  // one per device other than the CPU
  at::Tensor wide, narrow;         // [n, 2, R/2] in fp64 and fp32, for positions from `first` on
  int64_t first = 0;

  at::Tensor on(at::Device device) {
    if (device.is_cpu()) return frequencies;
    for (const at::Tensor& copy : copies)
      if (copy.device() == device) return copy;
    return copies.emplace_back(frequencies.to(device));
  }
  void fill(int64_t from, int64_t behind, double factor) {
    const at::NoGradGuard no_grad;
    const auto angle = at::outer(at::arange(from, behind, at::kDouble), frequencies);
    wide = at::stack({angle.cos(), angle.sin()}, 1).mul_(factor);
    narrow = wide.to(at::kFloat);
    first = from;
  }
  bool has(int64_t from, int64_t behind) const {
    return wide.defined() && first <= from && first + wide.size(0) >= behind;
  }
};

void check_scaling(int64_t rotated, double theta, const RotaryScaling& s) {
  require(rotated > 0 && rotated % 2 == 0, "rotary", "the number of rotated features must be even and positive: got ",
          rotated);
  require(theta > 0, "rotary", "theta must be positive: got ", theta);
  if (s.kind == Reach::None) return;
  require(s.factor > 0, "rotary", "scaling needs factor > 0: got ", s.factor);
  if (s.kind == Reach::Linear) return;
  require(s.original_positions > 0, "rotary", "this kind of scaling needs original_positions > 0: got ",
          s.original_positions);
  require(s.attention_factor >= 0, "rotary", "attention_factor must be 0 (as its paper says) or more: got ",
          s.attention_factor);
  if (s.kind == Reach::Dynamic)
    require(rotated > 2, "rotary", "dynamic scaling needs more than 2 rotated features: got ", rotated);
  if (s.kind == Reach::Yarn)
    require(s.beta_fast > 0 && s.beta_slow > 0 && theta != 1, "rotary",
            "yarn needs beta_fast and beta_slow > 0 and a theta other than 1: got ", s.beta_fast, ", ", s.beta_slow,
            " and ", theta);
  if (s.kind == Reach::Llama3)
    require(s.low_freq_factor > 0 && s.high_freq_factor > s.low_freq_factor, "rotary",
            "llama3 needs high_freq_factor > low_freq_factor > 0: got ", s.high_freq_factor, " and ",
            s.low_freq_factor);
  if (s.kind == Reach::LongRope) {
    const auto sound = [&](const std::vector<double>& factors) {
      return static_cast<int64_t>(factors.size()) == rotated / 2 &&
             std::all_of(factors.begin(), factors.end(), [](double f) { return f > 0; });
    };
    require(sound(s.short_factor) && sound(s.long_factor), "rotary",
            "longrope needs short_factor and long_factor of half the rotated features each, ", rotated / 2,
            ", all positive: got ", s.short_factor.size(), " and ", s.long_factor.size());
  }
}

double attention_factor_of(const RotaryScaling& s) {
  if (s.kind != Reach::Yarn && s.kind != Reach::LongRope) return 1;
  if (s.attention_factor > 0) return s.attention_factor;
  if (s.factor <= 1) return 1;
  if (s.kind == Reach::LongRope)
    return std::sqrt(1 + std::log(s.factor) / std::log(static_cast<double>(s.original_positions)));
  const auto scale = [&](double by) { return 0.1 * by * std::log(s.factor) + 1; };
  return s.mscale != 0 && s.mscale_all_dim != 0 ? scale(s.mscale) / scale(s.mscale_all_dim) : scale(1);
}

/// Returns the fraction of a frequency that llama3 keeps. It depends on the turns over the original context: with many
/// turns the frequency is kept, with few it is stretched.
double kept_by_llama3(double f, const RotaryScaling& s) {
  const double turns = static_cast<double>(s.original_positions) * f / (2 * M_PI);
  return std::clamp((turns - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor), 0.0, 1.0);
}

/// Returns the same fraction for yarn. Its ramp is linear in the index of the frequency.
double kept_by_yarn(int64_t i, int64_t rotated, double theta, const RotaryScaling& s) {
  // Index of the frequency that makes `turns` turns over the original context
  const auto index_of = [&](double turns) {
    return static_cast<double>(rotated) * std::log(static_cast<double>(s.original_positions) / (turns * 2 * M_PI)) /
           (2 * std::log(theta));
  };
  double low = index_of(s.beta_fast), high = index_of(s.beta_slow);
  if (s.truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0), high = std::min(high, static_cast<double>(rotated - 1));
  if (low == high) high += 0.001;  // avoids a division by 0, as transformers does
  return 1 - std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
}

/// Computes the frequencies for `length`, which is beyond original_positions, or 0 for shorter lengths.
at::Tensor frequencies_of(int64_t rotated, double theta, const RotaryScaling& s, int64_t length) {
  if (s.kind == Reach::Dynamic && length > 0) {
    const double times = static_cast<double>(length) / static_cast<double>(s.original_positions);
    theta *=
        std::pow(s.factor * times - (s.factor - 1), static_cast<double>(rotated) / static_cast<double>(rotated - 2));
  }
  at::Tensor all = at::empty({rotated / 2}, at::kDouble);
  auto* out = all.data_ptr<double>();
  for (int64_t i = 0; i < rotated / 2; ++i) {
    const double f = std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(rotated));
    double kept = 1;
    if (s.kind == Reach::Linear) kept = 0;
    if (s.kind == Reach::Yarn) kept = kept_by_yarn(i, rotated, theta, s);
    if (s.kind == Reach::Llama3) kept = kept_by_llama3(f, s);
    out[i] = (1 - kept) * f / s.factor + kept * f;
    if (s.kind == Reach::LongRope) out[i] = f / (length > 0 ? s.long_factor : s.short_factor)[i];
  }
  return all;
}

}  // namespace

struct RotaryTable::State {
  int64_t rotated;
  double theta;
  RotaryScaling scaling;
  double attention_factor;
  std::mutex mutex;
  AngleTable usual, beyond;   // `beyond`: for lengths beyond original_positions
  int64_t beyond_length = 0;  // length for which `beyond` was made, if it depends on it

  /// Returns the table for a length. Requires the mutex.
  AngleTable& of(int64_t length) {
    const bool is_beyond = depends() && length > scaling.original_positions;
    if (!is_beyond) return usual;
    const int64_t wanted = scaling.kind == Reach::Dynamic ? length : 1;
    if (beyond_length != wanted) {
      beyond = {.frequencies = frequencies_of(rotated, theta, scaling, length)};
      beyond_length = wanted;
    }
    return beyond;
  }
  bool depends() const { return scaling.kind == Reach::Dynamic || scaling.kind == Reach::LongRope; }
};

RotaryTable::RotaryTable(int64_t rotated, double theta, RotaryScaling scaling) {
  check_scaling(rotated, theta, scaling);
  state_ = std::make_shared<State>();
  state_->rotated = rotated;
  state_->theta = theta;
  state_->attention_factor = attention_factor_of(scaling);
  state_->usual.frequencies = frequencies_of(rotated, theta, scaling, 0);
  state_->scaling = std::move(scaling);
}

int64_t RotaryTable::rotated() const { return state_->rotated; }
double RotaryTable::attention_factor() const { return state_->attention_factor; }
bool RotaryTable::depends_on_length() const { return state_->depends(); }

bool RotaryTable::turns_alike(int64_t length, int64_t other) const {
  if (length == other || !state_->depends()) return true;
  const int64_t original = state_->scaling.original_positions;
  const bool both_beyond = length > original && other > original;
  return both_beyond ? state_->scaling.kind == Reach::LongRope : length <= original && other <= original;
}

at::Tensor RotaryTable::frequencies(at::Device device, int64_t length) const {
  const std::lock_guard lock(state_->mutex);
  return state_->of(length).on(device);
}

RotaryTable::Turns RotaryTable::turns(int64_t first, int64_t behind, at::ScalarType dtype, int64_t length) const {
  const std::lock_guard lock(state_->mutex);
  AngleTable& angles = state_->of(length);
  if (!angles.has(first, behind)) {
    // With Dynamic each token of a decoding has its own frequencies, so other positions will not be requested for them.
    const bool is_once = &angles == &state_->beyond && state_->scaling.kind == Reach::Dynamic;
    const int64_t known = angles.wide.defined() ? angles.wide.size(0) : 0;
    angles.fill(is_once ? first : 0, is_once ? behind : std::max<int64_t>({behind, 2 * known, 64}),
                state_->attention_factor);
  }
  return {dtype == at::kDouble ? angles.wide : angles.narrow, angles.first};
}

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
  if (tensor::OperatorRecorder* recorder = tensor::operator_recorder()) {
    // A table may follow the largest position of all.
    const char* dims = table.depends_on_length() && length == 0 ? "BSnD,BS->BSnD" : "bsnD,bs->bsnD";
    return recorder->record(
        {"rotary", dims, {x, positions}, [=](const auto& in) { return rotary(in[0], in[1], table, length); }});
  }
  if (!is_turned_by_us(x)) return rotary_reference(x, positions, table, length);
  return turned(x, angles_for(x, positions, table, length));
}

std::pair<at::Tensor, at::Tensor> rotary(const at::Tensor& q, const at::Tensor& k, const at::Tensor& positions,
                                         const RotaryTable& table, int64_t length) {
  check(q, positions, table);
  check(k, positions, table);
  if (tensor::operator_recorder()) return {rotary(q, positions, table, length), rotary(k, positions, table, length)};
  if (!is_turned_by_us(q))
    return {rotary_reference(q, positions, table, length), rotary_reference(k, positions, table, length)};
  const Angles angles = angles_for(q, positions, table, length);
  return {turned(q, angles), turned(k, angles)};
}

at::Tensor rotary(const at::Tensor& x, const at::Tensor& positions, const std::vector<RotaryTable>& axes) {
  std::vector<int64_t> features;
  for (const RotaryTable& axis : axes) features.push_back(axis.rotated());
  const auto count = static_cast<int64_t>(axes.size());
  require(positions.dim() == 3 && positions.size(2) == count, "rotary", "positions must be [B,S,", count,
          "], one of each axis: got ", positions.sizes());
  require(std::accumulate(features.begin(), features.end(), int64_t{0}) == x.size(-1), "rotary",
          "the features of all axes must be those of a head, ", x.size(-1), ": got ", at::IntArrayRef(features));
  std::vector<at::Tensor> runs = x.split_with_sizes(features, -1);
  for (int64_t i = 0; i < count; ++i) runs[i] = rotary(runs[i], positions.select(2, i), axes[i]);
  return at::cat(runs, -1);
}

}  // namespace colossal::ops
