// Low-rank adapters (Hu et al. 2021, arXiv:2106.09685): a linear layer of W [out, in] computes with W + s B A, where
// A [r, in] and B [out, r] train and W may be frozen.
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

struct LowRank {
  int64_t rank = 8;
  double scale = 1;  ///< s
};

/// Returns a wrapper of `product`, the product of the layer of `weight`, and declares its two matrices in `parameters`:
/// "<layer>.adapter_a" and "<layer>.adapter_b". For Parameters::Options::products: all ranks call it for the same
/// weights. If another stage has the weight, the matrices are declared and `product` is returned.
///
/// Start:         A is normal with deviation 1 / sqrt(in), B is zero, so the layer computes what it did before.
/// Layout:        A is divided like the inputs of W and B like its outputs. The gradients of both are sums over the
///                axes that divide the other side of W (ShardSpec::gradient_axes).
/// Numbers:       around a DirectProduct s (x At) Bt is added to its local part; W may be in fp8 or packed
///                (PrepackedLayers with keeps_values, if x requires a gradient). Around a product that gathers blocks
///                (2D, 2.5D, 3D, Megatron's sequence form) the product inside is given W + s B A.
/// Communication: that of the product inside.
/// Memory:        x, unless the layer computes it again (`before` of nn::linear). Around a gathering product the block
///                of W + s B A during a pass.
/// Cost:          around a DirectProduct 2 T r (in + out) operations forward, three times as many backward. Around a
///                gathering product 2 r in out for each use of W, and dW, also if W is frozen.
/// Errors ("adapter"): a rank that is not between 1 and the smaller side of W.
std::shared_ptr<const Product> with_low_rank(std::shared_ptr<const Product> product, const Parameter& weight,
                                             Parameters& parameters, const LowRank& options);

/// Returns true if the parameter of that name is a matrix of with_low_rank().
bool is_low_rank(std::string_view parameter);

}  // namespace colossal::nn
