// The linear layers of a language model's blocks in codes, by methods that look at what goes through them.
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
#include "colossal/ops/group_codes.h"

namespace colossal::quantization {

enum class Method {
  Rtn,          ///< each group rounded to nearest by itself; looks at no sample
  Gptq,         ///< errors are passed on to weights that are not rounded yet (gptq.h)
  Awq,          ///< factors that save what large inputs meet (awq_scales), then to nearest
  SmoothQuant,  ///< factors that share largest values between inputs and weights (smoothing_scales), then to nearest
};
/// Errors ("quantization"): a name that is none of method_names().
Method method_of(const std::string& name);
const std::vector<std::string>& method_names();  ///< in the order of Method

struct QuantizeOptions {
  Method method = Method::Rtn;
  ops::RoundingOptions rounding{};
  int64_t tokens_at_once = 4096;  ///< of samples that go through a block, one sample at least
  bool rounds = true;             ///< false: factors alone are folded, and there are no codes
};

struct Quantized {
  std::map<std::string, ops::GroupCodes> codes;  ///< by the names of weights
  std::vector<std::string> without_factors;      ///< names of weights that methods with factors rounded without some
};

/// The hidden matrices of a model's blocks, which quantize() rounds, by name and in the order in which they were made.
std::vector<std::string> matrices_of_blocks(const nn::Parameters& parameters);

/// Rounds the hidden matrices of the blocks of a model of `shape`, whose `parameters` are whole, with values, on the
/// CPU. These become what the codes stand for, and take up the factors of methods that have some. Embedding, norms,
/// biases and head stay. `samples` [N, T]: ids that go through the model, for all methods but Rtn.
///
/// Numbers: a block sees what the blocks before it give when they are rounded; under Gptq a layer of it, too, what the
///          layers before it give.
/// Memory:  hidden states of all samples, and the second moments of one block's inputs (of Gptq one layer's).
/// Errors ("quantization"): a model that is not asked for the next token; samples of more tokens than its positions,
///          none, or ids outside its vocabulary; those of ops::round_to_codes.
Quantized quantize(const models::ModelShape& shape, nn::Parameters& parameters, const at::Tensor& samples,
                   const QuantizeOptions& options, const std::function<void(int64_t block)>& progress = {});

}  // namespace colossal::quantization
