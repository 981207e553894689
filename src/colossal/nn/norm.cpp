#include "colossal/nn/norm.h"

#include <ATen/ATen.h>

#include "colossal/nn/features.h"
#include "colossal/nn/layers.h"
#include "colossal/nn/vector.h"
#include "colossal/ops/norm.h"

namespace colossal::nn {
namespace {

/// RMSNorm, or LayerNorm if it is centred.
class FeatureNorm final : public Norm {
 public:
  FeatureNorm(Layers& make, const std::string& name, int64_t hidden, const NormOptions& options, bool centred)
      : features_(make.features(hidden, Place::Outside)),
        weight_(options.affine ? make.vector(name + ".weight", {hidden}, {.init = options.init()}) : nullptr),
        bias_(centred && options.affine && options.bias ? make.vector(name + ".bias", {hidden}, {}) : nullptr),
        options_(options),
        centred_(centred) {}

  at::Tensor forward(const at::Tensor& x) override {
    const at::Tensor w = weight_ ? weight_->value() : at::ones({x.size(-1)}, x.options()),
                     b = bias_ ? bias_->value() : at::Tensor();
    const double epsilon = options_.epsilon, offset = weight_ ? options_.offset() : 0;
    if (!features_->is_split())
      return centred_ ? ops::layer_norm(x, w, b, epsilon, offset) : ops::rms_norm(x, w, epsilon, offset);
    ops::RankReduction& ranks = features_->reduction();
    const int64_t hidden = features_->size();
    return centred_ ? ops::split_layer_norm(x, w, b, epsilon, hidden, ranks, offset)
                    : ops::split_rms_norm(x, w, epsilon, hidden, ranks, offset);
  }

 private:
  std::shared_ptr<const Features> features_;
  std::unique_ptr<Vector> weight_, bias_;  // null = none
  NormOptions options_;
  bool centred_;
};

}  // namespace

std::unique_ptr<Norm> Layers::rms_norm(const std::string& name, int64_t hidden, const NormOptions& options) {
  return std::make_unique<FeatureNorm>(*this, name, hidden, options, /*centred=*/false);
}

std::unique_ptr<Norm> Layers::layer_norm(const std::string& name, int64_t hidden, const NormOptions& options) {
  return std::make_unique<FeatureNorm>(*this, name, hidden, options, /*centred=*/true);
}

}  // namespace colossal::nn
