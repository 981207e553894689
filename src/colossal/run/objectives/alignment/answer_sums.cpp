#include "colossal/run/objectives/alignment/answer_sums.h"

#include <ATen/ATen.h>

#include <vector>

#include "colossal/base/error.h"
#include "colossal/nn/loss_head.h"
#include "colossal/ops/cross_entropy.h"

namespace colossal::run {

at::Tensor answer_sums(const models::Model& model, const models::States& end, const nn::ForwardContext& step,
                       int64_t texts) {
  at::Tensor labels = step.batch->at("labels"), documents = step.documents;
  if (documents.defined()) documents = documents.to(end.at(0).device(), /*non_blocking=*/true);
  // The head skips labels of later texts, unless this rank has only some labels of a row, and all documents.
  if (documents.defined() && documents.sizes() == labels.sizes())
    labels = labels.masked_fill(documents >= texts, ops::kIgnoredLabel);
  const at::Tensor scores = models::head_of(model).log_probabilities(end.at(0), labels, step);
  if (!documents.defined()) documents = at::zeros(scores.sizes(), scores.options().dtype(at::kLong));
  // A sum for each text, and not one scatter, whose order on accelerators differs from run to run.
  std::vector<at::Tensor> sums;
  for (int64_t text = 0; text < texts; ++text) sums.push_back(scores.masked_fill(documents != text, 0).sum(1));
  return at::stack(sums, 1);
}

at::Tensor answer_lengths(const tensor::Batch& batch, int64_t texts) {
  const at::Tensor& lengths = batch.at("answer_lengths");
  require(lengths.dim() == 2 && lengths.size(1) >= texts, "data", "answer_lengths must be [B, ", texts,
          "], one for each text of a row: got ", lengths.sizes());
  return lengths.narrow(1, 0, texts).clamp_min(1);
}

}  // namespace colossal::run
