// The answers on which the steps of a run train: prompts from the data, drawn now or steps ahead, with their scores.
//
//   StepRollouts rollouts(objective, config, reward, value);
//   rollouts.begin(engine, run, make_scorer, model_scores);
//   rollouts.restore(state);                                                // if the run continues
//   const StepRollouts::Drawn drawn = rollouts.of_step(engine, next, 12);   // and make updates with drawn.groups
//   rollouts.updated(loss, result);                                         // after each update
//   rollouts.close(12);
#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "colossal/align/rollouts/rollout_engine.h"
#include "colossal/data/chats/prompts.h"
#include "colossal/run/config.h"
#include "colossal/run/objectives/alignment/policy_objective.h"
#include "colossal/run/objectives/alignment/scorer_keys.h"
#include "colossal/run/objectives/alignment/value_keys.h"
#include "colossal/train/engine.h"
#include "colossal/train/step_rule.h"

namespace colossal::align {

/// Draws the answers of each step with the weights of rollout.ahead steps before it, and waits for their scores. All
/// ranks call the members in the same order.
///
/// Draws:         depend on (seed, step, prompt, number) and on the weights. A digest names the weights: that of their
///                values when the run starts, then that of the loss, gradient norm and learning rate of each update.
/// Prompts:       are taken in the order of the data. Those that a step has read and not used are for the next.
/// Checkpoints:   state() has the digest, the prompts that were not used, and the answers that wait for their step.
/// Communication: that of RolloutEngine. The first draw of a run that was not resumed also reads all weights, and
///                gathers a digest of each rank.
/// Errors:        those of RolloutEngine and of data::BatchReader::next().
class StepRollouts {
 public:
  using NextBatch = train::StepRule::NextBatch;
  /// The groups of a step with their scores, and the seconds that they took.
  struct Drawn {
    std::vector<RolloutGroup> groups{};
    double draw_seconds = 0, score_seconds = 0;  ///< waves of alignment.dynamic count as drawing
  };

  /// `objective` must outlive this object.
  StepRollouts(const run::PolicyObjective& objective, const run::Config& config, const run::RewardKeys& reward,
               const run::ValueKeys& value);

  /// Starts the rollouts of a run that is kept in a folder. `make_scorer` is called on rank 0; `model_scores` is
  /// RolloutRun::model_scores. Collective. `engine` and `run` must outlive this object.
  void begin(train::Engine& engine, const train::StartedRun& run,
             const std::function<std::unique_ptr<Scorer>()>& make_scorer,
             std::function<std::vector<double>(const std::vector<RolloutGroup>&)> model_scores);
  /// Returns false in steps that are measured or recorded, which draw nothing.
  bool has_begun() const { return rollouts_ != nullptr; }

  /// Returns the answers of step `step`, which is the number of updates made after it, and draws those of steps ahead.
  Drawn of_step(train::Engine& engine, const NextBatch& next, int64_t step);
  /// Adds an update to the digest of the weights.
  void updated(double loss, const train::StepResult& result);
  /// Lets the scorer work without waiting. It does not communicate.
  void poll();
  /// Forgets a step that has trained, and removes records that rollout.keep_steps does not keep.
  void close(int64_t step);

  nlohmann::json state() const;
  /// Restores state(). Errors: other numbers of prompts and answers than those that were drawn ahead; bytes that are
  /// not those of state().
  void restore(const nlohmann::json& state);

 private:
  /// A step whose answers were drawn and not trained yet.
  struct Pending {
    std::string draws{};                 ///< RolloutDigests::draws
    std::string text{};                  ///< the bytes of its groups in base64; empty for the step that trains now
    std::vector<RolloutGroup> groups{};  ///< the groups of a checkpoint, until the rollouts continue with them
  };

  void check_sizes(const std::vector<RolloutGroup>& groups, const std::string& step) const;
  RolloutDigests digests_of(const std::string& draws) const;
  std::string draws_now(train::Engine& engine);
  std::vector<RolloutPrompt> take_prompts(const NextBatch& next, int64_t first, int64_t count);
  void resume_pending();
  void draw_up_to(train::Engine& engine, const NextBatch& next, int64_t step);
  void replace_groups(train::Engine& engine, const NextBatch& next, int64_t step, std::vector<RolloutGroup>& groups);

  const run::PolicyObjective& objective_;
  run::RewardKeys reward_;
  int64_t seed_, steps_;    // training.seed and training.steps
  std::string arithmetic_;  // names what decides on the last bits of draws
  std::string optimizer_;   // digest of the keys by which updates follow from gradients
  SamplerOptions sampler_;
  std::unique_ptr<RolloutEngine> rollouts_;  // null = steps are measured or recorded
  std::string weights_;                      // digest of the history of the weights; empty = not known yet
  std::deque<data::PromptOfBatch> spare_;    // prompts that were read and not used
  std::map<int64_t, Pending> pending_;       // steps that were drawn
  bool is_resumed_ = false;                  // true: pending_ is that of a checkpoint
};

}  // namespace colossal::align
