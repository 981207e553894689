// Low-rank adapters (LoRA, Hu et al. 2021, arXiv:2106.09685): a linear layer with weight W [out, in] computes with
// W + s B A. A [r, in] and B [out, r] train; W may be frozen.
//
//   nn::Adapter adapter{.treatment = [](const std::string& name) {
//     const bool is_adapter = nn::is_low_rank(name);
//     return nn::Treatment{.trains = is_adapter, .saved = is_adapter};
//   }};
//   adapter.product = [](auto product, const nn::Parameter& weight, nn::Parameters& parameters) {
//     return weight.hidden_matrix ? nn::with_low_rank(product, weight, parameters, {.rank = 4}) : product;
//   };
//
// With magnitudes (DoRA, Liu et al. 2024, arXiv:2402.09353) the layer computes with W' = m (W + s B A) /
// ||W + s B A||, where m [out] and the norm belong to the row of each output.
// m starts as the norms of W. The norm has no gradient
// (section 4.3 of the paper).
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "colossal/nn/parameter.h"
#include "colossal/nn/product.h"

namespace colossal::nn {

/// Outputs of a weight that have an adapter of their own. A fused weight, such as q, k and v, has several.
struct LowRankPart {
  std::string name;  ///< ends the names of its matrices: "<layer>.adapter_a.<name>"
  /// Its outputs [first, first + count) of all outputs of the weight. They must be whole segments of the weight
  /// (tensor::DimSplit::segments)
  int64_t first = 0, count = 0;
  std::optional<int64_t> rank{};  ///< none = LowRank::rank
  std::optional<double> scale{};  ///< none = LowRank::scale
};

/// Options of a low-rank adapter.
struct LowRank {
  int64_t rank = 8;
  double scale = 1;         ///< factor s of B A
  double dropout = 0;       ///< probability with which an element of x is dropped on its way to A, while training
  bool magnitudes = false;  ///< true = DoRA
  std::vector<LowRankPart> parts{};  ///< empty = one adapter for all outputs, whose matrices have no further name
};

/// Returns a wrapper of `product`, which is the product of the layer with this weight. Declares its matrices in
/// `parameters`, for each part "<layer>.adapter_a" and "<layer>.adapter_b", with magnitudes also "<layer>.adapter_m".
/// Use it in Parameters::Options::products: all ranks must call it for the same weights. If another pipeline stage
/// holds the weight, this rank still declares the matrices, and `product` is returned unchanged.
///
/// Convolutions:  of a weight [out, in, rows, columns] it declares A [r, in, rows, columns] and B [out, r], and returns
///                the product of nn/low_rank_convolution.h around a DirectProduct. A product that gathers blocks gets
///                that of W + s B A with the inputs of all taps. Dropout, magnitudes and several parts are refused.
/// Others:        layers between blocks (Parameter::between_blocks) have the limits of convolutions.
/// Experts:       of a matrix of a stack (Parameter::stack) it declares adapters of the whole stack, A [E, r, in] and
///                B [E, out, r], so each expert has its own: "<stack>.adapter_a". They are split over ranks like the
///                stack, and multiplied by grouped products; dispatch and traffic do not change. Call it for all
///                experts of a stack with the same options, or for none. Parts, dropout and magnitudes are refused, as
///                peft refuses the last two.
/// Start:         A is uniform between -1 / sqrt(in) and 1 / sqrt(in), B is zero. So the layer first computes what it
///                did before, to the bit.
/// Magnitudes:    adapter_m [out] is m less the norms of W. It starts at 0, so it needs no pass over loaded weights,
///                and it has the gradients of m. The weight must be frozen.
/// Dropout:       one mask for all parts of a layer, drawn by logical index (nn::dropped) with the seed of the running
///                step (nn/running_step.h). x goes to W undropped.
/// Layout:        A is sharded like the inputs of W, B and m like its outputs; where the outputs of W are cut further
///                (tensor::DimSplit::shards), ranks hold copies of B and m. The gradients are sums over the axes that
///                shard what the matrix does not (ShardSpec::gradient_axes).
/// Numbers:       around a DirectProduct s (x At) Bt is added to its local part. W may be in fp8, packed
///                (PackedWeights with keeps_values, if x requires a gradient), or in another form (FrozenForm). A
///                product that gathers blocks (2D, 2.5D, 3D, Megatron's sequence form) is given this rank's block of W
///                + s B A, or of W'.
/// Communication: only `product` communicates. Magnitudes add one Product::sum_over_inputs() of two values per output
///                to each forward pass, if ranks split the inputs.
/// Memory:        x, unless the layer computes it again (`before` of nn::linear). With magnitudes also y before it is
///                scaled. Around a gathering product also this rank's block of W + s B A during a pass.
/// Cost:          around a DirectProduct 2 T r (in + out) operations forward, three times as many backward. Around a
///                gathering product 2 r in out for each use of W; dW is computed even if W is frozen. Magnitudes read W
///                once more in forward, and make 2 r in out operations. A product without backward makes them once.
/// Errors ("adapter"): a rank that is not between 1 and the smaller side of a matrix; a weight that is not a hidden
///                matrix, a convolution or between blocks; parts that are not whole segments, or overlap; dropout that
///                is not in [0, 1), or around a product that gathers blocks; magnitudes of a weight that trains; parts,
///                dropout or magnitudes where they are refused. In forward: dropout outside of a running step.
std::shared_ptr<const Product> with_low_rank(std::shared_ptr<const Product> product, const Parameter& weight,
                                             Parameters& parameters, const LowRank& options);

/// The name of a parameter of with_low_rank().
struct LowRankName {
  std::string layer;  ///< "blocks.0.attention.qkv"
  char matrix;        ///< 'a', 'b' or 'm'
  std::string part;   ///< LowRankPart::name; empty = it has all outputs

  std::string text() const;  ///< "blocks.0.attention.qkv.adapter_a.q_proj"
};

/// Returns the parts of a name; none if the parameter of that name is no matrix of with_low_rank().
std::optional<LowRankName> low_rank_name(std::string_view parameter);

/// Returns true if the parameter of that name is a matrix of with_low_rank().
bool is_low_rank(std::string_view parameter);

}  // namespace colossal::nn
