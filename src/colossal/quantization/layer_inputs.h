// Statistics of the inputs of linear layers, for quantization methods. They are accumulated while samples pass through
// the model.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "colossal/nn/parameter.h"
#include "colossal/nn/product.h"

namespace colossal::quantization {

/// Statistics of the rows x [in] that a layer multiplied.
struct LayerInputs {
  int64_t rows = 0;
  at::Tensor moments;  ///< fp64 [in, in]: the sum of x xt
  at::Tensor mean;     ///< fp64 [in]: the mean of |x|
  at::Tensor largest;  ///< fp64 [in]: the largest |x|
  /// Adds rows, x [T, in].
  void add(const at::Tensor& x);
};

/// Records the inputs of the linear layers of a model, and of each expert of its mixtures. The model's
/// Parameters::Options::products must call wrap().
/// Memory: 8 in^2 bytes for each layer that is watched.
class InputRecorder {
 public:
  InputRecorder();
  /// Returns `product` for `weight`, with a record of its inputs while the weight is watched. The result may outlive
  /// the recorder.
  std::shared_ptr<const nn::Product> wrap(std::shared_ptr<const nn::Product> product, const nn::Parameter& weight);
  /// Watches the layers of these weights, and no others, from now on. All statistics recorded before are deleted.
  void watch(std::set<std::string> weights);
  /// Returns the statistics of a watched layer. The matrices of a stack are layers of their own, "<stack>.<index>".
  /// Errors ("quantization"): no row has reached the layer.
  const LayerInputs& of(const std::string& weight) const;
  /// Returns them, or null if no row has reached the layer, as of an expert that no token chose.
  const LayerInputs* find(const std::string& weight) const;

  struct State {
    std::set<std::string> watched;
    std::map<std::string, LayerInputs> inputs;
  };

 private:
  std::shared_ptr<State> state_;  // shared with the products
};

}  // namespace colossal::quantization
