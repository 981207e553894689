#include "distillation.h"

#include <ATen/ATen.h>

#include <cmath>

#include "colossal/nn/forward_context.h"

namespace models = colossal::models;
namespace nn = colossal::nn;
namespace run = colossal::run;
namespace tensor = colossal::tensor;
namespace train = colossal::train;
using tensor::Dim;

void DistillKeys::fields(colossal::Fields& f) {
  f.number("share", share, "", "share of the teacher in the loss; the rest is the cross entropy of the text", 0, 1);
}

namespace {

constexpr char kTeacher[] = "teacher";             // the further model, and its table
constexpr char kTaught[] = "teacher_probability";  // the field that the step rule adds

/// Returns the logarithm of the probability that a model gives to each token, [B, S] of the whole batch on every rank.
at::Tensor log_probabilities(const models::Model& model, const models::States& end, const nn::ForwardContext& step) {
  return model.head->log_probabilities(end.at(0), step.batch->at("labels"), step);
}

/// The samples, the check and the weight of texts, with another loss.
class Distillation : public run::Objective {
 public:
  Distillation(const run::Config& config, DistillKeys keys, const models::ModelShape& shape)
      : keys_(keys), of_text_(run::built_in_objectives().at("next-token").make(config, {}, shape)) {}

  run::OpenedData open(const run::DataRequest& request) const override { return of_text_->open(request); }
  Ids ids(const colossal::text::Tokenizer& tokenizer) const override { return of_text_->ids(tokenizer); }
  tensor::Batch example(int64_t rows) const override {
    const tensor::Batch text = of_text_->example(rows);
    // The loss reads all tokens of a row on every rank, so no dimension is one of tokens that ranks split.
    const at::Tensor taught = at::zeros(text.at("labels").sizes(), at::dtype(at::kFloat).device(at::kMeta));
    return text.with(kTaught, {taught, {Dim::Row, Dim::Other}});
  }
  std::vector<std::string> added_fields() const override { return {kTaught}; }
  int64_t tokens(const tensor::Batch& batch, const models::ModelShape& shape) const override {
    return of_text_->tokens(batch, shape);
  }
  std::string missing_from(const models::Model& model) const override { return of_text_->missing_from(model); }
  void check(const tensor::Batch& batch) const override { of_text_->check(batch); }
  double weight(const tensor::Batch& batch) const override { return of_text_->weight(batch); }

  at::Tensor loss(const models::Model& model, const models::States& end,
                  const nn::ForwardContext& step) const override {
    const at::Tensor own = log_probabilities(model, end, step);
    const at::Tensor away = own - step.batch->at(kTaught).to(own.scalar_type());
    return (keys_.share * away.square() / 2 - (1 - keys_.share) * own).sum();
  }

 private:
  DistillKeys keys_;
  std::unique_ptr<run::Objective> of_text_;
};

/// The teacher reads a batch first. Its result is a field of the student's pass.
class TeachersFirst : public train::StepRule {
  train::StepOutcome step(train::Engine& engine, const NextBatch& next) override {
    return train::update(engine, with_fields(engine, next()));
  }
  tensor::Batch with_fields(train::Engine& engine, const tensor::Batch& batch) override {
    return engine.with_result(batch, kTaught, log_probabilities, kTeacher);
  }
};

/// Returns how well a model knows each token of a text, [S], on every rank: 1 = certain, 0 = all tokens are alike to
/// it.
at::Tensor known(train::Engine& engine, const tensor::Batch& text, const std::string& model) {
  const at::Tensor logarithms = engine.with_result(text, kTaught, log_probabilities, model).at(kTaught)[0].cpu();
  return (1 + logarithms / std::log(static_cast<double>(engine.model().shape.vocabulary))).clamp(0, 1);
}

/// Draws how well both models know the prompt: a square for each token, the teacher above the student; white = certain.
std::vector<run::Sample> drawn(train::Trainer& trainer, const run::ShowText&) {
  constexpr int64_t kSide = 16;
  const run::Config& config = trainer.config();
  const std::vector<int64_t> prompt = trainer.tokenizer()->encode(config.training.sample_prompt);
  if (prompt.size() < 2) return {};
  const int64_t rows = config.replica_rows(0).count(), length = config.data.sequence;
  const at::Tensor words = at::tensor(prompt).repeat(length / static_cast<int64_t>(prompt.size()) + 2);
  const auto all_rows = [&](const at::Tensor& row) { return row.expand({rows, length}).contiguous(); };
  const tensor::Batch text = colossal::data::text_batch(
      all_rows(words.narrow(0, 0, length)), all_rows(words.narrow(0, 1, length)), all_rows(at::arange(length)));
  const at::Tensor both = at::stack({known(trainer.engine(), text, kTeacher), known(trainer.engine(), text, "")});
  const at::Tensor gray = (both * 255).to(at::kByte).repeat_interleave(kSide, 0).repeat_interleave(kSide, 1);
  const at::Tensor rgb = gray.unsqueeze(-1).expand({-1, -1, 3}).contiguous();
  const auto* bytes = rgb.const_data_ptr<uint8_t>();
  return {run::picture_sample("how well teacher and student know: " + config.training.sample_prompt, "known",
                              {.width = length * kSide, .height = 2 * kSide, .rgb = {bytes, bytes + rgb.numel()}})};
}

}  // namespace

run::ObjectiveRow distillation() {
  return {.name = "distillation",
          .tables = {{"distill", DistillKeys{}}, {kTeacher, run::ModelKeys{}}},
          .make =
              [](const run::Config& config, const run::OwnTables& tables, const models::ModelShape& shape) {
                return std::make_unique<Distillation>(config, tables.as<DistillKeys>("distill"), shape);
              },
          .models =
              [](const run::Config&, const run::OwnTables&, const models::ModelShape&) {
                return std::vector<run::FurtherModel>{{.name = kTeacher}};  // frozen, and split as the student is
              },
          .step_rule = [](train::Engine&, const run::Config&,
                          const run::OwnTables&) { return std::make_unique<TeachersFirst>(); },
          .samples = drawn};
}
