#include "colossal/nn/dropout.h"

#include <ATen/ATen.h>

#include "colossal/base/error.h"
#include "colossal/base/seed.h"
#include "colossal/nn/canonical.h"
#include "colossal/nn/features.h"
#include "colossal/nn/layers.h"
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
    if (!step.training || probability_ == 0 || is_canonical(step)) return x;
    return dropped(x, probability_, derive_seed(step.dropout_seed, site_),
                   TokenPlaces(step, tokens_(step), x.size(0), x.size(1)), features_->here(), features_->size());
  }

 private:
  std::shared_ptr<const Features> features_;
  OwnTokens tokens_;
  uint64_t site_;
  double probability_;
};

}  // namespace

TokenPlaces::TokenPlaces(const ForwardContext& step, Tokens tokens, int64_t rows, int64_t in_row) {
  if (step.parts.find<ClassTokens>()) tokens.sequence = {};
  first_row = step.first_row + tokens.batch.held.front() * rows;
  sequence = tokens.sequence.whole_size(in_row);
  runs = tokens.sequence.ranges(sequence, "sequence");
}

at::Tensor dropped(const at::Tensor& x, double p, uint64_t seed, const TokenPlaces& places, const Range& features,
                   int64_t all_features) {
  const auto of_run = [&](const at::Tensor& run, const Range& range) {
    return ops::dropout(run, p, seed, {places.first_row * places.sequence + range.first, range.size, places.sequence},
                        features.first, all_features);
  };
  if (places.runs.size() == 1) return of_run(x, places.runs.front());
  std::vector<at::Tensor> runs;
  int64_t own = 0;  // index in x of the first token of a run
  for (const Range& range : places.runs) {
    runs.push_back(of_run(x.narrow(1, own, range.size), range));
    own += range.size;
  }
  return at::cat(runs, 1);
}

std::unique_ptr<Dropout> Layers::dropout(const std::string& name, int64_t hidden, double probability) {
  require(probability >= 0 && probability < 1, "model", "dropout must be in [0, 1): got ", probability, " for ", name);
  return std::make_unique<FeatureDropout>(*this, name, hidden, probability);
}

}  // namespace colossal::nn
