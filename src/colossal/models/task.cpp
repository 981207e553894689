#include "colossal/models/task.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "colossal/base/error.h"
#include "colossal/ops/cross_entropy.h"

namespace colossal::models {
namespace {

void check_tokens(const ModelShape& s, const at::Tensor& ids) {
  require(ids.dim() == 2, "data", "token ids must be [B, S]: got ", ids.sizes());
  require(ids.size(1) <= s.positions, "model", "the sequence must not be longer than the model's positions: got ",
          ids.size(1), " tokens, ", s.positions, " positions; lower data.sequence or raise model.positions");
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

const char* Task::purpose() const {
  if (reads == Reads::Images) return "classifies images";
  if (objective == Objective::Target) return "generates a target text from a source text";
  return objective == Objective::NextToken     ? "continues text"
         : objective == Objective::MaskedToken ? "fills in masked tokens"
                                               : "classifies text";
}

void check_batch(const ModelShape& s, const at::Tensor& inputs, const at::Tensor& labels) {
  const Task task = s.task();
  if (task.reads == Reads::Images)
    check_images(task, inputs);
  else
    check_tokens(s, inputs);
  if (task.objective == Objective::Class) return check_classes(task, labels, inputs.size(0));
  if (task.objective == Objective::Target)
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

}  // namespace colossal::models
