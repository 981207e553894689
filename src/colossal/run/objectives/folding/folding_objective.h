// The objective of models that fold proteins: drawn folds or chains, the losses of a pass, and the step's metrics.
//
//   const auto* folding = dynamic_cast<const run::FoldingObjective*>(&engine.objective());
//   folding->keys().passes                     // train: how often the model runs on a chain
//
// The fields of its samples have the passes of data/folding/pass_fields.h, those of example() are of one pass. The
// recycled fields are those of fold::make_recycling_rule(): samples lack them.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "colossal/data/folding/folding_rows.h"
#include "colossal/models/folding/folding_model.h"
#include "colossal/run/objective.h"
#include "colossal/run/objectives/folding/folding_keys.h"
#include "colossal/run/objectives/folding/folding_terms.h"

namespace colossal::run {

/// The loss of a batch and the sums of a micro-batch.
struct MeasuredFolds {
  at::Tensor loss;  ///< the sum of the losses of its chains
  at::Tensor sums;  ///< [2] fp64 or fp32: of fape and of lddt_ca; without a gradient
};

/// The objective. A row is a chain, or what is cut out of it.
class FoldingObjective final : public Objective {
 public:
  /// Errors ("fold"): a model that folds nothing. ("folding"): no term with a weight above 0; clip_sample with a
  /// pipeline.
  FoldingObjective(const Config& config, const OwnTables& tables, const models::ModelShape& shape);

  const FoldingKeys& keys() const { return keys_; }

  /// Opens drawn folds or, at another path than "builtin-folds", real chains. Errors: data::open_chains().
  OpenedData open(const DataRequest& request) const override;
  tensor::Batch example(int64_t rows) const override;
  /// Returns the recycled fields.
  std::vector<std::string> added_fields() const override;
  /// Returns the example of one pass, with recycled fields of its sizes.
  tensor::Batch with_added(tensor::Batch example) const override;
  std::string missing_from(const models::Model& model) const override;
  void check(const tensor::Batch& batch) const override;
  /// Returns the residues of all rows, padded ones included.
  int64_t tokens(const tensor::Batch& batch, const models::ModelShape& shape) const override;
  /// Returns the number of rows that count.
  double weight(const tensor::Batch& batch) const override;
  /// Returns the loss and the sums of fape and lddt_ca of a micro-batch.
  MeasuredFolds measure(const models::Model& model, const models::States& end, const nn::ForwardContext& step) const;
  at::Tensor loss(const models::Model& model, const models::States& end, const nn::ForwardContext& step) const override;
  int64_t sums() const override { return 2; }
  at::Tensor evaluate(const models::Model& model, const models::States& end,
                      const nn::ForwardContext& step) const override;
  /// Returns eval_loss and eval_fape.
  std::vector<Metric> metrics(const std::vector<double>& sums, double weight) const override;
  /// Returns the metrics of a step from the sums and the weight over all ranks.
  std::vector<Metric> step_metrics(const std::vector<double>& sums, double weight) const;

 private:
  data::FoldingRowSizes row_sizes(int64_t passes) const;
  OpenedData open_real_chains(const Config& config) const;

  FoldingKeys keys_;
  models::ModelShape shape_;
  models::FoldingSizes sizes_;
};

}  // namespace colossal::run
