// Rotary position embedding in the rotate-half form of LLaMA: element i of a head is paired with element i + D/2.
#pragma once
#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <utility>

namespace colossal::ops {

/// LLaMA-3's stretch of the low frequencies. With wavelength w of a frequency f:
///   w < original / high_factor: f;   w > original / low_factor: f / factor;   between: linear blend in original / w.
struct RotaryScaling {
  double factor = 8, low_freq_factor = 1, high_freq_factor = 4;
  int64_t original_max_position = 8192;
};

/// Frequencies theta^(-2i/D) of a head, optionally scaled, and a table of cosines and sines that grows with the largest
/// position seen. Copies share the table. Thread safety: full.
class RotaryTable {
 public:
  /// Errors: throws unless head_size is even and positive and theta > 0 (and the scaling's numbers make sense).
  RotaryTable(int64_t head_size, double theta, std::optional<RotaryScaling> scaling = std::nullopt);

  int64_t head_size() const;
  /// fp64 [D/2] on `device`, where they stay: whoever asks again waits for no copy.
  at::Tensor frequencies(at::Device device = at::kCPU) const;
  /// Cosines and sines of positions [0, n), n >= positions: contiguous [n, 2, D/2] on the CPU, fp64 if `dtype` is, else
  /// fp32.
  at::Tensor cos_sin(int64_t positions, at::ScalarType dtype) const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

/// Turns every pair (x_i, x_{i+D/2}) of the head at position p by the angle p * frequency_i.
///
/// Shapes:   x [B,S,N,D] (any strides), positions int64 [B,S], not negative -> [B,S,N,D], contiguous.
/// Gradient: of x, the inverse turn; nothing but the positions is saved.
/// Errors:   throws if sizes do not fit or a position is negative (checked on CPU tensors).
/// Cost:     one pass. On an accelerator angles are made where they are needed, once for all heads, in fp64.
at::Tensor rotary(const at::Tensor& x, const at::Tensor& positions, const RotaryTable& table);

/// Both q [B,S,N,D] and k [B,S,Nkv,D].
std::pair<at::Tensor, at::Tensor> rotary(const at::Tensor& q, const at::Tensor& k, const at::Tensor& positions,
                                         const RotaryTable& table);

/// By ATen operators with ATen's autograd: the reference, and the path of accelerators without kernels of ours.
at::Tensor rotary_reference(const at::Tensor& x, const at::Tensor& positions, const RotaryTable& table);

}  // namespace colossal::ops
