#include "colossal/nn/shared_dropout.h"

#include <ATen/ATen.h>

#include "colossal/base/error.h"
#include "colossal/base/seed.h"
#include "colossal/nn/canonical.h"
#include "colossal/nn/dropout.h"

namespace colossal::nn {

SharedDropout::SharedDropout(Layers& make, const std::string& name, double probability, AttendedAxis shared)
    : ranks_(make.axial_ranks()),
      tokens_(make.own_tokens()),
      site_(derive_seed(0, name)),
      probability_(probability),
      dim_(shared == AttendedAxis::First ? 1 : 2) {
  require(probability >= 0 && probability < 1, "model", "dropout must be in [0, 1): got ", probability, " for ", name);
}

bool SharedDropout::drops(const ForwardContext& step) const {
  return step.training && probability_ > 0 && !is_canonical(step);
}

at::Tensor SharedDropout::forward(const at::Tensor& x, const ForwardContext& step, int64_t whole) const {
  if (!drops(step)) return x;
  const int64_t held = x.size(3 - dim_), features = x.size(3);
  Tokens all = tokens_(step);
  all.sequence = {};  // the axes of x are not those of a sequence
  TokenPlaces places(step, all, x.size(0), whole);
  places.runs = {held == whole ? Range{0, whole} : ranks_->own(whole)};
  const at::Tensor ones = at::ones({x.size(0), held, features}, x.options().requires_grad(false));
  const at::Tensor mask =
      dropped(ones, probability_, derive_seed(step.dropout_seed, site_), places, {0, features}, features);
  return x * mask.unsqueeze(dim_);
}

}  // namespace colossal::nn
