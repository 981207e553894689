#include "colossal/ops/device/operators.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <c10/core/DeviceGuard.h>

#include <array>
#include <atomic>
#include <map>
#include <mutex>

#include "colossal/tensor/device_meant.h"

namespace colossal::ops {
namespace {

constexpr size_t kDeviceOperators = 4;

void try_flash_attention(const at::TensorOptions& there) {
  const at::Tensor x = at::zeros({1, 1, 1, 8}, there.dtype(at::kBFloat16));
  at::_flash_attention_forward(x, x, x, {}, {}, 1, 1, /*dropout_p=*/0, /*is_causal=*/false,
                               /*return_debug_mask=*/false);
}

// Tries the two kinds of products in training: values (e4m3) times values, and a gradient (e5m2) times values.
void try_scaled_product(const at::TensorOptions& there) {
  const at::Tensor one = at::ones({}, there.dtype(at::kFloat)), values = at::zeros({16, 16}, there.dtype(at::kByte));
  const at::Tensor second = values.view(at::kFloat8_e4m3fn).t();
  for (const at::ScalarType first : {at::kFloat8_e4m3fn, at::kFloat8_e5m2})
    at::_scaled_mm(values.view(first), second, one, one, {}, {}, at::kBFloat16);
}

void try_int4_product(const at::TensorOptions& there) {
  const at::Tensor packed = at::_convert_weight_to_int4pack(at::zeros({8, 16}, there.dtype(at::kByte)), 2);
  const at::TensorOptions narrow = there.dtype(at::kBFloat16);
  at::_weight_int4pack_mm(at::zeros({1, 32}, narrow), packed, 32, at::zeros({1, 8, 2}, narrow));
}

// Tries the layouts of a forward pass and of a weight gradient.
void try_grouped_product(const at::TensorOptions& there) {
  const at::Tensor x = at::zeros({16, 16}, there.dtype(at::kBFloat16)), stack = at::zeros({1, 16, 16}, x.options());
  const at::Tensor ends = at::full({1}, 16, there.dtype(at::kInt));
  at::_grouped_mm(x, stack.transpose(1, 2), ends);
  at::_grouped_mm(x.t(), x, ends);
}

void try_operator(DeviceOperator op, const at::TensorOptions& there) {
  switch (op) {
    case DeviceOperator::FlashAttention:
      return try_flash_attention(there);
    case DeviceOperator::ScaledProduct:
      return try_scaled_product(there);
    case DeviceOperator::Int4Product:
      return try_int4_product(there);
    case DeviceOperator::GroupedProduct:
      return try_grouped_product(there);
  }
}

bool does_run(DeviceOperator op, c10::Device device) {
  const at::NoGradGuard no_grad;
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  // Hides the trial from observers (at::RecordFunction), because it is not part of what the program computes.
  const at::DisableRecordFunctionGuard unseen;
  const c10::DeviceGuard guard(device);
  const auto there = at::TensorOptions(device);
  try {
    try_operator(op, there);
    return true;
  } catch (const c10::OutOfMemoryError&) {
    throw;
  } catch (const c10::Error&) {  // the GPU is too old, or LibTorch was built without it
    return false;
  }
}

std::atomic<int>& refusals(DeviceOperator op) {
  static std::array<std::atomic<int>, kDeviceOperators> all{};
  return all[static_cast<size_t>(op)];
}

/// A variable of the thread, as the device that meta stands for.
int& refusals_on_meta(DeviceOperator op) {
  thread_local std::array<int, kDeviceOperators> all{};
  return all[static_cast<size_t>(op)];
}

}  // namespace

bool runs(DeviceOperator op, c10::Device device) {
  if (refusals(op) > 0) return false;
  if (device.is_meta()) return tensor::is_for_accelerator(device) && refusals_on_meta(op) == 0;
  if (!tensor::is_accelerator(device)) return false;
  static std::mutex mutex;
  static std::map<std::pair<DeviceOperator, std::pair<c10::DeviceType, c10::DeviceIndex>>, bool> known;
  const std::lock_guard lock(mutex);
  const auto key = std::pair(op, std::pair(device.type(), device.index()));
  if (const auto found = known.find(key); found != known.end()) return found->second;
  return known[key] = does_run(op, device);
}

WithoutDeviceOperator::WithoutDeviceOperator(DeviceOperator op) : op_(op) { ++refusals(op); }

WithoutDeviceOperator::~WithoutDeviceOperator() { --refusals(op_); }

MeantWithoutOperator::MeantWithoutOperator(DeviceOperator op) : op_(op) { ++refusals_on_meta(op); }

MeantWithoutOperator::~MeantWithoutOperator() { --refusals_on_meta(op_); }

}  // namespace colossal::ops
