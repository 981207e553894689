// Linear layers whose weights are packed for inference when they are loaded (ops/products/prepacked_matrix.h), either
// in the dtype of the model or as quantized values of few bits.
//
//   auto layers = std::make_shared<nn::PackedWeights>(nn::WeightPacking{.bits = 8});
//   options.products = {[=](auto product, auto& weight, auto&) { return layers->wrap(product, weight); }};
//   ...                                                      // a model is made of parameters without memory
//   for (nn::Parameter& p : parameters) load(layers->loaded(p));
//   layers->finish();
//
// A model that trains also keeps its values, and packs them again before it generates:
//
//   auto layers = std::make_shared<nn::PackedWeights>(nn::WeightPacking{.keeps_values = true});
//   const nn::Adapter packing{.product = [=](auto product, const nn::Parameter& weight, auto&) {
//     return layers->wrap(product, weight);
//   }};
//   const auto engine = train::initialize(world, config, train::NamedModel{.shape = shape, .adapter = packing});
//   engine->step();
//   layers->repack();                                        // generate ...
//   layers->release();                                       // train on ...
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "colossal/nn/parameter.h"
#include "colossal/nn/product.h"
#include "colossal/nn/weight_packing.h"
#include "colossal/ops/products/coded_matrix.h"
#include "colossal/ops/products/prepacked_matrix.h"
#include "colossal/tensor/stored.h"

namespace colossal::nn {

/// A product with one packed weight, which callers may multiply together with others.
class PackedWeight {
 public:
  virtual ~PackedWeight() = default;
  /// Returns the panels with which a pass multiplies, which stay until the next repack() or release(); null = it
  /// multiplies with something else. `has_gradients`: whether a backward pass follows.
  virtual const ops::PrepackedMatrix* panels(bool has_gradients) const = 0;
};

/// A wrapper of products that multiplies with packed weights.
///
/// Numbers:       in fp32 and bf16 on the CPU the results of ops::PrepackedMatrix: the result for a token does not
///                depend on the other tokens. On other devices and with other dtypes quantized weights give the results
///                of ops::CodedMatrix; other weights are not packed. With 4 bits the head has 8, because its errors
///                affect every word at once.
/// Memory:        a weight exists once, in packed form, unless rows of it are looked up, too (a tied embedding), or
///                keeps_values is set. While weights are loaded one of them exists in full.
/// Gradients:     with keeps_values a pass that needs gradients multiplies with the values, by the product inside,
///                unless in_training is set. Until finish() or repack() has packed the weight, every pass does so.
///                Without keeps_values such passes are refused. Backward always uses the values.
/// Reads:         a pass that multiplies with the packed form does not read the value (Product::reads_weight()), so
///                under ZeRO 3 it gathers nothing for that product.
/// Communication: only the products inside communicate.
/// Errors ("prepacked"): a pass that needs gradients, without keeps_values; an adapter inside.
/// Errors ("quantization"): quantized values for a weight whose product gathers blocks (2D, 2.5D, 3D, Megatron's
///                          sequence form).
/// Thread safety: none; each rank of a process has its own object.
class PackedWeights {
 public:
  /// Errors ("quantization"): bits or groups that GroupCodes does not support.
  /// Errors ("prepacked"): in_training without keeps_values.
  explicit PackedWeights(const WeightPacking& packing);

  /// A wrapper for Parameters::Options::products. Returns a product that multiplies with the packed weight. Returns
  /// `product` itself if it does not multiply with the given matrices (it gathers blocks), if there is no packed form
  /// for the weight, or if another pipeline stage holds the weight.
  std::shared_ptr<const Product> wrap(std::shared_ptr<const Product> product, const Parameter& weight);
  /// Returns the value of a parameter without memory, to be written once. Opening it packs the parameter that was
  /// opened before.
  tensor::Stored loaded(Parameter& parameter);
  /// Return true if take() may use quantized values, or rows, of a weight, so that the caller reads them only then.
  bool takes_codes(const std::string& weight) const;
  bool takes_rows(const std::string& weight) const;
  /// Takes a weight as quantized values instead of its value. `weight` is the name that wrap() was given:
  /// "<stack>.<index>" for one matrix of a stack. Returns true if the value is not needed then. Returns false if the
  /// caller must fill loaded(): the weight is not packed, it is quantized on loading (WeightPacking::bits), rows of it
  /// are looked up, too, or keeps_values is set. If one matrix of a stack is not taken, loaded() of the whole stack
  /// packs only the matrices that were not.
  bool take(const std::string& weight, const ops::GroupCodes& codes);
  /// Takes a weight as tensors [rows, in] that hold its rows, one after the other, in place of its value. They are read
  /// during the call, and rounded once to the dtype of the model. Returns true if the value is not needed then. Returns
  /// false, as above, if the weight is not packed, if rows of it are looked up, too, or if keeps_values is set. Devices
  /// and dtypes without panels return false as well.
  bool take(const std::string& weight, const std::vector<at::Tensor>& rows);
  /// Postpones a parameter: `load` passes it to take() or fills loaded(), and is called before the first product with
  /// one of its weights, or by load_next(). The first pass then takes as much longer as loading takes less time. Passes
  /// and load_next() must be of one thread, and this object must exist during both.
  /// Returns false if the caller must load the parameter now: it is not packed, rows of it are looked up, too, its
  /// weights are quantized on loading, or keeps_values is set.
  bool take_later(const std::string& parameter, std::function<void()> load);
  /// Makes a parameter of which rows are looked up a view of `rows`, as take() has them. load_next(), or the first
  /// product with it, copies the values and packs them. Until then the file of `rows` must not change. Returns false if
  /// the caller must load the parameter now: rows of it are not looked up, there is more than one tensor or another
  /// dtype, weights are quantized on loading, or keeps_values is set.
  bool view(Parameter& parameter, const std::vector<at::Tensor>& rows);
  /// Loads the parameter that was postponed first, views after all others. Returns false if there is none. Errors:
  /// those of its `load`.
  bool load_next();
  /// Packs the parameter that was opened last, if it is not packed yet.
  void finish();
  /// Packs every weight again, in the memory of its packed form, from the current values of the parameters. Call it
  /// after an update, before generation. Frozen weights that are stored in another form (FrozenForm) get no panels:
  /// their products decode and pack some rows at a time, so a row of x has the same result beside any others. Passes
  /// without gradients use these packed forms until the next call. Collective if reads of the parameters are (under
  /// ZeRO 3 they are gathered, one chunk at a time). Cost: a pass over the weights. Errors ("prepacked"): without
  /// keeps_values.
  void repack();
  /// Frees the packed forms; all passes use the values until the next repack(). Without in_training, call it before
  /// training continues, because recomputed blocks run forward without gradients. Errors: as repack().
  void release();
  /// Returns the bytes of all packed weights, without postponed ones.
  int64_t bytes() const;
  const WeightPacking& packing() const { return packing_; }

  /// The packed form of one weight.
  struct Packed {
    std::optional<std::variant<ops::PrepackedMatrix, ops::CodedMatrix>> matrix{};  ///< empty until it is packed
    /// True after repack() = a frozen weight of another form (FrozenForm), whose rows are decoded and packed
    /// for each product. It then has no matrix
    bool has_other_form = false;
    std::function<void()> load{};  ///< packs a weight that is postponed; empty = it is not
  };

 private:
  struct Layer {
    std::shared_ptr<Packed> packed;
    const Parameter* parameter;  // the weight, or the stack of which it is one matrix
    int64_t index;               // of that matrix; -1 = it is the whole parameter
    at::Tensor value() const { return index < 0 ? parameter->value : parameter->value[index]; }
  };
  using Postponed = std::pair<const Parameter*, std::function<void()>>;
  void require_values() const;
  void load(const Parameter& parameter);
  void pack(Parameter& parameter);
  void pack(Layer& layer) const;  // the caller has announced the read of the parameter
  void pack(Layer& layer, const std::vector<at::Tensor>& rows) const;

  WeightPacking packing_;
  std::map<std::string, Layer> packed_;  // packed weights by the names that wrap() was given
  std::set<const Parameter*> known_;     // parameters that had values to pack when a product was wrapped
  std::vector<Postponed> postponed_;     // in the order of take_later()
  Parameter* pending_ = nullptr;         // filled by loaded(), not packed so far; null = none
};

}  // namespace colossal::nn
