// Quantization of the linear layers of a language model's blocks, by methods that calibrate on the layers' inputs.
//
//   const quantization::Quantized done = quantization::quantize(shape, parameters, samples, {.method = Method::Gptq});
//   done.codes.at("blocks.0.attention.qkv.weight");
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "colossal/models/shape.h"
#include "colossal/nn/parameter.h"
#include "colossal/ops/products/group_codes.h"

namespace colossal::quantization {

enum class Method {
  Rtn,          ///< each group rounded to nearest on its own; needs no samples
  Gptq,         ///< errors are compensated in weights that are not rounded yet (gptq.h)
  Awq,          ///< factors that protect weights of large inputs (awq_scales), then rounding to nearest
  SmoothQuant,  ///< factors that balance the largest inputs and weights (smoothing_scales), then rounding to nearest
};
/// Returns the method called `name`. Errors ("quantization"): `name` is not in method_names().
Method method_of(const std::string& name);
const std::vector<std::string>& method_names();  ///< names in the order of Method

struct QuantizeOptions {
  Method method = Method::Rtn;
  ops::RoundingOptions rounding{};
  /// Maximum number of sample tokens per pass through a block; at least one sample passes
  int64_t tokens_at_once = 4096;
  bool rounds = true;  ///< false: only fold the factors, without quantizing
};

struct Quantized {
  /// Quantized weights by name, the matrices of a stack by "<stack>.<index>"; empty if `rounds` is false
  std::map<std::string, ops::GroupCodes> codes;
  /// Names of the parameters that AWQ or SmoothQuant rounded without factors
  std::vector<std::string> without_factors;
  /// Experts of all blocks, and those of them that Gptq rounded to nearest because no token of the samples chose them
  int64_t experts = 0, experts_without_tokens = 0;
};

/// Returns the names of the hidden matrices of a model's blocks, which quantize() rounds: of a mixture each matrix of
/// each expert, "<stack>.<index>". They are in the order in which they were created.
std::vector<std::string> matrices_of_blocks(const nn::Parameters& parameters);

/// Quantizes the hidden matrices of the blocks of a model of `shape`. `parameters` must be whole, with values, on the
/// CPU. Matrices are replaced by their dequantized values; methods with factors fold these into `parameters`, too.
/// Embedding and head do not change; norms and biases change only by folded factors. `samples` [N, T] are token ids
/// that pass through the model, for all methods but Rtn. `progress` is called after each block; null = off.
///
/// Numbers: the inputs of a block are the outputs of the quantized blocks before it. With Gptq the inputs of a layer
///          also are the outputs of the quantized layers before it.
///          An expert is observed on the tokens that choose it. Without any, Gptq rounds it to nearest.
/// Memory:  hidden states of all samples, and the second moments of one block's inputs (with Gptq of one layer's, or of
///          all experts of one stack).
/// Errors ("quantization"): a model that does not predict the next token. For methods with samples: none, more tokens
///          than the model's positions, or ids outside its vocabulary. The errors of ops::round_to_codes.
Quantized quantize(const models::ModelShape& shape, nn::Parameters& parameters, const at::Tensor& samples,
                   const QuantizeOptions& options, const std::function<void(int64_t block)>& progress = {});

}  // namespace colossal::quantization
