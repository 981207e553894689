// The batch of a model's task: its shapes, its check, and the sums that training and evaluation take of it.
//
//   models::check_batch(model.shape, batch);                                  // before any communication
//   const double labels = tensor::host_value(models::counted_labels(batch));
//   at::Tensor loss = models::loss_sum(model, hidden, step) / labels;         // step.batch is the batch
//
// Fields: `ids` [B, S] or `images` [B, C, side, side] (models::Reads), and `labels` (models::Task::labels_of).
#pragma once
#include "colossal/models/model.h"
#include "colossal/models/task.h"

namespace colossal::models {

/// A batch on meta with the fields of the task, which shows sizes alone. Texts have `sequence` tokens, and at least
/// those that the model needs.
tensor::Batch example_batch(const ModelShape& shape, int64_t rows, int64_t sequence);

/// Errors, of a batch that the model does not have: a field that is not there, ids or labels outside the vocabulary,
/// images of other sizes, labels that are no classes ("data"), more tokens than positions ("model"). What the layers
/// are given was checked by this before any communication.
void check_batch(const ModelShape& shape, const tensor::Batch& batch);

/// Scalar, int64, on the device of the labels: how many of them count.
at::Tensor counted_labels(const tensor::Batch& batch);

/// The sum of the losses of step.batch, from the head's input: nn::LossHead::loss_sum of its labels.
at::Tensor loss_sum(const Model& model, const at::Tensor& hidden, const nn::Step& step);
/// The number of labels of step.batch that the model finds most probable: nn::LossHead::found.
at::Tensor found_labels(const Model& model, const at::Tensor& hidden, const nn::Step& step);

}  // namespace colossal::models
