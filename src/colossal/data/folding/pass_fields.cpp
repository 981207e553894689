#include "colossal/data/folding/pass_fields.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/data/folding/feature_fields.h"

namespace colossal::data {

int64_t passes_of(const tensor::Batch& batch) {
  std::optional<int64_t> passes;
  for (const FeatureField& one : feature_fields()) {
    const at::Tensor field = batch.find(one.name);
    if (!one.has_passes() || !field.defined()) continue;
    const auto dims = static_cast<int64_t>(one.dims.size() + one.features.size());  // rows in place of the passes
    const int64_t more = field.dim() - dims;
    require(more == 0 || (more == 1 && field.size(1) > 0), "data", one.name, " must have ", dims,
            " dimensions, or one more of passes: got sizes ", field.sizes());
    const int64_t here = more == 0 ? 0 : field.size(1);
    require(passes.value_or(here) == here, "data", one.name, " must have as many passes as the fields before it: got ",
            here, ", and not ", passes.value_or(here));
    passes = here;
  }
  return passes.value_or(0);
}

tensor::Batch batch_of_pass(const tensor::Batch& batch, int64_t pass) {
  const int64_t passes = passes_of(batch);
  if (passes == 0) return batch;
  require(pass >= 0, "data", "a pass must be at least 0: got ", pass);
  tensor::Batch result = batch;
  for (const FeatureField& one : feature_fields()) {
    if (!one.has_passes() || !batch.find(one.name).defined()) continue;
    const tensor::Field& field = batch.field(one.name);
    std::vector<tensor::Dim> dims = field.dims;
    dims.erase(dims.begin() + 1);
    result = result.with(one.name, {field.tensor.select(1, std::min(pass, passes - 1)), std::move(dims), field.ignored,
                                    field.stays_whole});
  }
  return result;
}

}  // namespace colossal::data
