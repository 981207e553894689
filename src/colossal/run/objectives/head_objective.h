// The common base of the library's objectives: labels that the model's own head predicts.
#pragma once
#include "colossal/nn/forward_context.h"
#include "colossal/run/objective.h"

namespace colossal::run {

/// An objective whose field `labels` the head of the model predicts (nn::LossHead). Its loss is the head's loss; its
/// weight is the number of labels that count (are not ignored).
class HeadObjective : public Objective {
 public:
  HeadObjective(const Config& config, models::ModelShape shape) : config_(config), shape_(std::move(shape)) {}

  tensor::Batch example(int64_t rows) const override;
  std::string missing_from(const models::Model& model) const override;
  /// Counts data.sequence tokens a row of text, those of source and target together.
  int64_t tokens(const tensor::Batch& batch, const models::ModelShape& shape) const override;
  void check(const tensor::Batch& batch) const override;
  double weight(const tensor::Batch& batch) const override;
  at::Tensor loss(const models::Model& model, const models::States& end, const nn::ForwardContext& step) const override;
  /// Returns eval_loss and perplexity.
  std::vector<Metric> metrics(const std::vector<double>& sums, double weight) const override;

 protected:
  const Config& config() const { return config_; }
  const models::ModelShape& shape() const { return shape_; }

 private:
  Config config_;
  models::ModelShape shape_;
};

/// A HeadObjective whose evaluation also counts the labels that the head finds most probable.
class CountingObjective : public HeadObjective {
 public:
  using HeadObjective::HeadObjective;
  int64_t sums() const override { return 2; }
  at::Tensor evaluate(const models::Model& model, const models::States& end,
                      const nn::ForwardContext& step) const override;
  /// Returns eval_loss and accuracy.
  std::vector<Metric> metrics(const std::vector<double>& sums, double weight) const override;
};

/// Errors ("objective"): `fits` is false. `wanted` describes a suitable head for the message: "predicts tokens of
///                       text".
void check_head(bool fits, const char* objective, const char* wanted, const models::ModelShape& shape);

}  // namespace colossal::run
