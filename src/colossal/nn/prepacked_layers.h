// Linear layers over weights laid out for inference when they are loaded (ops/prepacked_matrix.h): in the dtype of the
// model, or in codes of few bits.
//
//   auto layers = std::make_shared<nn::PrepackedLayers>(nn::WeightPacking{.bits = 8});
//   options.products = {[=](auto product, auto& weight, auto&) { return layers->wrap(product, weight); }};
//   ...                                                      // a model is made of parameters without memory
//   for (nn::Parameter& p : parameters) load(layers->loaded(p));
//   layers->finish();
//
// A model that trains keeps its values as well, and packs them again before it generates:
//
//   auto layers = std::make_shared<nn::PrepackedLayers>(nn::WeightPacking{.keeps_values = true});
//   const nn::Adapter packing{.product = [=](auto product, const nn::Parameter& weight, auto&) {
//     return layers->wrap(product, weight);
//   }};
//   const auto engine = train::initialize(world, config, shape, {}, nullptr, packing);
//   engine->step();
//   layers->repack();                                        // generate ...
//   layers->release();                                       // train on ...
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>

#include "colossal/nn/parameter.h"
#include "colossal/nn/product.h"
#include "colossal/ops/coded_matrix.h"
#include "colossal/ops/prepacked_matrix.h"
#include "colossal/tensor/stored.h"

namespace colossal::nn {

struct WeightPacking {
  int64_t bits = 0;     ///< of codes, 8 or 4: each group rounded to nearest (ops::round_to_codes); 0: the model's dtype
  int64_t group = 128;  ///< inputs that share a scale
  bool floating = false;  ///< of 8 bits: floating point (e4m3) with a scale an output, whatever the group
  /// A weight stays where it is beside its packed form. Then passes that want gradients use the product inside, and
  /// repack() works. Without it the packed form is all that remains
  bool keeps_values = false;
};

/// Numbers:       in fp32 and bf16 on the CPU those of ops::PrepackedMatrix: what a token is multiplied to does not
///                depend on the tokens beside it. Of other devices and dtypes weights in codes have those of
///                ops::CodedMatrix, others are left as they are. With 4 bits the head has 8, as its errors are those of
///                every word at once.
/// Memory:        a weight is there once: packed, unless rows of it are looked up, too (a tied embedding), or
///                keeps_values. While weights are loaded one of them is there in full.
/// Gradients:     with keeps_values a pass that wants some multiplies with the values, by the product inside; so does
///                every pass until finish() or repack() has packed the weight. Without it they are refused.
/// Communication: that of the products inside.
/// Errors ("prepacked"): a pass that wants gradients, without keeps_values; an adapter inside. ("quantization"): codes
///                wanted of a weight whose product gathers blocks (2D, 2.5D, 3D, Megatron's sequence form).
/// Thread safety: none: the ranks of one process have one each.
class PrepackedLayers {
 public:
  /// Errors ("quantization"): bits and groups that GroupCodes does not have.
  explicit PrepackedLayers(const WeightPacking& packing);

  /// A wrapper for Parameters::Options::products: a product that multiplies with the packed weight, or `product` itself
  /// where that is of other matrices than it is given, or there is nothing to be packed for it.
  std::shared_ptr<const Product> wrap(std::shared_ptr<const Product> product, const Parameter& weight);
  /// The value of a parameter without memory, to be written once. The one before is packed then.
  tensor::Stored loaded(Parameter& parameter);
  /// Takes a weight in codes instead of its value. True: its value is not needed then. False: loaded() is to be filled,
  /// as it is not packed, was asked for in codes of its own (WeightPacking::bits), or rows of it are looked up, too.
  bool take(const Parameter& parameter, const ops::GroupCodes& codes);
  /// Packs the last one.
  void finish();
  /// Packs every weight again, in place of its packed form, from the values that the parameters have now: after an
  /// update, before generation. Until the next call passes without gradients use these. Collective as the reads of the
  /// parameters are (under ZeRO 3 they are gathered, one chunk at a time). Cost: a pass over the weights.
  /// Errors ("prepacked"): without keeps_values.
  void repack();
  /// Frees the packed forms: until the next repack() all passes use the values. To be called before training goes on,
  /// because recomputed blocks run forward without gradients. Errors: those of repack().
  void release();
  /// Bytes of all packed weights.
  int64_t bytes() const;

  /// What one weight is packed as; empty until it is packed.
  using Packed = std::optional<std::variant<ops::PrepackedMatrix, ops::CodedMatrix>>;

 private:
  struct Layer {
    std::shared_ptr<Packed> packed;
    const Parameter* weight;
  };
  void require_values() const;
  void pack(Parameter& parameter);
  void pack(const Parameter& parameter, Packed& packed) const;

  WeightPacking packing_;
  std::map<std::string, Layer> packed_;  // by the weight's name
  Parameter* pending_ = nullptr;         // filled, not yet packed
};

}  // namespace colossal::nn
