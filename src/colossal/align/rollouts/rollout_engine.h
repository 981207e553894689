// Draws the answers of steps, stores them, and has them scored, over all ranks of a run.
//
//   RolloutEngine rollouts(engine, options, folder, log, tokenizer, std::move(scorer));
//   rollouts.draw(12, prompts, digests);                              // answers of step 12
//   const std::vector<RolloutGroup> groups = rollouts.finish(12);     // with their scores
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "colossal/align/rewards/scorer.h"
#include "colossal/align/rollouts/records.h"
#include "colossal/align/rollouts/rollout_groups.h"
#include "colossal/align/rollouts/sampler.h"
#include "colossal/base/error.h"
#include "colossal/base/log.h"
#include "colossal/text/tokenizer.h"
#include "colossal/train/engine.h"

namespace colossal::align {

/// The parts of a RolloutEngine that a run makes. All ranks have the same values, but the scorer is on rank 0 alone.
struct RolloutRun {
  SamplerOptions sampler{};
  int64_t answers = 1;   ///< number of answers to each prompt
  std::string folder{};  ///< RunFolder::rollouts()
  const text::Tokenizer* tokenizer = nullptr;
  const Log* log = nullptr;
  std::unique_ptr<Scorer> scorer{};  ///< null = a model alone scores, or this is another rank than 0
  /// Returns a score of each answer by a model, in order; collective. Null = no model scores
  std::function<std::vector<double>(const std::vector<RolloutGroup>&)> model_scores{};
  double model_weight = 1;  ///< weight of these scores in the sum
};

/// Draws, stores and scores the answers of steps. Several steps may be drawn before the first is finished.
///
/// Work:          answers of prompt i are drawn by replica i mod "data"; rank 0 alone talks to the scorer.
/// Results:       do not depend on layouts, on what the folder has, or on the order in which scores arrive.
/// Kills:         answers and scores that the folder has are not drawn or computed again.
/// Communication: draw(): that of Sampler::draw(), a broadcast of the stored records from rank 0, an all_gather of the
///                answers over "data", and checks of 32 bytes. finish(): a broadcast of the scores, and that of
///                model_scores. While rank 0 waits for scores the other ranks wait under comm::World::busy().
/// Errors, the same on all ranks: those of Sampler, RolloutRecords and Scorer. The next finish() throws an error of a
///                scorer, of any step. The scores before it are stored, also those to which a model adds its own.
/// Parts:         that of model_scores is "model"; such a part of the scorer is then "other_model".
class RolloutEngine {
 public:
  /// `engine` must outlive this object.
  RolloutEngine(train::Engine& engine, RolloutRun run);
  ~RolloutEngine();

  /// Draws the answers of a step to prompts, of which the folder has none, and gives them to the scorer. May be called
  /// several times for a step, with further prompts. All calls of a step have the same digests.
  void draw(int64_t step, const std::vector<RolloutPrompt>& prompts, const RolloutDigests& digests);
  /// Continues with groups that were drawn by an earlier start of the run, from a checkpoint.
  void restore(int64_t step, std::vector<RolloutGroup> groups, const RolloutDigests& digests);
  /// Lets the scorer work on answers, of any step, without waiting. It does not communicate, and has no errors.
  void poll() { take(0); }
  /// Waits for the scores of all answers that were drawn for the step, and returns its groups.
  std::vector<RolloutGroup> finish(int64_t step);
  /// Returns the groups of a step as drawn so far, with no scores.
  const std::vector<RolloutGroup>& drawn(int64_t step) const { return steps_.at(step).groups; }
  /// Forgets the step, whose files are complete.
  void close(int64_t step) { steps_.erase(step); }
  /// Removes the files of the steps before `step`.
  void remove_before(int64_t step) const;

 private:
  struct Step {
    std::vector<RolloutGroup> groups{};
    std::optional<RolloutStep> stored{};                       // on ranks that store
    std::map<std::string, Score> arrived{};                    // scores of the scorer by rollout_id(); on rank 0
    std::vector<std::string> asked{};                          // ids that the scorer was given; on rank 0
    std::map<std::pair<int64_t, int64_t>, double> by_model{};  // scores of the model by prompt and number; on rank 0
  };

  bool is_first() const;
  bool stores() const;
  Step& opened(int64_t step, const RolloutDigests& digests);
  std::vector<RolloutGroup> found_groups(Step& step, const std::vector<RolloutPrompt>& prompts);
  void ask_all(int64_t number, Step& step, const std::vector<RolloutGroup>& groups);
  void ask(int64_t number, Step& step, const RolloutGroup& group, const RolloutAnswer& answer);
  void take(double seconds);
  void wait_for(const Step& step);
  void keep(int64_t number, Step& step, int64_t prompt, int64_t answer);
  void set_by_model(int64_t number, Step& step, const std::vector<double>& scores);
  static std::vector<RolloutRecord> scores_of_step(const Step& step);

  train::Engine& engine_;
  RolloutRun run_;
  Sampler sampler_;
  RolloutRecords records_;
  std::map<int64_t, Step> steps_;
  std::optional<Error> fault_;  // of the scorer; on rank 0
};

}  // namespace colossal::align
