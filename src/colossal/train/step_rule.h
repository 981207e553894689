// The work of one step of a run: by default one batch and one update.
//
//   class TwoUpdates : public train::StepRule {        // each batch is used twice
//     train::StepOutcome step(train::Engine& engine, const NextBatch& next) override {
//       const tensor::Batch batch = next();
//       train::update(engine, batch);
//       return train::update(engine, batch);
//     }
//   };
//
//   program.objectives.at("regression").step_rule = [](train::Engine&, const run::Config&, const run::OwnTables&) {
//     return std::make_unique<TwoUpdates>();
//   };
#pragma once
#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <vector>

#include "colossal/base/log.h"
#include "colossal/base/metric.h"
#include "colossal/tensor/batch.h"
#include "colossal/train/step_result.h"

namespace colossal::run {
struct Config;
struct RunData;
}  // namespace colossal::run

namespace colossal::train {

class Engine;

/// A run that is kept in a folder. Its members outlive the rule.
struct StartedRun {
  const Log& log;
  const run::Config& config;
  const run::RunData& data;
};

/// The results of a step, the same on all ranks.
struct StepOutcome {
  double loss = 0;             ///< the metric `loss` of the step
  StepResult result{};         ///< result of the last update
  std::vector<Metric> rows{};  ///< further metrics of the step
  /// Tokens that the step computed, over all ranks, for the metrics; none = those of the batches that it took
  /// (run::Objective::tokens)
  std::optional<int64_t> tokens{};
  /// Rows that the model trained, over all ranks, for the metric mfu; none = those of the batches that it took
  std::optional<int64_t> samples{};
};

/// The rule that performs the steps of a run with one objective. All ranks call the members in the same order.
class StepRule {
 public:
  /// Returns this rank's rows of the next training batch. Checkpoints store how many were taken.
  using NextBatch = std::function<tensor::Batch()>;

  virtual ~StepRule() = default;
  /// Called once on every rank before the first step of a run that is kept in a folder, and not for steps that are
  /// measured or recorded. Default: nothing. Collective, as the passes of `engine`. Errors: the same on all ranks.
  virtual void begin(Engine& engine, const StartedRun& run);
  /// Performs one step, with at least one update of `engine`. training.steps, the learning rate and the intervals of
  /// [training] count updates (Engine::steps_done).
  virtual StepOutcome step(Engine& engine, const NextBatch& next) = 0;
  /// Returns a batch with the fields that step() adds, such as results of other models. Held-out batches get them
  /// before an evaluation. Default: none. Collective, as the passes of `engine`.
  virtual tensor::Batch with_fields(Engine& engine, const tensor::Batch& batch);
  /// Returns the rule's state, which a checkpoint stores in addition to the engine and the position in the data. It
  /// must be the same on all ranks. Null: no state.
  virtual nlohmann::json state() const;
  /// Restores the state from a checkpoint; null if the checkpoint has none. Called before the engine has its weights
  /// and steps. It must not communicate, because the ranks compare their errors after it.
  virtual void restore(const nlohmann::json& state);
  /// Returns the bytes of keys and values that this rank holds while step() draws answers from the main model, beside
  /// the panels of that model (Engine::pack()); 0 = it draws none. Plans read it.
  virtual int64_t cache_bytes() const { return 0; }
};

/// Makes one update from one batch with the objective of the run.
StepOutcome update(Engine& engine, const tensor::Batch& batch);

/// The default rule: one batch and one update.
class OneUpdate : public StepRule {
 public:
  StepOutcome step(Engine& engine, const NextBatch& next) override;
};

}  // namespace colossal::train
