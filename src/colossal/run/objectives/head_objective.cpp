#include "colossal/run/objectives/head_objective.h"

#include <ATen/ATen.h>

#include <cmath>

#include "colossal/base/error.h"
#include "colossal/base/known_metrics.h"
#include "colossal/models/task_batch.h"
#include "colossal/nn/forward_context.h"
#include "colossal/tensor/host_value.h"

namespace colossal::run {

tensor::Batch HeadObjective::example(int64_t rows) const {
  return models::example_batch(shape_, rows, config_.data.sequence);
}

std::string HeadObjective::missing_from(const models::Model& model) const { return model.head ? "" : "a head"; }

int64_t HeadObjective::tokens(const tensor::Batch& batch, const models::ModelShape& shape) const {
  return shape.task().reads_text() ? batch.rows() * config_.data.sequence : Objective::tokens(batch, shape);
}

void HeadObjective::check(const tensor::Batch& batch) const { models::check_batch(shape_, batch); }

double HeadObjective::weight(const tensor::Batch& batch) const {
  return tensor::host_value(models::counted_labels(batch));
}

at::Tensor HeadObjective::loss(const models::Model& model, const models::States& end,
                               const nn::ForwardContext& step) const {
  return models::loss_sum(model, end.at(0), step);
}

std::vector<Metric> HeadObjective::metrics(const std::vector<double>& sums, double weight) const {
  const double loss = mean_of(sums.at(0), weight);
  return {known_metric("eval_loss", loss), known_metric("perplexity", std::exp(loss))};
}

at::Tensor CountingObjective::evaluate(const models::Model& model, const models::States& end,
                                       const nn::ForwardContext& step) const {
  const at::Tensor lost = loss(model, end, step), found = models::found_labels(model, end.at(0), step);
  return at::stack({lost.to(at::kDouble), found.to(at::kDouble)});
}

std::vector<Metric> CountingObjective::metrics(const std::vector<double>& sums, double weight) const {
  return {known_metric("eval_loss", mean_of(sums.at(0), weight)),
          known_metric("accuracy", mean_of(sums.at(1), weight))};
}

void check_head(bool fits, const char* objective, const char* wanted, const models::ModelShape& shape) {
  require(fits, "objective", "objective ", objective, " needs a model whose head ", wanted, ": got a ",
          shape.architecture->name, ", which ", shape.task().purpose(), "; name another model or objective");
}

}  // namespace colossal::run
