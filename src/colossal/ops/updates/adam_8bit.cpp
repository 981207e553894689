#include "colossal/ops/updates/adam_8bit.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <bit>

#include "colossal/base/error.h"
#include "colossal/ops/device/tables.h"
#include "colossal/ops/dispatch.h"
#include "colossal/ops/parallel.h"
#include "colossal/ops/updates/adam_factors.h"
#include "colossal/tensor/moved_bytes.h"

namespace colossal::ops {
namespace {

constexpr int64_t kAdamBlocksGrain = 64;  // blocks

void check(const FlatUpdate& u, const CodedState& m, const CodedState& v, const AdamStep& step) {
  const auto type = u.values.scalar_type(), gradient = u.gradients.scalar_type();
  const int64_t n = u.values.numel();
  const at::Device device = u.values.device();
  const auto fits = [&](const at::Tensor& t) {
    return t.device() == device && t.dim() == 1 && t.is_contiguous() && t.numel() == n;
  };
  require(fits(u.values) && fits(u.gradients) && (!u.copy.defined() || fits(u.copy)) && fits(m.codes) && fits(v.codes),
          "adam_8bit", "buffers must be contiguous, 1-D, of equal length and on one device: got values ",
          u.values.sizes(), ", gradients ", u.gradients.sizes(), ", codes ", m.codes.sizes(), " and ", v.codes.sizes());
  require(has_block_codes(device), "adam_8bit", "there are no kernels for ", device);
  require(gradient == type || (narrow_type(u.gradients) != Narrow::None && type == at::kFloat), "adam_8bit",
          "gradients must have the dtype of the values, or be bf16 or fp16 with fp32 values: got ", gradient, " and ",
          type);
  require(!u.copy.defined() || (narrow_type(u.copy) != Narrow::None && type == at::kFloat), "adam_8bit",
          "a rounded copy needs fp32 values: got ", type);
  require(!u.chance, "adam_8bit", "does not support stochastic rounding");
  require(step.step >= 1, "adam_8bit", "step must be at least 1: got ", step.step);
}

at::Tensor decoded(const CodedState& state, Codes kind) {
  at::Tensor values = at::empty({state.codes.numel()}, state.scales.options());
  decode_blocks(state.codes, state.scales, kind, values);
  return values;
}

void widen(const Bf16* from, int64_t count, float* to) {
  for (int64_t i = 0; i < count; ++i) to[i] = std::bit_cast<float>(static_cast<uint32_t>(from[i].bits) << 16);
}

void step_on_cpu(const FlatUpdate& u, const CodedState& exp_avg, const CodedState& exp_avg_sq, const AdamStep& step) {
  const bool is_narrow = u.values.scalar_type() == at::kBFloat16;
  UpdateBuffers<float> whole{};
  whole.gradient_type = narrow_type(u.gradients);
  whole.copy_type = is_narrow ? Narrow::Bf16 : narrow_type(u.copy);
  whole.gradient_scale = static_cast<float>(u.gradient_scale);
  // The kernel steps widened copies of bf16 values, and its rounded copy goes to `values` itself.
  const at::Tensor copy = is_narrow ? u.values : u.copy;
  const auto factors = adam_factors<float>(step);
  const auto at_element = [](const at::Tensor& t, int64_t i) {
    return static_cast<char*>(t.mutable_data_ptr()) + i * t.element_size();
  };
  const int64_t n = u.values.numel();
  const BlockCoder first(Codes::Signed), second(Codes::Positive);
  const auto kernel = kernels<float>().adam;
  parallel_for(0, exp_avg.scales.numel(), kAdamBlocksGrain, [&](int64_t from, int64_t to) {
    float m[kCodeBlock], v[kCodeBlock], values[kCodeBlock];
    for (int64_t block = from; block < to; ++block) {
      const int64_t i = block * kCodeBlock, count = std::min(kCodeBlock, n - i);
      uint8_t *m_codes = pointer<uint8_t>(exp_avg.codes) + i, *v_codes = pointer<uint8_t>(exp_avg_sq.codes) + i;
      float *m_scale = pointer<float>(exp_avg.scales) + block, *v_scale = pointer<float>(exp_avg_sq.scales) + block;
      first.decode(m_codes, *m_scale, count, m);
      second.decode(v_codes, *v_scale, count, v);
      if (is_narrow) widen(pointer<Bf16>(u.values) + i, count, values);
      UpdateBuffers<float> part = whole;
      part.values = part.out = is_narrow ? values : pointer<float>(u.values) + i;
      part.states[0] = m;
      part.states[1] = v;
      part.gradients = at_element(u.gradients, i);
      if (copy.defined()) part.copy = at_element(copy, i);
      kernel(part, factors, count);
      first.encode(m, count, m_codes, m_scale);
      second.encode(v, count, v_codes, v_scale);
    }
  });
}

/// Returns false if the device has no kernels of ours; this includes the CPU.
bool step_on_device(const FlatUpdate& u, const CodedState& exp_avg, const CodedState& exp_avg_sq,
                    const AdamStep& step) {
  return with_device_kernels(u.values, [&](auto element, const auto& kernel, void* stream) {
    using T = decltype(element);
    UpdateBuffers<T> buffers{};
    buffers.values = buffers.out = pointer<T>(u.values);
    buffers.gradients = u.gradients.const_data_ptr();
    buffers.gradient_type = std::is_same_v<T, float> ? narrow_type(u.gradients) : Narrow::None;
    if (u.copy.defined()) buffers.copy = u.copy.mutable_data_ptr();
    buffers.copy_type = narrow_type(u.copy);
    buffers.gradient_scale = static_cast<WideOf<T>>(u.gradient_scale);
    kernel.adam_8bit(buffers, adam_factors<float>(step), coded_numbers(exp_avg.codes, exp_avg.scales, Codes::Signed),
                     coded_numbers(exp_avg_sq.codes, exp_avg_sq.scales, Codes::Positive), u.values.numel(), stream);
  });
}

}  // namespace

CodedState::CodedState(int64_t n, Codes kind, at::Device device)
    : codes(at::empty({n}, at::TensorOptions(device).dtype(at::kByte))),
      scales(at::empty({(n + kCodeBlock - 1) / kCodeBlock}, at::TensorOptions(device).dtype(at::kFloat))) {
  encode_blocks(at::zeros({n}, scales.options()), kind, codes, scales);
}

void adam_8bit_reference_(const FlatUpdate& u, const CodedState& exp_avg, const CodedState& exp_avg_sq,
                          const AdamStep& step) {
  check(u, exp_avg, exp_avg_sq, step);
  const bool is_narrow = narrow_type(u.values) != Narrow::None;
  const at::Tensor values = is_narrow ? u.values.to(at::kFloat) : u.values,
                   gradients = is_narrow ? u.gradients.to(at::kFloat) : u.gradients;
  const at::Tensor m = decoded(exp_avg, Codes::Signed).to(values.scalar_type()),
                   v = decoded(exp_avg_sq, Codes::Positive).to(values.scalar_type());
  adam_reference_({values, gradients, is_narrow ? u.values : u.copy, u.gradient_scale}, m, v, step);
  encode_blocks(m.to(at::kFloat), Codes::Signed, exp_avg.codes, exp_avg.scales);
  encode_blocks(v.to(at::kFloat), Codes::Positive, exp_avg_sq.codes, exp_avg_sq.scales);
}

void adam_8bit_(const FlatUpdate& u, const CodedState& exp_avg, const CodedState& exp_avg_sq, const AdamStep& step) {
  check(u, exp_avg, exp_avg_sq, step);
  const tensor::KernelBytes bytes({u.values, u.gradients, exp_avg.codes, exp_avg_sq.codes},
                                  {u.values, u.copy, exp_avg.codes, exp_avg_sq.codes});
  if (u.values.is_meta()) return;
  const auto type = u.values.scalar_type();
  if (type != at::kFloat && type != at::kBFloat16) return adam_8bit_reference_(u, exp_avg, exp_avg_sq, step);
  if (!step_on_device(u, exp_avg, exp_avg_sq, step)) step_on_cpu(u, exp_avg, exp_avg_sq, step);
  u.values.unsafeGetTensorImpl()->bump_version();
  if (u.copy.defined()) u.copy.unsafeGetTensorImpl()->bump_version();
}

}  // namespace colossal::ops
