// Low-rank adapters of one base among which each token of a step chooses: y = x Wt + s (x At) Bt with the A, B and s of
// the token's adapter. So one pass serves requests with different adapters, and with none.
//
//   nn::TokenAdapters adapters;
//   adapters.add({.adapter = 0, .weight = "blocks.0.attention.out.weight", .outputs = 64, .a = a, .b = b, .scale = 2});
//   options.products.push_back([&adapters](auto product, const nn::Parameter& weight, nn::Parameters& parameters) {
//     return adapters.wrap(std::move(product), weight, parameters.coordinates());
//   });
//   ...                                                      // the model is made with these options
//   adapters.check();
//   step.parts.set(nn::AdaptersOfTokens({{5, 0}, {3, nn::kBase}, {8, 1}}, at::kCPU));     // 16 tokens
//
// with_low_rank() (nn/low_rank.h) is the one adapter of a model that trains.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "colossal/nn/parameter.h"
#include "colossal/nn/product.h"

namespace colossal::nn {

/// The adapter number of tokens that use the base alone.
inline constexpr int64_t kBase = -1;

/// A part of a step (ForwardContext::parts): the adapter of each token. A step without it has tokens of the base alone.
class AdaptersOfTokens {
 public:
  /// Consecutive tokens with the same adapter.
  struct Run {
    int64_t tokens, adapter;
  };
  /// All tokens of one adapter.
  struct Group {
    int64_t adapter;
    at::Tensor rows;  ///< their places, ascending: int64 on the device of the step
  };

  /// `runs` are those of the packed row of the step. One run stands for all rows of every layer, however many they are,
  /// such as those of an encoder.
  AdaptersOfTokens(const std::vector<Run>& runs, at::Device device);

  /// Returns the groups in the order of their adapters, without the base.
  const std::vector<Group>& groups() const { return groups_; }
  int64_t tokens() const { return tokens_; }
  /// Returns true if all tokens have the same adapter.
  bool is_one() const { return is_one_; }

 private:
  std::vector<Group> groups_;
  int64_t tokens_ = 0;
  bool is_one_ = false;
};

/// The matrices that an adapter has for outputs [first_output, first_output + outputs) of a weight, whole.
struct TokenAdapter {
  int64_t adapter = 0;  ///< its number, from 0
  std::string weight;   ///< Parameter::own_name() of the weight: "blocks.0.attention.qkv.weight"
  int64_t first_output = 0, outputs = 0;
  at::Tensor a, b;  ///< [r, in], [outputs, r], of any floating-point dtype on the CPU
  double scale = 1;
};

/// Wraps the products of linear layers, outside the wrapper of the precision (nn/packed_weights.h). Its matrices are no
/// parameters of the model.
///
/// Numbers:       A and s B are rounded to the dtype of the model, s x At and s (x At) Bt to the dtype of x, sums as in
///                ops::PrepackedMatrix (fp32 and bf16 on the CPU). There a token has the bits that it has without other
///                tokens and without other adapters, and a token of the base those of the product inside. On other
///                devices and with other dtypes LibTorch's products may differ in the last bits.
/// Layout:        this rank has the inputs of A and the outputs of B that it has of the weight.
/// Communication: only the products inside communicate.
/// Memory:        per weight and adapter r (in + outputs) elements; on the CPU r and the outputs are padded to
///                multiples of 32 as in ops::PrepackedMatrix.
/// Cost:          2 r (in + outputs) operations per token and weight, and for each weight a product with A and one per
///                part with B for all adapters that have the same ranks and modules.
/// Errors ("adapter"): in wrap(): a product that gathers blocks (2D, 2.5D, 3D, Megatron's sequence form); a matrix of
///                     experts; the weight of latent keys and values. In forward: a pass that needs gradients; a layer
///                     whose rows are not the tokens of the step.
/// Thread safety: none; each rank of a process has its own object.
class TokenAdapters {
 public:
  TokenAdapters();
  ~TokenAdapters();
  TokenAdapters(const TokenAdapters&) = delete;
  TokenAdapters& operator=(const TokenAdapters&) = delete;

  /// Adds the matrices of a weight, before the model is made. Errors ("adapter"): shapes that do not fit.
  void add(TokenAdapter adapter);
  /// A wrapper for Parameters::Options::products. Returns `product` itself if no adapter has matrices for the weight,
  /// or if another pipeline stage holds the weight.
  std::shared_ptr<const Product> wrap(std::shared_ptr<const Product> product, const Parameter& weight,
                                      const tensor::MeshCoordinates& coordinates);
  /// Checks, after the model was made, that each weight of an adapter has a product. It then frees what add() was
  /// given. Errors ("adapter"): one that has none.
  void check();
  /// Returns the bytes of the matrices of this rank.
  int64_t bytes() const;

  /// The matrices of one weight on this rank.
  class OfWeight;

 private:
  static std::shared_ptr<const OfWeight> made(const std::vector<TokenAdapter>& given, const Parameter& weight,
                                              const tensor::MeshCoordinates& coordinates);

  std::map<std::string, std::vector<TokenAdapter>> given_;            // by weight, until check()
  std::map<std::string, std::shared_ptr<const OfWeight>> of_weight_;  // by weight, for those that wrap() has seen
  std::map<std::string, bool> has_product_;
};

}  // namespace colossal::nn
