#include "colossal/nn/dropout.h"

#include <ATen/ATen.h>

#include <vector>

#include "colossal/base/error.h"
#include "colossal/base/seed.h"
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
    if (!step.training || probability_ == 0) return x;
    Tokens tokens = tokens_(step);
    if (step.parts.find<ClassTokens>()) tokens.sequence = {};
    const int64_t sequence = tokens.sequence.whole_size(x.size(1));
    const int64_t first_row = step.first_row + tokens.batch.held.front() * x.size(0);
    const auto dropped = [&](const at::Tensor& run, const Range& range) {
      return ops::dropout(run, probability_, derive_seed(step.dropout_seed, site_),
                          {first_row * sequence + range.first, range.size, sequence}, features_->here().first,
                          features_->size());
    };
    const auto ranges = tokens.sequence.ranges(sequence, "sequence");
    if (ranges.size() == 1) return dropped(x, ranges.front());
    std::vector<at::Tensor> runs;
    int64_t own = 0;  // index in x of the first token of a range
    for (const Range& range : ranges) {
      runs.push_back(dropped(x.narrow(1, own, range.size), range));
      own += range.size;
    }
    return at::cat(runs, 1);
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
