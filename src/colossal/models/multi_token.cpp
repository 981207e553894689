#include "colossal/models/multi_token.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/nn/embedding.h"
#include "colossal/nn/expert_choice.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/linear_layers.h"
#include "colossal/nn/loss_head.h"
#include "colossal/nn/norm.h"
#include "colossal/nn/recompute.h"
#include "colossal/nn/running_step.h"
#include "colossal/ops/cross_entropy.h"

namespace colossal::models {
namespace {

std::string ids_ahead(int64_t by) { return concat("ids.", by); }
std::string labels_ahead(int64_t by) { return concat("labels.", by); }

/// Returns x [B, S] with each element `by` places further to the left, and `fill` at the end.
at::Tensor moved_ahead(const at::Tensor& x, int64_t by, int64_t fill) {
  const int64_t missing = std::min(by, x.size(1));
  return at::cat({x.narrow(1, missing, x.size(1) - missing), x.new_full({x.size(0), missing}, fill)}, 1);
}

/// Returns block(x). With Recompute::Block it keeps only x, as the blocks of the model do.
at::Tensor run_extra(const Block::OfOne& block, const at::Tensor& x, nn::ForwardContext step) {
  if (step.recompute != nn::Recompute::Block) return block(x, step);
  const auto choices = std::make_shared<nn::KeptChoices>();
  step.parts.set(nn::BlockChoices{choices});
  const auto is_first = std::make_shared<bool>(true);
  const nn::Nary again = [block, step, choices, is_first](const std::vector<at::Tensor>& inputs) mutable {
    step.is_recomputed = !std::exchange(*is_first, false);
    choices->begin_pass();
    return std::vector<at::Tensor>{block(inputs.at(0), step)};
  };
  return nn::recomputed(again, {x}).at(0);
}

}  // namespace

struct MultiTokenLayers::Layer {
  Layer(const std::string& name, const ModelShape& s, const BlockVariant& variant, nn::Layers& make, Mixtures& mixtures)
      : of_embedding(make_norm(name + ".enorm", variant.norm, s, make)),
        of_hidden(make_norm(name + ".hnorm", variant.norm, s, make)),
        joined(make.dense(name + ".eh_proj", 2 * s.hidden, s.hidden,
                          {.bias = false, .deviation = kDeviation, .segments = {{s.hidden}, {s.hidden}}})),
        block(nn::with_running_step(make_transformer_block(name, s, variant, make, mixtures), make)),
        end(make_norm(name + ".norm", variant.norm, s, make)) {}

  at::Tensor forward(const at::Tensor& hidden, const at::Tensor& embedded, const nn::ForwardContext& step) const {
    const at::Tensor both = at::cat({of_embedding->forward(embedded), of_hidden->forward(hidden)}, -1);
    return run_extra(block, joined->forward(both), step);
  }

  std::unique_ptr<nn::Norm> of_embedding, of_hidden;
  std::unique_ptr<nn::Dense> joined;
  Block::OfOne block;
  std::unique_ptr<nn::Norm> end;
};

MultiTokenLayers::MultiTokenLayers(const ModelShape& s, const MultiTokenOptions& options,
                                   std::shared_ptr<nn::Embedding> embedding, std::shared_ptr<nn::LossHead> head,
                                   nn::Layers& layers, Mixtures& mixtures)
    : embedding_(std::move(embedding)), head_(std::move(head)) {
  for (int64_t k = 0; k < options.layers; ++k)
    layers_.push_back(std::make_shared<const Layer>(concat("head.multi_token.", k), s, options.block(s.layers + k),
                                                    layers, mixtures));
  term_ = layers.reports().add_loss({.name = "multi_token_loss", .weight = options.loss});
  const tensor::MeshCoordinates& coordinates = layers.parameters().coordinates();
  parts_ =
      static_cast<double>(layers.reports().ranks()) / static_cast<double>(coordinates.size(coordinates.row_axes()));
}

at::Tensor MultiTokenLayers::forward(int64_t layer, const at::Tensor& hidden, const nn::ForwardContext& step) const {
  const at::Tensor embedded = embedding_->forward(step.batch->at("ids"), step);
  return layers_.at(static_cast<size_t>(layer))->forward(hidden, embedded, step);
}

at::Tensor MultiTokenLayers::logits(int64_t layer, const at::Tensor& output, const nn::ForwardContext& step) const {
  return head_->logits(layers_.at(static_cast<size_t>(layer))->end->forward(output), step);
}

at::Tensor MultiTokenLayers::with_loss(const at::Tensor& hidden, const nn::ForwardContext& step) const {
  if (!step.training || !step.batch) return hidden;
  nn::ForwardContext extended = step;
  const auto count = static_cast<int64_t>(layers_.size());
  // DistributedModel::ready() has added the fields if it has cut the rows.
  extended.batch = std::make_shared<const tensor::Batch>(with_tokens_ahead(*step.batch, count));
  if (!extended.batch->find(labels_ahead(1)).defined()) return hidden;
  const at::Tensor loss = loss_of(hidden, extended);
  // The sum of a replica is the same on all of its ranks, and each of them makes the gradient of its own part of it.
  // The mean over ranks would divide this gradient by the ranks of the replica, too.
  return step.attach_loss(term_, loss * parts_ - (loss * (parts_ - 1)).detach(), hidden);
}

at::Tensor MultiTokenLayers::loss_of(const at::Tensor& hidden, const nn::ForwardContext& step) const {
  const int64_t in_row = step.cut ? step.cut->tokens() : step.batch->tokens();
  const auto tokens = static_cast<double>(step.batch->rows() * in_row);
  at::Tensor x = hidden, sum;
  for (size_t k = 0; k < layers_.size(); ++k) {
    const auto by = static_cast<int64_t>(k) + 1;
    x = layers_[k]->forward(x, embedding_->forward(step.batch->at(ids_ahead(by)), step), step);
    const at::Tensor loss = head_->loss_sum(layers_[k]->end->forward(x), step.batch->at(labels_ahead(by)), step);
    sum = sum.defined() ? sum + loss : loss;
  }
  return sum / (tokens * static_cast<double>(layers_.size()));
}

tensor::Batch with_tokens_ahead(const tensor::Batch& batch, int64_t count) {
  const at::Tensor ids = batch.find("ids"), positions = batch.find("positions"), labels = batch.find("labels");
  if (count == 0 || !ids.defined() || !positions.defined() || !labels.defined()) return batch;
  if (labels.sizes() != ids.sizes() || batch.find(labels_ahead(1)).defined()) return batch;
  const tensor::Field of_ids = batch.field("ids"), of_labels = batch.field("labels");
  const int64_t ignored = of_labels.ignored.value_or(ops::kIgnoredLabel);
  tensor::Batch longer = batch;
  for (int64_t by = 1; by <= count; ++by) {
    const at::Tensor is_elsewhere = moved_ahead(positions, by, -1).ne(positions + by);
    tensor::Field next = of_ids, label = of_labels;
    next.tensor = moved_ahead(ids, by, 0);
    label.tensor = moved_ahead(labels, by, ignored).masked_fill(is_elsewhere, ignored);
    longer.add(ids_ahead(by), next);
    longer.add(labels_ahead(by), label);
  }
  return longer;
}

}  // namespace colossal::models
