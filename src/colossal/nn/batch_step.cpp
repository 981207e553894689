#include "colossal/nn/batch_step.h"

#include <ATen/ATen.h>

#include <utility>

#include "colossal/nn/forward_context.h"
#include "colossal/nn/tokens.h"
#include "colossal/ops/attention/mask.h"
#include "colossal/tensor/device_meant.h"

namespace colossal::nn {

using tensor::Dim;

std::shared_ptr<const ops::DocumentRuns> BatchDocuments::runs(const Tokens& tokens, at::Device device) {
  if (!tensor::is_accelerator(device) || !documents_.is_cpu()) return nullptr;
  if (!runs_ || tokens != tokens_) {
    runs_ = std::make_shared<const ops::DocumentRuns>(ops::document_runs(tokens.of(documents_), device));
    tokens_ = tokens;
  }
  return runs_;
}

ForwardContext step_of(tensor::Batch micro_batch, ForwardContext step) {
  step.positions = micro_batch.find("positions");
  step.documents = micro_batch.find("documents");
  step.known_documents = step.documents.defined() ? std::make_shared<BatchDocuments>(step.documents) : nullptr;
  step.batch = std::make_shared<const tensor::Batch>(std::move(micro_batch));
  return step;
}

tensor::Batch token_batch(at::Tensor ids, at::Tensor positions) {
  tensor::Batch batch;
  batch.add("ids", {std::move(ids), {Dim::Row, Dim::Token}});
  if (positions.defined()) batch.add("positions", {std::move(positions), {Dim::Row, Dim::Token}});
  return batch;
}

}  // namespace colossal::nn
