// Distribution of kernel bodies over blocks of threads, and the tables of the resulting kernels. kernels_cuda.cu
// includes it last, and so does tests/support, which runs the kernels without a GPU. The includer defines COLOSSAL_SIMT
// and declares, before:
//
//   template <class Body, class... Arguments>
//   void launch(const Blocks& blocks, Body body, const Arguments&... arguments);  // body(block, arguments...) in each
//
// A body gets everything except its block number as arguments.
#pragma once
#include "colossal/ops/activation_kernel.h"
#include "colossal/ops/device/kernels.h"
#include "colossal/ops/dropout_kernel.h"
#include "colossal/ops/score_kernel.h"
#include "colossal/ops/softmax_kernel.h"
#include "colossal/ops/updates/adam_8bit_kernel.h"
#include "colossal/ops/updates/update_kernel.h"

namespace colossal::ops {
namespace {

constexpr int64_t kBlockElements = 4096;  // elements per block: a few vectors for each of its threads

COLOSSAL_DEVICE inline int64_t lesser(int64_t a, int64_t b) { return a < b ? a : b; }
inline Blocks blocks_of(void* stream, int64_t items, int64_t by_block) {
  return {stream, (items + by_block - 1) / by_block};
}
inline int64_t rows_of_block(int64_t columns) { return columns < kBlockElements ? kBlockElements / columns : 1; }

template <class Gate, class T>
void launch_gated_forward(const GatedRows<const T>& in, T* y, int64_t rows, void* stream) {
  const int64_t take = rows_of_block(in.columns);
  launch(
      blocks_of(stream, rows, take),
      [] COLOSSAL_DEVICE(int64_t block, const GatedRows<const T>& x, T* out, int64_t by_block, int64_t all) {
        gated_forward<Gate>(x, out, block * by_block, lesser((block + 1) * by_block, all));
      },
      in, y, take, rows);
}

template <class Gate, class T>
void launch_gated_backward(const T* dy, const GatedRows<const T>& in, const GatedRows<T>& out, int64_t rows,
                           void* stream) {
  const int64_t take = rows_of_block(in.columns);
  launch(
      blocks_of(stream, rows, take),
      [] COLOSSAL_DEVICE(int64_t block, const T* gradient, const GatedRows<const T>& x, const GatedRows<T>& dx,
                         int64_t by_block, int64_t all) {
        gated_backward<Gate>(gradient, x, dx, block * by_block, lesser((block + 1) * by_block, all));
      },
      dy, in, out, take, rows);
}

template <class T>
void launch_rotary(const RotaryRows<T>& a, int64_t rows, void* stream) {
  const int64_t groups = rows * ((a.heads + kTurnedHeads - 1) / kTurnedHeads);
  const int64_t take = rows_of_block(2 * a.rotated);  // a vector of angles for each thread
  launch(
      blocks_of(stream, groups, take),
      [] COLOSSAL_DEVICE(int64_t block, const RotaryRows<T>& x, int64_t by_block, int64_t all) {
        rotary_by_frequencies(x, block * by_block, lesser((block + 1) * by_block, all));
      },
      a, take, groups);
}

template <class T>
void launch_dropout(const DroppedRows<T>& a, int64_t rows, void* stream) {
  const int64_t take = rows_of_block(a.columns);
  launch(
      blocks_of(stream, rows, take),
      [] COLOSSAL_DEVICE(int64_t block, const DroppedRows<T>& x, int64_t by_block, int64_t all) {
        drop_rows(x, block * by_block, lesser((block + 1) * by_block, all));
      },
      a, take, rows);
}

// One block computes the softmax of one row; its threads compute the row's sums together.
template <class T>
void launch_softmax_largest(const SoftmaxRows<T>& a, int64_t rows, void* stream) {
  launch(
      Blocks{stream, rows},
      [] COLOSSAL_DEVICE(int64_t row, const SoftmaxRows<T>& x) { softmax_largest(x, row, row + 1); }, a);
}
template <class T>
void launch_softmax_exponentials(const SoftmaxRows<T>& a, int64_t rows, void* stream) {
  launch(
      Blocks{stream, rows},
      [] COLOSSAL_DEVICE(int64_t row, const SoftmaxRows<T>& x) { softmax_exponentials(x, row, row + 1); }, a);
}
template <class T>
void launch_softmax_gradient(const SoftmaxRows<T>& a, int64_t rows, void* stream) {
  launch(
      Blocks{stream, rows},
      [] COLOSSAL_DEVICE(int64_t row, const SoftmaxRows<T>& x) { softmax_gradient(x, row, row + 1); }, a);
}
template <class T>
void launch_softmax(const SoftmaxRows<T>& a, bool gradient, int64_t rows, void* stream) {
  launch(
      Blocks{stream, rows},
      [] COLOSSAL_DEVICE(int64_t row, const SoftmaxRows<T>& x, bool wanted) { softmax(x, wanted, row, row + 1); }, a,
      gradient);
}

template <class T>
void launch_score_statistics(const ScoreRows<T>& a, int64_t rows, void* stream) {
  launch(
      Blocks{stream, rows},
      [] COLOSSAL_DEVICE(int64_t row, const ScoreRows<T>& x) { score_statistics(x, row, row + 1); }, a);
}
template <class T>
void launch_score_gradient(const ScoreRows<T>& a, int64_t rows, void* stream) {
  launch(
      Blocks{stream, rows}, [] COLOSSAL_DEVICE(int64_t row, const ScoreRows<T>& x) { score_gradient(x, row, row + 1); },
      a);
}

/// Launches an update rule: step(buffers, factors, n) on the elements of each block.
template <class T, class Factors, class Step>
void launch_update(const UpdateBuffers<T>& u, const Factors& factors, int64_t n, void* stream, Step step) {
  launch(
      blocks_of(stream, n, kBlockElements),
      [] COLOSSAL_DEVICE(int64_t block, const UpdateBuffers<T>& all, const Factors& f, int64_t size, Step rule) {
        const int64_t from = block * kBlockElements;
        rule(part_of(all, from), f, lesser(kBlockElements, size - from));
      },
      u, factors, n, step);
}

template <class T>
void launch_sgd(const UpdateBuffers<T>& u, const SgdFactors<WideOf<T>>& f, int64_t n, void* stream) {
  using W = WideOf<T>;
  launch_update(u, f, n, stream,
                [] COLOSSAL_DEVICE(const UpdateBuffers<T>& part, const SgdFactors<W>& g, int64_t size) {
                  sgd_step(part, g, size);
                });
}
template <class T>
void launch_adam(const UpdateBuffers<T>& u, const AdamFactors<WideOf<T>>& f, int64_t n, void* stream) {
  using W = WideOf<T>;
  launch_update(u, f, n, stream,
                [] COLOSSAL_DEVICE(const UpdateBuffers<T>& part, const AdamFactors<W>& g, int64_t size) {
                  adam_step(part, g, size);
                });
}
template <class T>
void launch_lion(const UpdateBuffers<T>& u, const LionFactors<WideOf<T>>& f, int64_t n, void* stream) {
  using W = WideOf<T>;
  launch_update(u, f, n, stream,
                [] COLOSSAL_DEVICE(const UpdateBuffers<T>& part, const LionFactors<W>& g, int64_t size) {
                  lion_step(part, g, size);
                });
}
template <class T>
void launch_average(const UpdateBuffers<T>& u, WideOf<T> mix, int64_t n, void* stream) {
  using W = WideOf<T>;
  launch_update(u, mix, n, stream, [] COLOSSAL_DEVICE(const UpdateBuffers<T>& part, const W& m, int64_t size) {
    average_step(part, m, size);
  });
}

inline Blocks blocks_of_codes(void* stream, int64_t n) {
  return {stream, (n + kCodeBlock - 1) / kCodeBlock, kCodeThreads};
}

template <class T>
void launch_adam_8bit(const UpdateBuffers<T>& u, const AdamFactors<float>& factors, const CodedNumbers& first,
                      const CodedNumbers& second, int64_t n, void* stream) {
  launch(
      blocks_of_codes(stream, n),
      [] COLOSSAL_DEVICE(int64_t block, const UpdateBuffers<T>& all, const AdamFactors<float>& f, const CodedNumbers& m,
                         const CodedNumbers& v, int64_t size) { adam_8bit(all, f, m, v, size, block); },
      u, factors, first, second, n);
}
inline void launch_encode_blocks(const float* values, const CodedNumbers& coded, int64_t n, void* stream) {
  launch(
      blocks_of_codes(stream, n),
      [] COLOSSAL_DEVICE(int64_t block, const float* from, const CodedNumbers& to, int64_t size) {
        encode_numbers(from, to, size, block);
      },
      values, coded, n);
}
inline void launch_decode_blocks(const CodedNumbers& coded, float* values, int64_t n, void* stream) {
  launch(
      blocks_of_codes(stream, n),
      [] COLOSSAL_DEVICE(int64_t block, const CodedNumbers& from, float* to, int64_t size) {
        decode_numbers(from, to, size, block);
      },
      coded, values, n);
}

template <class T>
DeviceKernels<T> device_kernels() {
  DeviceKernels<T> table{};
  table.swiglu_forward = launch_gated_forward<SiluGate, T>;
  table.swiglu_backward = launch_gated_backward<SiluGate, T>;
  table.geglu_forward = launch_gated_forward<GeluGate, T>;
  table.geglu_backward = launch_gated_backward<GeluGate, T>;
  table.sigmoid_gate_forward = launch_gated_forward<SigmoidGate, T>;
  table.sigmoid_gate_backward = launch_gated_backward<SigmoidGate, T>;
  table.rotary = launch_rotary<T>;
  table.dropout = launch_dropout<T>;
  if constexpr (std::is_same_v<T, WideOf<T>>) {
    table.softmax_largest = launch_softmax_largest<T>;
    table.softmax_exponentials = launch_softmax_exponentials<T>;
    table.softmax_gradient = launch_softmax_gradient<T>;
    table.softmax = launch_softmax<T>;
    table.score_statistics = launch_score_statistics<T>;
    table.score_gradient = launch_score_gradient<T>;
  }
  if constexpr (!std::is_same_v<T, Half>) {
    table.sgd = launch_sgd<T>;
    table.adam = launch_adam<T>;
    table.lion = launch_lion<T>;
    table.average = launch_average<T>;
  }
  if constexpr (std::is_same_v<T, float> || std::is_same_v<T, Bf16>) table.adam_8bit = launch_adam_8bit<T>;
  if constexpr (std::is_same_v<T, float>) {
    table.encode_blocks = launch_encode_blocks;
    table.decode_blocks = launch_decode_blocks;
  }
  return table;
}

DeviceTables device_tables_of_unit(bool (*does_current_run)()) {
  return {does_current_run, device_kernels<double>(), device_kernels<float>(), device_kernels<Bf16>(),
          device_kernels<Half>()};
}

}  // namespace
}  // namespace colossal::ops
