// Convolutions of clips in channels-last layout that are causal in time: a frame of the result reads the same frame of
// the input and earlier ones, never a later one.
//
//   const at::Tensor y = ops::causal_convolution(x, weight, bias, {});   // x [B, T, h, w, in] -> [B, T, h, w, out]
//   const at::Tensor half = ops::causal_convolution(x, weight, bias, {.frame_stride = 2, .front = 1});
//
//   // In chunks of time, whose results are those of the whole: the last frames stand before the next ones.
//   const at::Tensor next = ops::causal_convolution(later, weight, bias, {}, x.narrow(1, x.size(1) - 2, 2));
#pragma once
#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>

namespace colossal::ops {

/// How a causal kernel [frames, rows, columns] passes over a clip. Beside each frame are half as many rows and columns
/// as the kernel has, on both sides.
struct CausalWindow {
  int64_t frame_stride = 1;  ///< step in time
  int64_t stride = 1;        ///< step in rows and columns
  int64_t front = -1;        ///< frames before the first one; -1 = one less than the kernel has. None are behind
  bool replicates = false;   ///< true = what surrounds the clip repeats its edges; false = zeros
};

/// Computes y[b, t, i, j] = sum over the kernel of x[b, frame_stride t + f - front, stride i + k - rows / 2,
/// stride j + l - columns / 2] W[:, :, f, k, l]t, plus the bias.
///
/// Shapes:   x [B, T, h, w, in], weight [out, in, frames, rows, columns], bias [out] or undefined -> [B, T', h', w',
///           out]. `before` [B, n, h, w, in]: the frames before x, in place of `front`; undefined = the clip begins.
/// Gradient: of x, before, weight and bias. Saved for backward: the weight, and x with its surroundings if the weight
///           trains.
/// Devices:  LibTorch's convolution, on meta sizes alone. Forward and each gradient are announced as one product
///           (tensor/flops.h), whose factor has the inputs of all taps.
/// Copies:   x with what surrounds it, except for a kernel of one frame whose surroundings are zeros.
/// Errors ("convolution"): sizes that do not fit; an even number of rows or columns of the kernel; fewer frames than
///                         the kernel has.
at::Tensor causal_convolution(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                              const CausalWindow& window, const at::Tensor& before = {});

/// Returns the sizes of the result for x of these sizes, with `front` frames before it. Errors ("convolution"): as
/// above.
std::array<int64_t, 5> causal_sizes(at::IntArrayRef x, at::IntArrayRef weight, const CausalWindow& window,
                                    int64_t front);

}  // namespace colossal::ops
