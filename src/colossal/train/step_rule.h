// What one step of a run does: by default one batch and one update.
//
//   class TwoUpdates : public train::StepRule {        // each batch is used twice
//     train::StepOutcome step(train::Engine& engine, const NextBatch& next) override {
//       const tensor::Batch batch = next();
//       train::update(engine, batch);
//       return train::update(engine, batch);
//     }
//   };
//
//   options.step_rules["regression"] = [](train::Engine&) { return std::make_unique<TwoUpdates>(); };
#pragma once
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "colossal/base/metric.h"
#include "colossal/tensor/batch.h"
#include "colossal/train/step_result.h"

namespace colossal::train {

class Engine;

/// What a step has done. The same on all ranks.
struct StepOutcome {
  double loss = 0;             ///< the metric `loss` of the step
  StepResult result{};         ///< of the last update
  std::vector<Metric> rows{};  ///< further metrics of the step
};

/// The steps of a run with one objective. All ranks call the members in the same order.
class StepRule {
 public:
  /// Returns this rank's rows of the next training batch. A checkpoint stores how many were taken.
  using NextBatch = std::function<tensor::Batch()>;

  virtual ~StepRule() = default;
  /// Makes one step, with one update of `engine` or more. training.steps, the learning rate and the intervals of
  /// [training] count updates (Engine::steps_done).
  virtual StepOutcome step(Engine& engine, const NextBatch& next) = 0;
  /// What a checkpoint keeps in addition to the engine and the position in the data, the same on all ranks. Null: none.
  virtual nlohmann::json state() const;
  /// Goes on from the state of a checkpoint; null if the checkpoint has none. Called before the engine has its weights
  /// and steps. It must not communicate: ranks compare their errors behind it.
  virtual void restore(const nlohmann::json& state);
};

/// Makes one update by one batch with the objective of the run.
StepOutcome update(Engine& engine, const tensor::Batch& batch);

/// One batch and one update.
class OneUpdate : public StepRule {
 public:
  StepOutcome step(Engine& engine, const NextBatch& next) override;
};

}  // namespace colossal::train
