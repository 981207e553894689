// Tensors whose values tell which rank they come from, and small enough that sums are exact in every dtype.
#pragma once
#include <ATen/ATen.h>

namespace colossal::test {

/// Element i of rank r: (7 r + i) mod 5 + 1, or its parity for bool. A sum over 8 ranks is at most 40: exact in bf16
/// and fp16.
at::Tensor rank_values(int rank, int64_t numel, at::ScalarType dtype);

/// Bitwise equality of dtype, sizes and contents.
bool same_bits(const at::Tensor& a, const at::Tensor& b);

/// The message of the exception that `fn` throws; empty when it throws none.
template <class Fn>
std::string thrown_message(const Fn& fn) {
  try {
    fn();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

}  // namespace colossal::test
