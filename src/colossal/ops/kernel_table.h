// Definition of a translation unit's kernel tables; included last by kernels_cpu.cpp, kernels_avx2.cpp and
// kernels_avx512.cpp. COLOSSAL_KERNELS names the function that returns the tables of the unit's instruction set.
#include "colossal/ops/activation_kernel.h"
#include "colossal/ops/attention/attention_kernel.h"
#include "colossal/ops/attention/paged_kernel.h"
#include "colossal/ops/norm_kernel.h"
#include "colossal/ops/products/block_kernel.h"
#include "colossal/ops/products/nf4_kernel.h"
#include "colossal/ops/random_kernel.h"
#include "colossal/ops/rows_kernel.h"
#include "colossal/ops/score_kernel.h"
#include "colossal/ops/softmax_kernel.h"
#include "colossal/ops/triangle_kernel.h"
#include "colossal/ops/updates/codes_kernel.h"
#include "colossal/ops/updates/factored_kernel.h"
#include "colossal/ops/updates/update_kernel.h"

namespace colossal::ops {
namespace {

/// Adds the softmax and score kernels, which exist for float and double only.
template <class T>
constexpr Kernels<T> with_softmax(Kernels<T> table) {
  if constexpr (!std::is_same_v<T, Bf16>) {
    table.softmax_largest = softmax_largest<T>;
    table.softmax_exponentials = softmax_exponentials<T>;
    table.softmax_gradient = softmax_gradient<T>;
    table.softmax = softmax<T>;
    table.score_statistics = score_statistics<T>;
    table.score_gradient = score_gradient<T>;
  }
  return table;
}

template <class T>
constexpr Kernels<T> kTable = with_softmax<T>({
    .norm_forward = norm_forward<T>,
    .norm_backward = norm_backward<T>,
    .gelu_forward = gelu_forward<T>,
    .gelu_backward = gelu_backward<T>,
    .swiglu_forward = gated_forward<SiluGate, T>,
    .swiglu_backward = gated_backward<SiluGate, T>,
    .geglu_forward = gated_forward<GeluGate, T>,
    .geglu_backward = gated_backward<GeluGate, T>,
    .rotary = rotary_rows<T>,
    .column_sums = column_sums<T>,
    .sum_of_squares = sum_of_squares<T>,
    .sum_of_squares_half = sum_of_squares<Half>,
    .sgd = sgd_step<T>,
    .adam = adam_step<T>,
    .lion = lion_step<T>,
    .random_words = draw_words,
    .attention_scratch = attention_scratch<T>,
    .attention_forward = attention_forward<T>,
    .attention_backward = attention_backward<T>,
    .paged_attention = paged_attention<T>,
    .paged_scratch = paged_scratch<T>,
    .paged_part = paged_part<T>,
    .paged_merge = paged_merge<T>,
    .paged_state = paged_state<T>,
    .average = average_step<T>,
    .square_sums = square_sums<T>,
    .square_sums_half = square_sums<Half>,
    .scale_matrix = scale_matrix<T>,
    .encode_block = encode_block,
    .decode_block = decode_block,
    .multiply_block = multiply_block<T>,
    .dot_products = dot_products<T>,
    .decode_nf4 = decode_nf4<T>,
    .encode_nf4 = encode_nf4,
    .centred_sums = centred_sums<T>,
    .centred_affine = centred_affine<T>,
    .sigmoid_gate_forward = gated_forward<SigmoidGate, T>,
    .sigmoid_gate_backward = gated_backward<SigmoidGate, T>,
    .multiply_channels = multiply_channels<T>,
    .channel_parts = channel_parts<T>,
    .channel_scratch = channel_scratch<T>,
});

}  // namespace

template <>
const Kernels<double>& COLOSSAL_KERNELS<double>() {
  return kTable<double>;
}
template <>
const Kernels<float>& COLOSSAL_KERNELS<float>() {
  return kTable<float>;
}
template <>
const Kernels<Bf16>& COLOSSAL_KERNELS<Bf16>() {
  return kTable<Bf16>;
}

}  // namespace colossal::ops
