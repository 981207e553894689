// The batch of a model's task: its sizes, its check, and the sums that training and evaluation compute from it.
//
//   models::check_batch(model.shape, batch);                                  // before any communication
//   const double labels = tensor::host_value(models::counted_labels(batch));
//   at::Tensor loss = models::loss_sum(model, hidden, step) / labels;         // step.batch is the batch
//
// Fields: `ids` [B, S] or `images` [B, C, side, side] (models::Reads), and `labels` (models::Task::labels_of).
#pragma once
#include "colossal/models/model.h"
#include "colossal/models/task.h"
#include "colossal/nn/forward_context.h"

namespace colossal::models {

/// Returns a batch on meta with the fields of the task; it has sizes but no values. Texts have `sequence` tokens, or
/// the minimum that the model needs if that is more.
tensor::Batch example_batch(const ModelShape& shape, int64_t rows, int64_t sequence);

/// Checks a batch against the model. Every batch passes this check before layers read it, before any communication.
/// Errors ("data"): a missing field; ids or labels outside the vocabulary; images of other sizes; labels that are not
///                  classes.
/// Errors ("model"): more tokens than positions.
void check_batch(const ModelShape& shape, const tensor::Batch& batch);

/// Returns the number of labels that count (are not ignored), an int64 scalar on the device of the labels.
at::Tensor counted_labels(const tensor::Batch& batch);

/// Returns the sum of the losses of step.batch, from the head's input: nn::LossHead::loss_sum of its labels. Errors: as
/// head_of().
at::Tensor loss_sum(const Model& model, const at::Tensor& hidden, const nn::ForwardContext& step);
/// Returns the number of labels of step.batch that the model finds most probable: nn::LossHead::found. Errors: as
/// head_of().
at::Tensor found_labels(const Model& model, const at::Tensor& hidden, const nn::ForwardContext& step);

}  // namespace colossal::models
