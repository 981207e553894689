// Frequencies of rotary positions, and the tables made of them. Formulas: transformers' modeling_rope_utils.py.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <mutex>

#include "colossal/base/error.h"
#include "colossal/ops/rotary.h"

namespace colossal::ops {
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

}  // namespace colossal::ops
