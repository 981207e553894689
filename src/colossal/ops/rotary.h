// Rotary position embedding in the rotate-half form of LLaMA. It rotates all features of a head or its first `rotated`
// features. Element i is paired with element i + rotated / 2.
//
//   const ops::RotaryTable table(64, 10000);                                  // of heads of 64 features
//   const ops::RotaryTable part(16, 10000);                                   // of the first 16, GPT-NeoX
//   const ops::RotaryTable far(64, 10000, {.kind = ops::RotaryScaling::Kind::Yarn, .factor = 4,
//                                          .original_positions = 4096});
//   std::tie(q, k) = ops::rotary(q, k, positions, table);
//
// A head may also have a run of features for each of several axes:
//
//   q = ops::rotary(q, places, {ops::RotaryTable(32, 10000), ops::RotaryTable(32, 10000)});  // places [B, S, 2]
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace colossal::ops {

/// Context extension for a model that was trained on sequences of `original_positions`. The kind says how the
/// frequencies f_i = theta^(-2i/R) of R rotated features change. All formulas follow transformers
/// (modeling_rope_utils.py).
struct RotaryScaling {
  enum class Kind {
    None,
    Linear,    ///< f / factor
    Dynamic,   ///< theta (factor L / original - (factor - 1))^(R / (R - 2)), for a length L > original_positions
    Yarn,      ///< f or f / factor, with a ramp between them (Peng et al. 2023, arXiv:2309.00071)
    Llama3,    ///< by wavelength w: f if w < original / high, f / factor if w > original / low, else a blend
    LongRope,  ///< f_i / short_factor_i; f_i / long_factor_i beyond original_positions (arXiv:2402.13753)
  } kind = Kind::None;
  double factor = 1;
  int64_t original_positions = 0;
  /// Yarn, LongRope: factor of cosines and sines. 0 = the default of the paper. Yarn's default is 0.1 ln(factor) + 1,
  /// or the formula of the next line. LongRope's default is sqrt(1 + ln(factor) / ln(original_positions)). The default
  /// is 1 if factor is at most 1.
  double attention_factor = 0;
  /// Yarn: (0.1 a ln(factor) + 1) / (0.1 b ln(factor) + 1) for mscale a, mscale_all_dim b; 0 = off
  double mscale = 0, mscale_all_dim = 0;
  double beta_fast = 32, beta_slow = 1;  ///< Yarn: turns over original_positions at which the ramp begins and ends
  bool truncate = true;                  ///< Yarn: round both ends of the ramp to whole feature indices
  double low_freq_factor = 1, high_freq_factor = 4;   ///< Llama3
  std::vector<double> short_factor{}, long_factor{};  ///< LongRope: R / 2 factors each

  bool operator==(const RotaryScaling&) const = default;
};

/// The frequencies of R rotated features, and tables of cosines and sines. The tables grow with the largest position
/// that was requested. Copies share the tables. Thread safety: full.
///
/// With Dynamic and LongRope the frequencies depend on `length`: the length of the longest sequence of a call, cached
/// tokens included. In a forward pass this is the number of its tokens, in decoding the number of tokens so far.
/// transformers does the same, with one difference for Dynamic. It keeps the frequencies of the longest sequence seen
/// until a sequence fits original_positions again. In both, cached keys keep the frequencies of the step that made
/// them.
class RotaryTable {
 public:
  /// Errors: throws unless `rotated` is even and positive, theta > 0 and the parameters of the scaling are valid.
  RotaryTable(int64_t rotated, double theta, RotaryScaling scaling = {});

  int64_t rotated() const;
  double attention_factor() const;  ///< factor of all cosines and sines
  bool depends_on_length() const;
  /// Returns true if the frequencies for two lengths above 0 are the same.
  bool turns_alike(int64_t length, int64_t other) const;
  /// Returns the frequencies, fp64 [R/2] on `device`. The copy on the device is cached, so later calls do not wait for
  /// a transfer. Dynamic computes new frequencies for each length beyond original_positions. `length` has no effect
  /// unless depends_on_length(); 0 = a length within original_positions.
  at::Tensor frequencies(at::Device device = at::kCPU, int64_t length = 0) const;

  /// Cosines and sines, multiplied by attention_factor(). Row i is for position first + i.
  struct Turns {
    at::Tensor cos_sin;  ///< contiguous [n, 2, R/2] on the CPU; fp64 if fp64 was requested, else fp32
    int64_t first = 0;
  };
  /// Returns the cosines and sines of at least the positions [first, behind). `length` is as for frequencies().
  Turns turns(int64_t first, int64_t behind, at::ScalarType dtype, int64_t length = 0) const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

/// Rotates every pair (x_i, x_{i+R/2}) of the head at position p by the angle p * frequency_i. Features from R on are
/// copied.
///
/// Shapes:   x [B,S,N,D] (any strides), D >= R, positions int64 [B,S], not negative -> [B,S,N,D], contiguous.
/// `length`: the sequence length for tables that depend on it. 0 = the largest of `positions` plus one; `positions`
/// must then cover whole sequences and be on the CPU.
/// Gradient: of x: the inverse rotation, times the attention factor. Only the positions and the table's values are
///           saved.
/// Errors:   throws if sizes do not fit or if a position is negative (checked on CPU tensors). On an accelerator it
///           throws if the table depends on a length that is not given.
/// Cost:     one pass. On an accelerator the kernel computes angles in fp64, once for up to 16 heads.
at::Tensor rotary(const at::Tensor& x, const at::Tensor& positions, const RotaryTable& table, int64_t length = 0);

/// Rotates both q [B,S,N,D] and k [B,S,Nkv,D].
std::pair<at::Tensor, at::Tensor> rotary(const at::Tensor& q, const at::Tensor& k, const at::Tensor& positions,
                                         const RotaryTable& table, int64_t length = 0);

/// Rotates runs of features, one after the other, by the positions of an axis each, such as the row and the column of a
/// token of a picture: with tables of 16 and 48 features, the first 16 turn by positions[..., 0].
///
/// Shapes:   x [B,S,N,D], D = the sum of all RotaryTable::rotated(), positions int64 [B,S,axes] -> [B,S,N,D].
/// Errors:   those of rotary() for an axis; another number of axes or features.
/// Cost:     a pass for each axis, and one that joins their features.
at::Tensor rotary(const at::Tensor& x, const at::Tensor& positions, const std::vector<RotaryTable>& axes);

/// Computes the same as rotary() of one axis from ATen operators with ATen's autograd: the reference, and the path of
/// accelerators without kernels of ours.
at::Tensor rotary_reference(const at::Tensor& x, const at::Tensor& positions, const RotaryTable& table,
                            int64_t length = 0);

}  // namespace colossal::ops
