#include "colossal/nn/batch_documents.h"

#include <ATen/ATen.h>

#include "colossal/nn/tokens.h"
#include "colossal/ops/attention/document_runs.h"
#include "colossal/tensor/accelerator.h"

namespace colossal::nn {

std::shared_ptr<const ops::DocumentRuns> BatchDocuments::runs(const Tokens& tokens, at::Device device) {
  if (!tensor::is_accelerator(device) || !documents_.is_cpu()) return nullptr;
  if (!runs_ || tokens != tokens_) {
    runs_ = std::make_shared<const ops::DocumentRuns>(ops::document_runs(tokens.of(documents_), device));
    tokens_ = tokens;
  }
  return runs_;
}

}  // namespace colossal::nn
