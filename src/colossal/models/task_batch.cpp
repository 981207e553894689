#include "colossal/models/task_batch.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "colossal/base/error.h"
#include "colossal/nn/forward_context.h"
#include "colossal/ops/cross_entropy.h"

namespace colossal::models {
namespace {

using tensor::Dim;

constexpr char kIds[] = "ids", kImages[] = "images", kLabels[] = "labels";

/// `positions`: of the tokens; a row may be longer than its texts. Undefined = 0, 1, ...
void check_tokens(const ModelShape& s, const at::Tensor& ids, const at::Tensor& positions) {
  require(ids.dim() == 2, "data", "token ids must be [B, S]: got ", ids.sizes());
  require(s.positions == 0 || ids.size(1) <= s.positions ||
              (positions.defined() && positions.max().item<int64_t>() < s.positions),
          "model", "the sequence must not be longer than the model's positions: got ", ids.size(1), " tokens, ",
          s.positions, " positions; lower data.sequence or raise model.positions");
  const int64_t least = ids.min().item<int64_t>(), most = ids.max().item<int64_t>();
  require(least >= 0 && most < s.vocabulary, "data", "token ids must lie in the model's vocabulary of ", s.vocabulary,
          ": got ", least < 0 ? least : most);
}

void check_images(const Task& task, const at::Tensor& images) {
  const int64_t side = task.side;
  require(images.dim() == 4 && images.size(1) == task.channels && images.size(2) == side && images.size(3) == side,
          "data", "images must be [B, ", task.channels, ", ", side, ", ", side, "] for this model: got ",
          images.sizes(), "; change model.channels and model.side");
}

void check_classes(const Task& task, const at::Tensor& labels, int64_t samples) {
  require(labels.dim() == 2 && labels.size(0) == samples && labels.size(1) == 1, "data",
          "labels must be [B, 1], one per sample: got ", labels.sizes(), " for ", samples, " samples");
  const int64_t most = labels.max().item<int64_t>();
  const bool inside = labels.ge(0).logical_or(labels.eq(ops::kIgnoredLabel)).all().item<bool>();
  require(inside && most < task.classes, "data", "labels must be classes of the model, which has ", task.classes,
          ": got ", inside ? most : labels.min().item<int64_t>());
}

}  // namespace

tensor::Batch example_batch(const ModelShape& s, int64_t rows, int64_t sequence) {
  const Task task = s.task();
  const auto ids = at::TensorOptions().dtype(at::kLong).device(at::kMeta);
  tensor::Batch batch;
  if (task.answers())  // otherwise encoder or decoder would have no tokens
    sequence = std::max({sequence, int64_t{2}, task.source_tokens + 1});
  if (task.reads == Reads::Images)
    batch.add(kImages, {at::empty({rows, task.channels, task.side, task.side}, at::TensorOptions().device(at::kMeta)),
                        {Dim::Row, Dim::Other, Dim::Other, Dim::Other}});
  else
    batch.add(kIds, {at::empty({rows, sequence}, ids), {Dim::Row, Dim::Token}});
  batch.add(kLabels, {at::empty({rows, task.labels_of(sequence)}, ids),
                      {Dim::Row, task.classes > 0 ? Dim::Other : Dim::Token},
                      ops::kIgnoredLabel});
  if (batch.has_tokens()) batch.add("positions", {at::empty({rows, sequence}, ids), {Dim::Row, Dim::Token}});
  return batch;
}

void check_batch(const ModelShape& s, const tensor::Batch& batch) {
  const Task task = s.task();
  const at::Tensor &inputs = batch.at(task.reads == Reads::Images ? kImages : kIds), &labels = batch.at(kLabels);
  if (task.reads == Reads::Images)
    check_images(task, inputs);
  else
    check_tokens(s, inputs, batch.find("positions"));
  if (task.classes > 0) return check_classes(task, labels, inputs.size(0));
  if (task.answers())
    require(labels.dim() == 2 && labels.size(0) == inputs.size(0) && labels.size(1) > 0 &&
                labels.size(1) == task.labels_of(inputs.size(1)),
            "data", "labels must be [B, T], one for each token after the source: got ", labels.sizes(), " for rows of ",
            inputs.size(1), " tokens, ", task.source_of(inputs.size(1)),
            " of them source tokens; set model.source_tokens below data.sequence");
  else
    require(labels.sizes() == inputs.sizes(), "data", "labels must be [B, S] like the ids: got ", labels.sizes(),
            " and ", inputs.sizes());
  const int64_t label = labels.max().item<int64_t>();
  require(label < s.vocabulary, "data", "token ids must lie in the model's vocabulary of ", s.vocabulary, ": got ",
          label);
}

at::Tensor counted_labels(const tensor::Batch& batch) {
  const tensor::Field& labels = batch.field(kLabels);
  return (labels.tensor != labels.ignored.value_or(ops::kIgnoredLabel)).sum();
}

at::Tensor loss_sum(const Model& model, const at::Tensor& hidden, const nn::ForwardContext& step) {
  return head_of(model).loss_sum(hidden, step.batch->at(kLabels), step);
}

at::Tensor found_labels(const Model& model, const at::Tensor& hidden, const nn::ForwardContext& step) {
  return head_of(model).found(hidden, step.batch->at(kLabels), step);
}

}  // namespace colossal::models
