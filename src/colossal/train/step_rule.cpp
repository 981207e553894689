#include "colossal/train/step_rule.h"

#include "colossal/base/json.h"
#include "colossal/train/engine.h"

namespace colossal::train {

void StepRule::begin(Engine&, const StartedRun&) {}

tensor::Batch StepRule::with_fields(Engine&, const tensor::Batch& batch) { return batch; }

nlohmann::json StepRule::state() const { return nullptr; }

void StepRule::restore(const nlohmann::json&) {}

StepOutcome update(Engine& engine, const tensor::Batch& batch) {
  engine.zero_grad();
  const double loss = engine.train_step(batch);
  return {.loss = loss, .result = engine.step()};
}

StepOutcome OneUpdate::step(Engine& engine, const NextBatch& next) { return update(engine, next()); }

}  // namespace colossal::train
