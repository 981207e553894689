// Adam with moments quantized to 8 bits: one pass over memory, block by block.
#pragma once
#include "colossal/ops/updates/block_codes.h"
#include "colossal/ops/updates/update.h"

namespace colossal::ops {

/// A moment as encode_blocks() stores it: n quantized values, uint8 [n], and scales, fp32 [ceil(n / 256)].
struct CodedState {
  at::Tensor codes, scales;
  CodedState(at::Tensor codes, at::Tensor scales) : codes(std::move(codes)), scales(std::move(scales)) {}
  /// Makes the state of n zeros.
  CodedState(int64_t n, Codes kind, at::Device device = at::kCPU);
};

/// Runs the step of adam_() on the decoded moments and encodes them again. exp_avg has kind Signed, exp_avg_sq has kind
/// Positive. Moments are computed in fp32.
///
/// Shapes, dtypes: as for FlatUpdate, on one device of has_block_codes(). `copy` requires fp32 values, and there is no
/// stochastic rounding (`chance`).
/// Cost: one pass, all threads; for fp32 16 bytes per element.
/// Errors: throws on buffers that do not fit; step < 1.
/// See: Dettmers et al., arXiv:2110.02861.
void adam_8bit_(const FlatUpdate& update, const CodedState& exp_avg, const CodedState& exp_avg_sq,
                const AdamStep& step);
void adam_8bit_reference_(const FlatUpdate& update, const CodedState& exp_avg, const CodedState& exp_avg_sq,
                          const AdamStep& step);

}  // namespace colossal::ops
