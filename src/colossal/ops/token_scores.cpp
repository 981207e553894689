#include "colossal/ops/token_scores.h"

#include <ATen/ATen.h>

#include <cmath>

#include "colossal/base/error.h"
#include "colossal/ops/dispatch.h"
#include "colossal/ops/projection.h"

namespace colossal::ops {

void check_scores(const ScoreOptions& options) {
  require(options.temperature > 0 && std::isfinite(options.temperature), "token_scores",
          "the temperature must be above 0: got ", options.temperature, "; 1 leaves the logits as they are");
}

TokenScores token_scores(const at::Tensor& logits, const at::Tensor& labels, const ScoreOptions& options) {
  check_scores(options);
  const at::Tensor all = at::log_softmax(logits.to(wide_type(logits)) / options.temperature, -1),
                   ignored = labels.eq(kIgnoredLabel);
  const at::Tensor own = all.gather(-1, labels.masked_fill(ignored, 0).unsqueeze(-1)).squeeze(-1);
  TokenScores scores{own.masked_fill(ignored, 0), {}};
  if (options.entropy) scores.entropies = -(all.exp() * all).sum(-1).masked_fill(ignored, 0);
  return scores;
}

}  // namespace colossal::ops
