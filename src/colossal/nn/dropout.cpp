#include "colossal/nn/dropout.h"

#include <ATen/ATen.h>

#include "colossal/base/error.h"
#include "colossal/base/seed.h"
#include "colossal/nn/features.h"
#include "colossal/nn/layers.h"
#include "colossal/nn/logical_rows.h"
#include "colossal/ops/random.h"

namespace colossal::nn {
namespace {

class FeatureDropout final : public Dropout {
 public:
  FeatureDropout(Layers& make, const std::string& name, int64_t hidden, double probability)
      : features_(make.features(hidden, Place::Outside)),
        tokens_(make.own_tokens()),
        site_(derive_seed(0, name)),
        probability_(probability) {}

  at::Tensor forward(const at::Tensor& x, const ForwardContext& step) override {
    if (!step.training || probability_ == 0) return x;
    Tokens tokens = tokens_(step);
    if (step.parts.find<ClassTokens>()) tokens.sequence = {};
    return by_logical_rows(x, tokens, step.first_row, [&](const at::Tensor& run, const ops::LogicalRows& rows) {
      return ops::dropout(run, probability_, derive_seed(step.dropout_seed, site_), rows, features_->here().first,
                          features_->size());
    });
  }

 private:
  std::shared_ptr<const Features> features_;
  OwnTokens tokens_;
  uint64_t site_;
  double probability_;
};

}  // namespace

std::unique_ptr<Dropout> Layers::dropout(const std::string& name, int64_t hidden, double probability) {
  require(probability >= 0 && probability < 1, "model", "dropout must be in [0, 1): got ", probability, " for ", name);
  return std::make_unique<FeatureDropout>(*this, name, hidden, probability);
}

}  // namespace colossal::nn
