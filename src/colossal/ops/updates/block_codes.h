// Values quantized to 8 bits: blocks of 256 with one scale each, and codes that are dense near zero.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "colossal/ops/kernels.h"

namespace colossal::ops {

/// Kind of the codes of a block of kCodeBlock values. Signed: 127 magnitudes of either sign, and 0. Positive: 255
/// magnitudes, and 0.
enum class Codes { Signed, Positive };

/// Returns the values of the codes in ascending order, in units of the block's largest magnitude. They span seven
/// decades down to 10^-7; each decade has half as many steps as the one above. 1 is among them, and -1. See: Dettmers
/// et al., arXiv:2110.02861 (there -1 is not).
const std::vector<float>& code_values(Codes kind);

/// Sets codes[i] to the code nearest to values[i] / scale, and scales[b] to the largest magnitude of block b. If two
/// codes are equally near, it picks the one nearer zero. Values must be finite. A block with other values gets
/// unspecified codes, and decodes to values that are not finite or wrong.
///
/// Shapes: values fp32 [n], codes uint8 [n], scales fp32 [ceil(n / 256)], contiguous, on one device of
///         has_block_codes().
/// Errors: throws on other shapes, dtypes and devices.
void encode_blocks(const at::Tensor& values, Codes kind, const at::Tensor& codes, const at::Tensor& scales);
/// Sets values to code times scale. Encoding them again gives the same codes and scales.
void decode_blocks(const at::Tensor& codes, const at::Tensor& scales, Codes kind, const at::Tensor& values);

/// Returns true for the CPU and for devices with kernels of ours (ops/device/tables.h); these give the same codes, bit
/// for bit. Returns true for the meta device too, where nothing is computed.
bool has_block_codes(at::Device device);

/// Returns the argument that device kernels take. It is valid as long as `codes` and `scales`. The first call per
/// device copies the table of codes there, for the lifetime of the process, and waits for the copy.
CodedNumbers coded_numbers(const at::Tensor& codes, const at::Tensor& scales, Codes kind);

/// References: the same by a search among the magnitudes, for CPU tensors.
void encode_blocks_reference(const at::Tensor& values, Codes kind, const at::Tensor& codes, const at::Tensor& scales);
void decode_blocks_reference(const at::Tensor& codes, const at::Tensor& scales, Codes kind, const at::Tensor& values);

/// Encodes and decodes single blocks of at most 256 values on the CPU, in the calling thread. It uses the instruction
/// set of the thread that constructed it.
class BlockCoder {
 public:
  explicit BlockCoder(Codes kind);
  void encode(const float* values, int64_t count, uint8_t* codes, float* scale) const {
    *scale = encode_(table_, values, count, codes);
  }
  void decode(const uint8_t* codes, float scale, int64_t count, float* values) const {
    decode_(table_, codes, scale, count, values);
  }

 private:
  const CodeTable& table_;
  decltype(Kernels<float>::encode_block) encode_;
  decltype(Kernels<float>::decode_block) decode_;
};

}  // namespace colossal::ops
