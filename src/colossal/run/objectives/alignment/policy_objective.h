// The objective of methods that learn from scores of the model's own answers: GRPO, RLOO, REINFORCE++, PPO.
//
//   const auto& policy = dynamic_cast<const run::PolicyObjective&>(engine.objective());
//   engine.train_step(rows, policy.weight(rows), [&](const auto& model, const auto& end, const auto& step) {
//     return policy.measure(model, end, step).loss;
//   });
//
// The samples of a run are prompts (open_prompts()). The step rule draws answers to them, scores them and makes
// training rows: those of text_batch() with one answer each, and these fields [B, S]. Column t is about token t + 1 of
// the row, which labels[t] names. All have dimensions Row and Other and are fp32 (fp64 in fp64 models) unless noted.
//   answer_counts      bool: true for each token of the answer that is trained
//   old_scores         log-probabilities of the policy before the first update of the step
//   sampled_scores     log-probabilities with which the tokens were drawn
//   reference_scores   log-probabilities of the reference, if the method has one (methods.h)
//   advantages         A
//   old_values         ppo: values before the first update
//   returns            ppo: R, to which the value model is trained
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "colossal/run/objectives/alignment/keys.h"
#include "colossal/run/objectives/alignment/policy_losses.h"
#include "colossal/run/objectives/alignment/rollout_keys.h"
#include "colossal/run/objectives/data_keys.h"
#include "colossal/run/objectives/head_objective.h"
#include "colossal/text/verifiers/verifier.h"

namespace colossal::run {

/// Names of the fields of training rows.
inline constexpr char kAnswerCounts[] = "answer_counts", kOldScores[] = "old_scores",
                      kSampledScores[] = "sampled_scores", kAdvantages[] = "advantages", kOldValues[] = "old_values",
                      kReturns[] = "returns";

/// Ways to compute advantages from scores (align/advantages.h).
enum class AnswerAdvantage {
  Group,        ///< one number per answer, relative to the other answers to its prompt
  LeaveOneOut,  ///< the score less the mean of the other answers
  Returns,      ///< whitened returns of tokens, or whitened scores less the mean of the group (PolicyKeys::baseline)
  Values,       ///< generalized advantage estimates with a value model
};

/// A method, a row of alignment.cpp.
struct PolicyMethod {
  AnswerAdvantage advantage;
  bool kl_in_loss = false;  ///< true: the KL is a term of the loss; false: it lowers the score or the token rewards
  bool has_values = false;  ///< true: a value model is trained
};

/// The objective. Its loss reads the fields above from a micro-batch of training rows.
class PolicyObjective final : public HeadObjective {
 public:
  /// The loss of a micro-batch, and sums without gradients, [kSums] in fp64.
  struct Measured {
    at::Tensor loss, sums;
    at::Tensor difference;  ///< largest |log-probability - sampled_scores| of a counted token, fp64 scalar
  };
  /// Sums: the loss; over counted tokens entropies, clipped tokens, their number, losses of a head of values.
  static constexpr int64_t kSums = 5;

  /// Errors ("objective"): a model that does not continue text. ("alignment", "rollout", "training", "data"): keys out
  /// of range or without effect.
  PolicyObjective(const Config& config, const OwnTables& tables, const models::ModelShape& shape, PolicyMethod method);

  /// Returns loss and sums of step.batch. The loss of a head of values on the policy is a mean over tokens:
  /// `value_scale` is weight() of the rows of the global batch of an update, divided by the number of tokens that count
  /// in them. It is 1 with alignment.mean = "token". Communication: that of scores() and token_values().
  Measured measure(const models::Model& model, const models::States& end, const nn::ForwardContext& step,
                   double value_scale = 1) const;
  /// Returns the log-probability of each label at rollout.temperature, [B, S], 0 where there is none. Communication:
  /// that of nn::LossHead::scores().
  at::Tensor scores(const models::Model& model, const models::States& end, const nn::ForwardContext& step) const;

  /// Returns the sum over the counted tokens of step.batch of the losses of a value model, or of a head of values.
  /// Communication: that of token_values().
  at::Tensor value_loss_sum(const models::Model& model, const models::States& end,
                            const nn::ForwardContext& step) const;

  const PolicyMethod& method() const { return method_; }
  /// Returns the keys of the method, completed().
  const AlignmentKeys& keys() const { return keys_; }
  const RolloutKeys& rollout() const { return rollout_; }
  bool has_reference() const { return keys_.policy.kl > 0; }
  /// Returns true if a row whose advantages are all 0 has no gradient, so that an update may leave it out.
  bool learns_from_advantages_alone() const {
    return !method_.has_values && keys_.policy.entropy == 0 && !(method_.kl_in_loss && has_reference());
  }
  /// Returns true if passes of training and drawing have the same bits, so that the drawn log-probabilities are the old
  /// ones.
  bool is_canonical() const { return is_canonical_; }
  LossMean mean() const;
  KlEstimator kl_estimator() const;
  /// Returns true if a method with values has them from a head on the policy ([value] trunk).
  bool values() const override { return has_value_head_; }

  /// Returns the length of rows of which the longest has `longest` tokens: one that divides over the ranks that split a
  /// row, at most data.sequence.
  int64_t row_length(int64_t longest) const;
  /// Has each line of the data checked, as open_prompts() says. Call it before open().
  void check_lines(std::function<void(const text::PromptLine&)> check) { check_line_ = std::move(check); }

  OpenedData open(const DataRequest& request) const override;
  bool has_dropout() const override { return false; }
  std::optional<nn::WeightPacking> panels() const override;
  tensor::Batch example(int64_t rows) const override;
  void check(const tensor::Batch& batch) const override;
  /// Counts the tokens without padding.
  int64_t tokens(const tensor::Batch& batch, const models::ModelShape& shape) const override;
  double weight(const tensor::Batch& batch) const override;
  /// Returns weight() of rows with these answer_counts.
  double weight_of(const at::Tensor& counts) const;
  at::Tensor loss(const models::Model& model, const models::States& end, const nn::ForwardContext& step) const override;

 private:
  PolicyMethod method_;
  AlignmentKeys keys_;
  RolloutKeys rollout_;
  ChatKeys chats_;
  bool has_panels_ = false, is_canonical_ = false, has_value_head_ = false;
  double value_weight_ = 0;
  std::function<void(const text::PromptLine&)> check_line_;
};

/// ObjectiveRow::complete of the objective alignment: training.batch_size of a method that draws answers is the number
/// of answers of an update. Errors ("training"): another batch_size than the default or this; steps that are no
/// multiple of the updates of a step; answers that do not divide into mini-batches.
void complete_alignment(Config& config, const OwnTables& tables, std::vector<std::string>& notices);

/// Make the objectives of methods.
std::unique_ptr<Objective> make_grpo(const Config& config, const OwnTables& tables, const models::ModelShape& shape);
std::unique_ptr<Objective> make_rloo(const Config& config, const OwnTables& tables, const models::ModelShape& shape);
std::unique_ptr<Objective> make_reinforce(const Config& config, const OwnTables& tables,
                                          const models::ModelShape& shape);
std::unique_ptr<Objective> make_ppo(const Config& config, const OwnTables& tables, const models::ModelShape& shape);

}  // namespace colossal::run
