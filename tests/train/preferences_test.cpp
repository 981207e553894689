// Learning from preferences: every layout has the losses, gradients and rewards of one process.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/comm/agreement.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/models/model.h"
#include "colossal/nn/forward_context.h"
#include "colossal/run/data.h"
#include "colossal/run/objectives/alignment/answer_sums.h"
#include "colossal/run/objectives/alignment/methods.h"
#include "colossal/run/objectives/alignment/preference_objective.h"
#include "colossal/run/program.h"
#include "colossal/tensor/host_value.h"
#include "colossal/train/record_step.h"
#include "colossal/train/step_rule.h"
#include "colossal/train/trainer.h"
#include "support/layouts.h"
#include "support/preference_lines.h"
#include "support/run_courses.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::train::preferences_test {
namespace {

using test::expect_near;
using testing::HasSubstr;

/// Gives batches what a reference would: scores a little off from those of the policy, and the divergence from them.
class GivenReference final : public StepRule {
 public:
  StepOutcome step(Engine& engine, const NextBatch& next) override {
    return update(engine, with_fields(engine, next()));
  }
  tensor::Batch with_fields(Engine& engine, const tensor::Batch& batch) override {
    tensor::Batch given = batch;
    for (const std::string& name : engine.objective().added_fields())
      given = name == run::kDivergence ? with_divergence(engine, given) : with_scores(engine, given);
    return given;
  }

 private:
  static tensor::Batch with_scores(Engine& engine, const tensor::Batch& batch) {
    const auto scores = [](const models::Model& model, const models::States& end, const nn::ForwardContext& step) {
      const at::Tensor sums = run::answer_sums(model, end, step, 2);
      return 0.9 * sums - 0.01 * sums.square();
    };
    return engine.with_result(batch, run::kReferenceScores, scores);
  }
  static tensor::Batch with_divergence(Engine& engine, const tensor::Batch& batch) {
    const tensor::Batch ratios = engine.with_result(batch, run::kDivergence, run::mismatched_log_ratios);
    tensor::Field field = ratios.field(run::kDivergence);
    comm::Group& others = engine.mesh().group(engine.mesh().coordinates().row_axes());
    const double sum = comm::sum(others, tensor::host_value(field.tensor.sum())),
                 rows = comm::sum(others, static_cast<double>(field.tensor.size(0)));
    field.tensor = at::full_like(field.tensor, std::max(0.0, sum / rows));
    return ratios.with(run::kDivergence, field);
  }
};

class Preferences : public testing::Test {
 protected:
  void SetUp() override { test::write_preferences(folder_.path()); }

  run::Config config(const std::string& method, const std::vector<std::string>& flags) const {
    return test::tiny_config("examples/sft.toml", test::joined(test::preference_flags(folder_.path(), method), flags));
  }
  static run::Program program() {
    run::Program program = run::built_in();
    program.objectives.at("alignment").models = nullptr;
    program.objectives.at("alignment").step_rule = [](Engine&, const run::Config&, const run::OwnTables&) {
      return std::make_unique<GivenReference>();
    };
    return program;
  }

  static std::vector<double> course(const run::Config& config) { return test::run_course(config, program()); }

  test::TemporaryFolder folder_;
};

TEST_F(Preferences, EqualOneProcessUnderEveryLayout) {
  for (const std::string& method : {"dpo", "ipo", "kto", "simpo", "orpo", "reward"}) {
    const std::vector<double> want = course(config(method, {}));
    ASSERT_EQ(want.size(), 2 * 3 + (method == "kto" ? 6 : 5)) << method;
    for (const std::vector<std::string>& flags : test::layouts(folder_.path()))
      expect_near(course(config(method, flags)), want, method + " " + testing::PrintToString(flags));
  }
}

TEST_F(Preferences, EqualOneProcessWithExpertsOnSeveralRanks) {
  const auto mixture = [&](const char* method, std::vector<std::string> flags) {
    for (const char* flag : {"count=4", "used=2", "balance_loss=0"})
      flags.push_back(std::string("--model.experts.") + flag);
    return course(config(method, flags));
  };
  const std::string expert = "--parallel.expert.size=2";
  for (const char* method : {"dpo", "kto", "reward"}) {
    const std::vector<double> want = mixture(method, {});
    for (const std::vector<std::string>& flags : std::vector<std::vector<std::string>>{
             {expert, "--parallel.data=2", "--parallel.zero=3"},
             {expert, "--parallel.tensor.size=2"},
             {expert, "--parallel.pipeline.size=2", "--parallel.pipeline.micro_batches=2"}})
      expect_near(mixture(method, flags), want, method + testing::PrintToString(flags));
  }
}

TEST_F(Preferences, DividesByTheRowsOfTheGlobalBatch) {
  // A micro-batch of one row weighs as much as any other, whatever the lengths of its answers.
  for (const std::string& method : {"simpo", "orpo", "kto", "reward"})
    expect_near(course(config(method, {"--training.accumulate=8"})), course(config(method, {})), method);
}

TEST_F(Preferences, LearnsFromTheKeysOfItsMethod) {
  const std::vector<double> plain = course(config("dpo", {}));
  for (const char* flag : {"beta=0.2", "loss=hinge", "smoothing=0.1", "nll=0.5"})
    EXPECT_NE(course(config("dpo", {std::string("--alignment.") + flag})), plain) << flag;
  EXPECT_NE(course(config("ipo", {"--alignment.loss=sum"})), course(config("ipo", {})));
  EXPECT_NE(course(config("simpo", {"--alignment.margin=0.5"})), course(config("simpo", {})));
  EXPECT_NE(course(config("kto", {"--alignment.undesirable_weight=1.33"})), course(config("kto", {})));
  EXPECT_NE(course(config("reward", {"--alignment.centre=0"})), course(config("reward", {})));
}

// A text has as many positions as the model, and a row twice as many.
TEST_F(Preferences, ReadsTextsAsLongAsTheModelsPositions) {
  for (const char* model : {"gpt2-tiny", "llama-tiny"}) {
    const auto sized = [&](int64_t positions, int stages) {
      return config(
          "simpo", {std::string("--model.name=") + model, concat("--model.positions=", positions), "--model.kv_heads=0",
                    concat("--parallel.pipeline.size=", stages), "--data.held_out=0.3"});
    };
    run::RunData data = run::open_data(sized(32, 1), program(), "", 0, at::kCPU);
    const tensor::Batch batch = data.training->next();
    EXPECT_GT(batch.tokens(), 32) << "rows are longer than the texts";
    EXPECT_LT(batch.at("positions").max().item<int64_t>(), 32);
    expect_near(course(sized(32, 2)), course(sized(32, 1)), model);
  }
}

TEST_F(Preferences, RestartsThePositionsOfBothTexts) {
  run::RunData data = run::open_data(config("dpo", {}), program(), "", 0, at::kCPU);
  const tensor::Batch batch = data.training->next();
  const at::Tensor positions = batch.at("positions"), documents = batch.at("documents");
  for (int64_t row = 0; row < batch.rows(); ++row)
    for (int64_t t = 1; t < batch.at("lengths")[row].item<int64_t>(); ++t) {
      const bool begins = documents[row][t].item<int64_t>() != documents[row][t - 1].item<int64_t>();
      EXPECT_EQ(positions[row][t].item<int64_t>(), begins ? 0 : positions[row][t - 1].item<int64_t>() + 1);
    }
  const at::Tensor counted = (batch.at("labels") != -100).to(at::kLong);
  for (int64_t text = 0; text < 2; ++text)
    EXPECT_TRUE(at::equal(batch.at("answer_lengths").select(1, text), (counted * (documents == text)).sum(1)));
  EXPECT_DOUBLE_EQ(batch.at("mean_answer_length")[0].item<double>(),
                   batch.at("answer_lengths").select(1, 0).to(at::kDouble).mean().item<double>());
}

// A tokenizer of bytes has no template, so that of the model must be saved with the run.
TEST_F(Preferences, KeepTheTemplateOfTheModel) {
  const std::string model = folder_ / "model";
  create_folder(model);
  write_file(
      model + "/config.json",
      R"({"model_type": "gpt2", "vocab_size": 257, "n_positions": 64, "n_embd": 16, "n_layer": 1, "n_head": 2})");
  const std::string source = "{% for m in messages %}{{ m.content }}{% endfor %}";
  write_file(model + "/chat_template.jinja", source);
  write_file(folder_ / "messages.jsonl",
             R"({"prompt": [{"role": "user", "content": "a"}], "chosen": [{"role": "assistant", "content": "b"}],)"
             R"( "rejected": [{"role": "assistant", "content": "c"}]})");
  const run::RunData data = run::open_data(
      config("dpo", {"--model.from=" + model, "--data.held_out=0", "--data.path=" + (folder_ / "messages.jsonl")}),
      program(), "", 0, at::kCPU);
  EXPECT_EQ(data.chat_template, source);
}

// A planner records the step without data.
TEST_F(Preferences, RecordStepsWithoutData) {
  const auto records = [&](const std::string& method, const std::vector<std::string>& flags) {
    const run::Config c = config(method, flags);
    c.validate();
    const run::ResolvedModel resolved = run::resolve_run(c, program());
    EXPECT_GT(record_step({c, models_of(c, resolved)}, 0).memory.peak_bytes, 0) << method;
  };
  for (const char* method : {"dpo", "ipo", "kto", "simpo", "orpo", "reward"}) records(method, {});
  for (const char* loss : {"loss=hinge", "smoothing=0.1", "nll=0.5"})
    records("dpo", {std::string("--alignment.") + loss});
  for (const char* method : {"dpo", "kto", "reward"}) {
    records(method, {"--parallel.tensor.size=2", "--parallel.data=2"});
    records(method, {"--parallel.sequence.size=2"});
  }
}

TEST_F(Preferences, RefuseWhatCannotBeCompared) {
  const auto refused = [&](const std::string& method, const std::string& lines,
                           const std::vector<std::string>& flags = {}) {
    write_file(folder_ / "bad.jsonl", lines);
    const run::Config c =
        config(method, test::joined({"--data.path=" + (folder_ / "bad.jsonl"), "--data.held_out=0"}, flags));
    return test::thrown_message([&] { run::open_data(c, program(), "", 0, at::kCPU); });
  };
  EXPECT_THAT(refused("dpo", R"({"prompt": "a", "chosen": "b", "rejected": "b"})"),
              testing::AllOf(HasSubstr("bad.jsonl:1"), HasSubstr("chosen"), HasSubstr("rejected")));
  EXPECT_THAT(refused("dpo", R"({"prompt": "a", "chosen": "b", "rejected": ""})"), HasSubstr("bad.jsonl:1"));
  EXPECT_THAT(refused("kto", R"({"prompt": "a", "completion": "b", "label": "yes"})"),
              testing::AllOf(HasSubstr("bad.jsonl:1"), HasSubstr("label")));
  EXPECT_THAT(
      refused("simpo", concat(R"({"prompt": ")", std::string(40, 'a'), R"(", "chosen": "b", "rejected": "c"})")),
      testing::AllOf(HasSubstr("bad.jsonl:1"), HasSubstr("the prompt must leave room"),
                     HasSubstr("data.sequence = 32")));
  EXPECT_THAT(refused("orpo", R"({"prompt": "a", "completion": "b", "label": true})"),
              HasSubstr("this method reads pairs (chosen and rejected)"));
  EXPECT_THAT(refused("kto", R"({"prompt": "a", "chosen": "b", "rejected": "c"})"),
              HasSubstr("this method reads rated answers"));
  EXPECT_THAT(refused("reward", R"({"prompt": "a", "completion": "b"})"),
              HasSubstr("this method reads pairs (chosen and rejected) and rankings (prompt and answers)"));
  EXPECT_THAT(refused("reward", R"({"prompt": "a", "answers": ["b", "b"]})"),
              testing::AllOf(HasSubstr("bad.jsonl:1"), HasSubstr("answers must differ")));
}

}  // namespace
}  // namespace colossal::train::preferences_test
