#include "colossal/run/objectives/alignment/text_scores.h"

#include <ATen/ATen.h>

#include <vector>

#include "colossal/base/error.h"

namespace colossal::run {

at::Tensor text_scores(const models::Model& model, const models::States& end, const nn::ForwardContext& step,
                       int64_t texts) {
  require(model.shape.outputs() > 0, "model", "scores of texts need a model with a head of outputs: got none");
  const at::Tensor scores = end.at(0).select(2, 0);
  at::Tensor documents = step.documents;
  if (documents.defined())
    documents = documents.to(scores.device(), /*non_blocking=*/true);
  else
    documents = at::zeros(scores.sizes(), scores.options().dtype(at::kLong));
  const int64_t tokens = documents.size(1);
  const at::Tensor before = documents.narrow(1, 0, tokens - 1), after = documents.narrow(1, 1, tokens - 1);
  const at::Tensor goes_on = at::cat({before == after, at::zeros_like(documents.narrow(1, 0, 1), at::kBool)}, 1);
  // A sum of one score and zeros is this score, and its gradient needs no scatter. logical_or() does not run on meta,
  // where steps are recorded, too.
  std::vector<at::Tensor> last;
  for (int64_t text = 0; text < texts; ++text)
    last.push_back(scores.masked_fill((documents != text).bitwise_or(goes_on), 0).sum(1));
  return at::stack(last, 1);
}

}  // namespace colossal::run
