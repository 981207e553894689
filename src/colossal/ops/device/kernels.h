// Kernels of accelerators, compiled from the same bodies as the CPU kernels (ops/lanes.h): one table per element type.
// Each entry enqueues a kernel over all rows or elements on a stream of the device and returns at once. Pointers are
// device pointers. No torch here, because nvcc compiles this with kernels_cuda.cu. tables.h says which device has which
// table.
//
// To add a kernel, write its body, a member here, and the lines of table.h that distribute it over blocks.
#pragma once
#include "colossal/ops/kernels.h"

namespace colossal::ops {

/// T: double, float, Bf16 or Half. An entry is null if there is no kernel for that type.
template <class T>
struct DeviceKernels {
  using W = WideOf<T>;
  void (*swiglu_forward)(const GatedRows<const T>&, T* y, int64_t rows, void* stream);
  void (*swiglu_backward)(const T* dy, const GatedRows<const T>&, const GatedRows<T>& out, int64_t rows, void* stream);
  void (*geglu_forward)(const GatedRows<const T>&, T* y, int64_t rows, void* stream);
  void (*geglu_backward)(const T* dy, const GatedRows<const T>&, const GatedRows<T>& out, int64_t rows, void* stream);
  void (*sigmoid_gate_forward)(const GatedRows<const T>&, T* y, int64_t rows, void* stream);
  void (*sigmoid_gate_backward)(const T* dy, const GatedRows<const T>&, const GatedRows<T>& out, int64_t rows,
                                void* stream);
  /// Rotates all heads of a row; angles are computed from the frequencies.
  void (*rotary)(const RotaryRows<T>&, int64_t rows, void* stream);
  void (*dropout)(const DroppedRows<T>&, int64_t rows, void* stream);
  /// Softmax kernels, for double and float only, as on the CPU.
  void (*softmax_largest)(const SoftmaxRows<T>&, int64_t rows, void* stream);
  void (*softmax_exponentials)(const SoftmaxRows<T>&, int64_t rows, void* stream);
  void (*softmax_gradient)(const SoftmaxRows<T>&, int64_t rows, void* stream);
  void (*softmax)(const SoftmaxRows<T>&, bool gradient, int64_t rows, void* stream);
  /// Score kernels, for double and float only, as on the CPU.
  void (*score_statistics)(const ScoreRows<T>&, int64_t rows, void* stream);
  void (*score_gradient)(const ScoreRows<T>&, int64_t rows, void* stream);
  /// Steps of n elements, see ops/updates/update.h; not for fp16.
  void (*sgd)(const UpdateBuffers<T>&, const SgdFactors<W>&, int64_t n, void* stream);
  void (*adam)(const UpdateBuffers<T>&, const AdamFactors<W>&, int64_t n, void* stream);
  void (*lion)(const UpdateBuffers<T>&, const LionFactors<W>&, int64_t n, void* stream);
  void (*average)(const UpdateBuffers<T>&, W mix, int64_t n, void* stream);
  /// Adam's step on 8-bit moments, for float and Bf16 only, computed in fp32; see ops/updates/adam_8bit.h.
  void (*adam_8bit)(const UpdateBuffers<T>&, const AdamFactors<float>&, const CodedNumbers& first,
                    const CodedNumbers& second, int64_t n, void* stream);
  /// Kernels of blocks of 8-bit values, for float only; see ops/updates/block_codes.h.
  void (*encode_blocks)(const float* values, const CodedNumbers&, int64_t n, void* stream);
  void (*decode_blocks)(const CodedNumbers&, float* values, int64_t n, void* stream);
};

struct DeviceTables {
  /// Returns true if the current device can run the kernels: a GPU may be older than those that they were compiled for.
  bool (*does_current_run)();
  DeviceKernels<double> of_double;
  DeviceKernels<float> of_float;
  DeviceKernels<Bf16> of_bf16;
  DeviceKernels<Half> of_half;
};

/// Returns the tables of CUDA. The function exists if nvcc was found and LibTorch has CUDA.
const DeviceTables& cuda_tables();

/// Throws colossal::Error with the reason that a device's runtime reports after a launch. An earlier launch may have
/// caused it.
[[noreturn]] void refuse_launch(const char* reason);

}  // namespace colossal::ops
