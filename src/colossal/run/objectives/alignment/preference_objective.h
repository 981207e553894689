// The common base of methods that learn from preferences. A row of their batches has two texts or more.
//
//   const auto* preferences = dynamic_cast<const PreferenceObjective*>(&engine.objective());
//   at::Tensor sums = at::zeros({preferences->sums()}, at::kDouble);     // sums over this rank's micro-batches
//   const auto loss = [&](const models::Model& model, const models::States& end, const nn::ForwardContext& step) {
//     const PreferenceObjective::Measured measured = preferences->measure(model, end, step);
//     sums += measured.sums.cpu();
//     return measured.loss;
//   };
//   engine.train_step(batch, preferences->weight(batch), loss);          // then sums are reduced over ranks
//   const std::vector<Metric> rows = preferences->step_metrics(values, weight);
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "colossal/data/chats/chat_rows.h"
#include "colossal/run/objectives/alignment/keys.h"
#include "colossal/run/objectives/data_keys.h"
#include "colossal/run/objectives/head_objective.h"

namespace colossal::run {

/// An objective of rows of several texts, whose weight is the number of rows. Dropout is off, so that the first loss is
/// known if the reference is the model from which the run starts (first_loss()). A row that was counted before has
/// answer_lengths of 0 and does not count.
class PreferenceObjective : public HeadObjective {
 public:
  /// The loss of a micro-batch, and the sums [sums()] in fp64, without gradients, from which metrics are computed. The
  /// first sum is the loss.
  struct Measured {
    at::Tensor loss, sums;
  };

  /// Errors ("objective"): a model that does not continue text, nor scores it for ChatSamples::Ranked. ("data"):
  /// data.answers = "everything"; those of check_chat_keys().
  PreferenceObjective(const Config& config, const models::ModelShape& shape, AlignmentKeys keys, ChatKeys chats,
                      data::ChatSamples samples);

  /// Returns loss and sums of step.batch. Communication: that of scores_of().
  Measured measure(const models::Model& model, const models::States& end, const nn::ForwardContext& step) const;
  /// Returns the metrics of a training step, from the sums and the weight over all rows: the mean rewards of both kinds
  /// of answers, their difference and, of pairs, the share whose chosen answer has the higher reward. A ranking counts
  /// as the mean of its pairs.
  std::vector<Metric> step_metrics(const std::vector<double>& sums, double weight) const;
  /// Returns true if the loss reads kReferenceScores.
  virtual bool has_reference() const = 0;
  /// Returns the loss, summed over the rows of `batch`, of a policy that equals the reference (and z = 0). Nothing for
  /// methods without a reference.
  virtual std::optional<double> first_loss(const tensor::Batch& batch) const = 0;

  OpenedData open(const DataRequest& request) const override;
  bool has_dropout() const override { return false; }
  tensor::Batch example(int64_t rows) const override;
  int64_t text_tokens() const override;
  std::vector<std::string> added_fields() const override;
  void check(const tensor::Batch& batch) const override;
  /// Counts the tokens without padding.
  int64_t tokens(const tensor::Batch& batch, const models::ModelShape& shape) const override;
  double weight(const tensor::Batch& batch) const override;
  at::Tensor loss(const models::Model& model, const models::States& end, const nn::ForwardContext& step) const override;
  int64_t sums() const override;
  at::Tensor evaluate(const models::Model& model, const models::States& end,
                      const nn::ForwardContext& step) const override;
  /// Returns eval_loss and step_metrics() with names that begin with eval_.
  std::vector<Metric> metrics(const std::vector<double>& sums, double weight) const override;

 protected:
  /// The tensors of a micro-batch that a method reads: [B, texts()], on one device.
  struct Scores {
    const tensor::Batch& batch;
    at::Tensor sums;       ///< scores_of() the texts, with gradients
    at::Tensor lengths;    ///< tokens of the texts that count, int64
    at::Tensor reference;  ///< sums of the reference; undefined without one
  };
  /// The loss [B] of each row, and its rewards: [B, 2] of the better and the worse answer, [B, 1] of a rated one.
  struct RowLosses {
    at::Tensor losses, rewards;
    /// Share [B] of the pairs of a row whose better answer has the higher reward; undefined = it follows from `rewards`
    at::Tensor right{};
  };
  /// Returns a number for each text of a row, [B, texts()]. Default: answer_sums().
  virtual at::Tensor scores_of(const models::Model& model, const models::States& end,
                               const nn::ForwardContext& step) const;
  virtual RowLosses row_losses(const Scores& scores) const = 0;
  const AlignmentKeys& keys() const { return keys_; }
  /// Returns true if a row compares answers to one prompt.
  bool compares_answers() const { return samples_ != data::ChatSamples::Rated; }
  /// Returns the number of texts of a row that the loss reads.
  int64_t texts() const { return compares_answers() ? room() : 1; }
  /// Returns the number of texts for which a row has room: the columns of answer_lengths.
  int64_t room() const { return samples_ == data::ChatSamples::Ranked ? keys_.answers : 2; }

 private:
  /// Returns the metrics but the loss, with names that begin with `prefix`.
  std::vector<Metric> metrics_of(const std::vector<double>& sums, double weight, const std::string& prefix) const;

  AlignmentKeys keys_;
  ChatKeys chats_;
  data::ChatSamples samples_;
};

/// Returns the log-ratio of the second text of each row of kto, the mismatched one: [B, 1]. step.batch has
/// kReferenceScores. A step rule passes it to train::Engine::with_result() for kDivergence, takes the mean over the
/// global batch, and replaces it by its value or 0, whichever is larger.
at::Tensor mismatched_log_ratios(const models::Model& model, const models::States& end, const nn::ForwardContext& step);

}  // namespace colossal::run
