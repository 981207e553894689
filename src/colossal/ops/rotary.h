// Rotary position embedding in the rotate-half form of LLaMA, of a head or of its first features: of `rotated` of them
// element i is paired with element i + rotated / 2.
//
//   const ops::RotaryTable table(64, 10000);                                  // of heads of 64 features
//   const ops::RotaryTable part(16, 10000);                                   // of the first 16, GPT-NeoX
//   const ops::RotaryTable far(64, 10000, {.kind = ops::RotaryScaling::Kind::Yarn, .factor = 4,
//                                          .original_positions = 4096});
//   std::tie(q, k) = ops::rotary(q, k, positions, table);
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace colossal::ops {

/// How a model that was trained on sequences of `original_positions` is made to reach further: what becomes of the
/// frequencies f_i = theta^(-2i/R) of R turned features. All as transformers computes them (modeling_rope_utils.py).
struct RotaryScaling {
  enum class Kind {
    None,
    Linear,    ///< f / factor
    Dynamic,   ///< longer than original_positions, length L: theta (factor L / original - (factor - 1))^(R / (R - 2))
    Yarn,      ///< by parts: f, f / factor, and a ramp between them (Peng et al. 2023, arXiv:2309.00071)
    Llama3,    ///< by wavelength w: below original / high f, above original / low f / factor, between them a blend
    LongRope,  ///< f_i / short_factor_i; longer than original_positions f_i / long_factor_i (arXiv:2402.13753)
  } kind = Kind::None;
  double factor = 1;
  int64_t original_positions = 0;
  /// Yarn, LongRope: factor of cosines and sines. 0: what the paper says, of Yarn 0.1 ln(factor) + 1 (or as the next
  /// line has it), of LongRope sqrt(1 + ln(factor) / ln(original_positions)); 1 where factor is at most 1
  double attention_factor = 0;
  double mscale = 0, mscale_all_dim = 0;  ///< Yarn: (0.1 a ln f + 1) / (0.1 b ln f + 1) of these, unless 0
  double beta_fast = 32, beta_slow = 1;   ///< Yarn: turns over original_positions where the ramp begins, ends
  bool truncate = true;                   ///< Yarn: it begins and ends at whole numbers of features
  double low_freq_factor = 1, high_freq_factor = 4;   ///< Llama3
  std::vector<double> short_factor{}, long_factor{};  ///< LongRope: R / 2 each

  bool operator==(const RotaryScaling&) const = default;
};

/// The frequencies of R rotated features, and tables of cosines and sines that grow with the largest position seen.
/// Copies share the tables. Thread safety: full.
///
/// With Dynamic and LongRope the frequencies depend on `length`, the length of the longest sequence of a call, with its
/// cached tokens. In a forward pass these are all of its tokens, in decoding the tokens so far. transformers does the
/// same. But its tables of Dynamic stay those of the longest sequence seen until one fits original_positions again. In
/// both, cached keys keep the frequencies of the step that made them.
class RotaryTable {
 public:
  /// Errors: throws unless `rotated` is even and positive, theta > 0 and the numbers of the scaling make sense.
  RotaryTable(int64_t rotated, double theta, RotaryScaling scaling = {});

  int64_t rotated() const;
  double attention_factor() const;  ///< of all cosines and sines
  bool depends_on_length() const;
  /// fp64 [R/2] on `device`, where they stay: whoever asks again waits for no copy. Of Dynamic beyond
  /// original_positions they are made anew for each length.
  at::Tensor frequencies(at::Device device = at::kCPU, int64_t length = 0) const;

  /// Cosines and sines with attention_factor() in them: row i is of position first + i.
  struct Turns {
    at::Tensor cos_sin;  ///< contiguous [n, 2, R/2] on the CPU, fp64 if the dtype asked for is, else fp32
    int64_t first = 0;
  };
  /// Returns the cosines and sines of at least the positions [first, behind).
  Turns turns(int64_t first, int64_t behind, at::ScalarType dtype, int64_t length = 0) const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

/// Turns every pair (x_i, x_{i+R/2}) of the head at position p by the angle p * frequency_i; features from R on stay.
///
/// Shapes:   x [B,S,N,D] (any strides), D >= R, positions int64 [B,S], not negative -> [B,S,N,D], contiguous.
/// `length`: what the table depends on; 0: one more than the largest of `positions`, where these are of whole sequences
///           and on the CPU.
/// Gradient: of x, the inverse turn, times the attention factor; nothing but the positions is saved.
/// Errors:   throws if sizes do not fit or a position is negative (checked on CPU tensors), or if on an accelerator a
///           table depends on a length that is not given.
/// Cost:     one pass. On an accelerator angles are made where they are needed, once for all heads, in fp64.
at::Tensor rotary(const at::Tensor& x, const at::Tensor& positions, const RotaryTable& table, int64_t length = 0);

/// Both q [B,S,N,D] and k [B,S,Nkv,D].
std::pair<at::Tensor, at::Tensor> rotary(const at::Tensor& q, const at::Tensor& k, const at::Tensor& positions,
                                         const RotaryTable& table, int64_t length = 0);

/// By ATen operators with ATen's autograd: the reference, and the path of accelerators without kernels of ours.
at::Tensor rotary_reference(const at::Tensor& x, const at::Tensor& positions, const RotaryTable& table,
                            int64_t length = 0);

}  // namespace colossal::ops
