// Low-rank adapters (Hu et al. 2021, arXiv:2106.09685): a linear layer with weight W [out, in] computes with W + s B A.
// A [r, in] and B [out, r] train; W may be frozen.
//
//   nn::Adapter adapter{.treatment = [](const std::string& name) {
//     const bool is_adapter = nn::is_low_rank(name);
//     return nn::Treatment{.trains = is_adapter, .saved = is_adapter};
//   }};
//   adapter.product = [](auto product, const nn::Parameter& weight, nn::Parameters& parameters) {
//     return weight.hidden_matrix ? nn::with_low_rank(product, weight, parameters, {.rank = 4}) : product;
//   };
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "colossal/nn/parameter.h"
#include "colossal/nn/product.h"

namespace colossal::nn {

/// Options of a low-rank adapter.
struct LowRank {
  int64_t rank = 8;
  double scale = 1;  ///< factor s of B A
};

/// Returns a wrapper of `product`, which is the product of the layer with this weight. Declares its two matrices in
/// `parameters`: "<layer>.adapter_a" and "<layer>.adapter_b". Use it in Parameters::Options::products: all ranks must
/// call it for the same weights. If another pipeline stage holds the weight, this rank still declares the
/// matrices, and `product` is returned unchanged.
///
/// Start:         A is normal with standard deviation 1 / sqrt(in), B is zero, so the layer first computes what it did
///                before.
/// Layout:        A is sharded like the inputs of W and B like its outputs. The gradients of both are sums over the
///                axes that shard the other side of W (ShardSpec::gradient_axes).
/// Numbers:       around a DirectProduct s (x At) Bt is added to its local part. W may be in fp8 or packed
///                (PackedWeights with keeps_values, if x requires a gradient). A product that gathers blocks (2D,
///                2.5D, 3D, Megatron's sequence form) is given W + s B A.
/// Communication: only `product` communicates.
/// Memory:        x, unless the layer computes it again (`before` of nn::linear). Around a gathering product also this
///                rank's block of W + s B A during a pass.
/// Cost:          around a DirectProduct 2 T r (in + out) operations forward, three times as many backward. Around a
///                gathering product 2 r in out for each use of W; dW is computed even if W is frozen.
/// Errors ("adapter"): a rank that is not between 1 and the smaller side of W; a weight that is not a hidden matrix.
std::shared_ptr<const Product> with_low_rank(std::shared_ptr<const Product> product, const Parameter& weight,
                                             Parameters& parameters, const LowRank& options);

/// Returns true if the parameter of that name is a matrix of with_low_rank().
bool is_low_rank(std::string_view parameter);

}  // namespace colossal::nn
