// Attention with a gate along one of two axes, as AlphaFold has it (Jumper et al. 2021, supplement, algorithms 7, 8,
// 13, 14 and 19).
//
//   nn::GatedAttention attention(make, "msa_att_row.mha", 256, {.heads = 8, .width = 32});
//   m = m + attention.forward(x, nn::AttendedAxis::Second, {.bias = bias, .mask = mask});   // x [B, S, N, 256]
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

#include "colossal/nn/linear_layers.h"

namespace colossal::nn {

class Layers;

/// The axis of a state [B, P, Q, c] along which elements attend to each other.
enum class AttendedAxis : uint8_t {
  First,   ///< P: those of a column
  Second,  ///< Q: those of a row
};

/// Sizes of gated attention: `heads` heads with `width` features each.
struct GatedHeads {
  int64_t heads = 8, width = 32;
};

/// What attention may see.
struct GatedScores {
  at::Tensor
      bias{};  ///< [B, heads, L, L] for the attended axis of length L, shared by the other axis; undefined = none
  at::Tensor mask{};  ///< [B, P, Q], 0 for elements that nobody attends to; undefined = all take part
};

/// Returns a mask of any dtype as bool, true where it is not 0; undefined stays undefined.
at::Tensor seen(const at::Tensor& mask);

/// y = o(sigmoid(g(x)) * attention(q(x), k(x), v(x))). Parameters: `name`.linear_{q,k,v}.weight without biases,
/// `name`.linear_{o,g}.{weight,bias}. linear_o starts at 0; linear_g
/// is an open_gate().
/// Memory: no scores are kept (ops::biased_attention), and nothing is transposed: attention along P reads views.
class GatedAttention {
 public:
  /// `in`: features of x and of the result.
  GatedAttention(Layers& make, const std::string& name, int64_t in, const GatedHeads& heads);
  at::Tensor forward(const at::Tensor& x, AttendedAxis axis, const GatedScores& scores) const;

 private:
  GatedHeads heads_;
  std::unique_ptr<Dense> q_, k_, v_, o_, g_;
};

/// Global attention of columns, for many rows (algorithm 19). The query of a column is the mean of its elements that
/// the mask shows; keys and values have one head; the gate is of each element. Parameters as of GatedAttention, with
/// linear_k and linear_v of one head.
class GlobalAttention {
 public:
  GlobalAttention(Layers& make, const std::string& name, int64_t in, const GatedHeads& heads);
  /// x [B, S, N, in], mask [B, S, N] -> [B, S, N, in]: elements attend along S.
  at::Tensor forward(const at::Tensor& x, const at::Tensor& mask) const;

 private:
  GatedHeads heads_;
  std::unique_ptr<Dense> q_, k_, v_, o_, g_;
};

}  // namespace colossal::nn
