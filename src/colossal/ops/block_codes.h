// Numbers kept in 8 bits: blocks of 256 with a scale each and codes that are dense near zero.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "colossal/ops/kernels.h"

namespace colossal::ops {

/// Blocks are of kCodeBlock values. Signed: 127 magnitudes of either sign, and 0. Positive: 255 magnitudes, and 0.
enum class Codes { Signed, Positive };

/// What codes stand for, ascending, in units of the block's largest magnitude: seven decades down to 10^-7, each
/// halving the number of steps of the one above it. 1 is among them, and -1. See: Dettmers et al., arXiv:2110.02861
/// (there -1 is not).
const std::vector<float>& code_values(Codes kind);

/// codes[i] <- the nearest code of values[i] / scale, scales[b] <- the largest magnitude of block b. Of two as near,
/// the one nearer zero. For finite values; a block with others gets some codes, and decodes to values that are not
/// finite or wrong.
///
/// Shapes: values fp32 [n], codes uint8 [n], scales fp32 [ceil(n / 256)], contiguous, on one device of
///         has_block_codes().
/// Errors: throws on other shapes, dtypes and devices.
void encode_blocks(const at::Tensor& values, Codes kind, const at::Tensor& codes, const at::Tensor& scales);
/// values <- code times scale. Encoding them again gives the same codes and scales.
void decode_blocks(const at::Tensor& codes, const at::Tensor& scales, Codes kind, const at::Tensor& values);

/// True for the CPU, and for devices with kernels of ours (device_tables.h): the same codes, bit for bit. Also for the
/// meta device, where nothing is computed.
bool has_block_codes(at::Device device);

/// What kernels of a device take. The first call copies the table of codes there, for the process, and waits for it.
CodedNumbers coded_numbers(const at::Tensor& codes, const at::Tensor& scales, Codes kind);

/// By a search among the magnitudes; CPU tensors.
void encode_blocks_reference(const at::Tensor& values, Codes kind, const at::Tensor& codes, const at::Tensor& scales);
void decode_blocks_reference(const at::Tensor& codes, const at::Tensor& scales, Codes kind, const at::Tensor& values);

/// Encodes and decodes one block of at most 256 values on the CPU, in the calling thread, with the instruction set of
/// the thread that made it.
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
