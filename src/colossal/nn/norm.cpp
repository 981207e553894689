#include "colossal/nn/norm.h"

#include <ATen/ATen.h>

#include "colossal/base/error.h"
#include "colossal/nn/features.h"
#include "colossal/nn/layers.h"
#include "colossal/nn/vector.h"
#include "colossal/ops/group_norm.h"
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

/// Returns the groups of a norm of which a rank has the features.
ops::NormGroups groups_of_rank(Layers& make, const std::string& name, int64_t features, ops::NormGroups groups,
                               Place place) {
  require(groups.groups > 0 && features % groups.groups == 0, "model", "the groups of ", name, " must divide its ",
          features, " features: got ", groups.groups);
  const int64_t width = features / groups.groups, room = make.features(features, place)->room();
  require(room % width == 0, "parallel", "ranks must have whole groups of the norm ", name, ", of ", width,
          " features each: got ", room, " features on a rank; choose a tensor size that divides ", groups.groups,
          " groups");
  groups.groups = room / width;
  return groups;
}

class FeatureGroups final : public GroupNorm {
 public:
  FeatureGroups(Layers& make, const std::string& name, int64_t features, const ops::NormGroups& groups, Place place)
      : groups_(groups_of_rank(make, name, features, groups, place)),
        weight_(make.vector(name + ".weight", {features}, {.place = place, .init = Init::ones()})),
        bias_(make.vector(name + ".bias", {features}, {.place = place})) {}
  at::Tensor forward(const at::Tensor& x) override {
    return ops::group_norm(x, weight_->value(), bias_->value(), groups_);
  }

 private:
  ops::NormGroups groups_;  // of this rank
  std::unique_ptr<Vector> weight_, bias_;
};

}  // namespace

std::unique_ptr<GroupNorm> Layers::group_norm(const std::string& name, int64_t features, const ops::NormGroups& groups,
                                              Place place) {
  return std::make_unique<FeatureGroups>(*this, name, features, groups, place);
}

std::unique_ptr<Norm> Layers::rms_norm(const std::string& name, int64_t hidden, const NormOptions& options) {
  return std::make_unique<FeatureNorm>(*this, name, hidden, options, /*centred=*/false);
}

std::unique_ptr<Norm> Layers::layer_norm(const std::string& name, int64_t hidden, const NormOptions& options) {
  return std::make_unique<FeatureNorm>(*this, name, hidden, options, /*centred=*/true);
}

}  // namespace colossal::nn
