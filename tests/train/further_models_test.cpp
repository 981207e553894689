// Runs with a further model: the program examples/own_teacher, and models with axes, an optimizer or switches of their
// own.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/low_rank.h"
#include "colossal/run/data.h"
#include "colossal/run/program.h"
#include "colossal/run/saved_model.h"
#include "colossal/train/memory_needs.h"
#include "colossal/train/step_rule.h"
#include "colossal/train/trainer.h"
#include "distillation.h"
#include "support/layouts.h"
#include "support/run_courses.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"
#include "train/zero_runs.h"

namespace colossal::train::further_models_test {
namespace {

using test::expect_near;
using testing::HasSubstr;

constexpr int64_t kSteps = 3;

run::Program program_of(const std::optional<std::vector<std::string>>& axes = {}) {
  run::Program program = run::built_in();
  program.objectives.add(distillation());
  if (axes)
    program.objectives.at("distillation").models = [axes](const auto&, const auto&, const auto&) {
      return std::vector<run::FurtherModel>{{.name = "teacher", .axes = axes}};
    };
  return program;
}

class Distill : public testing::Test {
 protected:
  void SetUp() override {
    std::string text;
    for (int i = 0; i < 200; ++i) text += concat("line ", i * 37 % 101, " of a text that can be learnt\n");
    write_file(folder_ / "text.txt", text);
  }
  run::Config config(const std::vector<std::string>& flags) const {
    const std::vector<std::string> own{"--data.path=" + (folder_ / "text.txt"), "--data.sequence=16",
                                       "--data.documents=joined"};
    return test::tiny_config("examples/own_teacher/distill.toml", test::joined(own, flags));
  }
  static std::vector<double> course(const run::Config& config, const run::Program& program = program_of()) {
    return test::run_course(config, program, kSteps, [](Engine& engine) {
      for (const checkpoint::NamedTensor& tensor : engine.state().tensors)
        EXPECT_THAT(tensor.name, testing::Not(HasSubstr("teacher"))) << "it has no states and is not saved";
    });
  }
  test::TemporaryFolder folder_;
};

TEST_F(Distill, EqualsOneProcessUnderEveryLayout) {
  const std::vector<double> want = course(config({}));
  ASSERT_EQ(want.size(), 2 * kSteps + 2);
  EXPECT_NE(course(config({"--teacher.from=llama-tiny"})), want) << "the teacher counts";
  EXPECT_NE(course(config({"--distill.share=0.4"})), want);
  for (const std::vector<std::string>& flags : test::layouts(folder_.path()))
    expect_near(course(config(flags)), want, testing::PrintToString(flags));
}

// The teacher is whole on every rank of the axes that do not split it, beside stages and parts of the student.
TEST_F(Distill, MayKeepTheTeacherWhole) {
  const std::vector<double> want = course(config({}));
  for (const auto& [axes, flags] : std::vector<std::pair<std::vector<std::string>, std::vector<std::string>>>{
           {{}, {"--parallel.pipeline.size=4", "--parallel.pipeline.micro_batches=4"}},
           {{}, {"--parallel.tensor.size=2", "--parallel.sequence.size=2", "--parallel.sequence.mode=ring"}},
           {{"tensor"}, {"--parallel.tensor.size=2", "--parallel.pipeline.size=2"}},
           {{"sequence"}, {"--parallel.sequence.size=2", "--parallel.tensor.size=4", "--parallel.tensor.mode=2d"}},
           {{"pipeline"}, {"--parallel.pipeline.size=2", "--parallel.data=2", "--parallel.zero=3"}}})
    expect_near(course(config(flags), program_of(axes)), want,
                testing::PrintToString(axes) + testing::PrintToString(flags));
}

TEST_F(Distill, RefusesATeacherThatIsNotThere) {
  const auto refused = [&](const std::vector<std::string>& flags) {
    return test::thrown_message([&] { run::resolve_run(config(flags), program_of()); });
  };
  EXPECT_THAT(refused({"--teacher.from=nowhere"}), HasSubstr("nowhere"));
  EXPECT_THAT(refused({"--teacher.from="}), HasSubstr("teacher.from must name the weights of the model teacher"));
  EXPECT_THAT(refused({"--teacher.optimizer.name=sgd"}),
              HasSubstr("[teacher.optimizer] needs a model that is trained"));
  EXPECT_THAT(refused({"--teacher.form=gpt2-tiny"}), HasSubstr("teacher.form"));
  run::Config plain;
  ConfigDocument::parse("[teacher]\nfrom = \"gpt2-tiny\"\n", "x.toml").read(plain);
  EXPECT_THAT(test::thrown_message([&] { run::resolve_run(plain, program_of()); }),
              HasSubstr("[teacher] belongs to the objective distillation, and this run has next-token"));
}

// Its codes would be replaced by numbers that train.
TEST_F(Distill, RefusesToTrainAQuantizedTeacher) {
  run::Program program = program_of();
  program.objectives.at("distillation").models = [](const auto&, const auto&, const auto&) {
    return std::vector<run::FurtherModel>{{.name = "teacher", .use = run::ModelUse::Trained}};
  };
  const std::string codes = folder_ / "codes";
  create_folder(codes);
  write_file(codes + "/config.json", R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"],
      "hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1, "vocab_size": 257,
      "rms_norm_eps": 1e-5, "max_position_embeddings": 64,
      "quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 16}})");
  EXPECT_THAT(test::thrown_message([&] { run::resolve_run(config({"--teacher.from=" + codes}), program); }),
              HasSubstr("teacher.from must name weights that are not quantized"));
}

/// Trains the teacher on each batch, too.
class BothLearn : public StepRule {
  StepOutcome step(Engine& engine, const NextBatch& next) override {
    const tensor::Batch batch = with_fields(engine, next());
    engine.zero_grad();
    const auto lost = [](const models::Model& model, const models::States& end, const nn::ForwardContext& step) {
      return model.head->loss_sum(end.at(0), step.batch->at("labels"), step);
    };
    engine.train_step(batch, static_cast<double>(batch.at("labels").numel()), lost, "teacher");
    const double loss = engine.train_step(batch);
    return {.loss = loss, .result = engine.step()};
  }
  tensor::Batch with_fields(Engine& engine, const tensor::Batch& batch) override {
    const auto given = [](const models::Model& model, const models::States& end, const nn::ForwardContext& step) {
      return model.head->log_probabilities(end.at(0), step.batch->at("labels"), step);
    };
    return engine.with_result(batch, "teacher_probability", given, "teacher");
  }
};

// A checkpoint has each model that was trained. Commands read the main one, or another by its name.
TEST_F(Distill, SavesEachTrainedModel) {
  run::Program program = program_of();
  run::ObjectiveRow& row = program.objectives.at("distillation");
  row.models = [](const auto&, const auto&, const auto&) {
    return std::vector<run::FurtherModel>{{.name = "teacher", .use = run::ModelUse::Trained}};
  };
  row.step_rule = [](Engine&, const auto&, const auto&) { return std::make_unique<BothLearn>(); };
  run::Config c = config({"--run.folder=" + (folder_ / "run"), "--training.steps=4", "--training.save_every=2",
                          "--teacher.optimizer.name=sgd", "--teacher.optimizer.learning_rate=0.1"});
  std::map<std::string, at::Tensor> trained;
  const auto train = [&](Start start, std::optional<int64_t> from) {
    comm::run_ranks(1, [&](comm::World& world) {
      Trainer trainer(world, c, {.start = start, .resume_step = from, .program = program});
      EXPECT_TRUE(trainer.run());
      for (const nn::Parameter& p : trainer.engine().parameters()) {
        const at::Tensor value = p.value.detach().clone();
        const auto [known, is_new] = trained.try_emplace(p.name, value);
        EXPECT_TRUE(at::equal(known->second, value)) << p.name << " after resuming";
      }
    });
  };
  train(Start::New, {});
  train(Start::Resume, 2);
  comm::run_ranks(1, [&](comm::World& world) {
    comm::Mesh mesh(world, {comm::Mesh::batch("data", 1)});
    const auto loaded = [&](const std::string& name) {
      return run::load_model(folder_ / "run", mesh, {}, at::kCPU,
                             {.model = name, .tokenizer = "none", .dtype = at::kDouble}, program);
    };
    for (const std::string name : {"", "teacher"}) {
      const run::SavedModel saved = loaded(name);
      int64_t compared = 0;
      for (const nn::Parameter& p : saved.model->parameters()) {
        EXPECT_TRUE(at::equal(p.value, trained.at(name.empty() ? p.name : name + "." + p.name))) << name << p.name;
        ++compared;
      }
      EXPECT_GT(compared, 10);
    }
    EXPECT_THAT(test::thrown_message([&] { loaded("critic"); }), HasSubstr("has no trained model critic"));
  });
}

// ---- models that train

models::ModelShape policy() {
  models::ModelShape shape = test::tiny_gpt2();
  shape.layers = 4;
  return shape;
}

models::ModelShape critic() {
  models::ModelShape shape = test::tiny_llama();
  shape.layers = 2;
  return shape;
}

optim::OptimizerConfig plain_sgd() {
  optim::OptimizerConfig config;
  config.name = "sgd";
  config.learning_rate = 0.5;
  config.warmup_steps = 0;
  return config;
}

at::Tensor lost(const models::Model& model, const models::States& end, const nn::ForwardContext& step) {
  return model.head->loss_sum(end.at(0), step.batch->at("labels"), step);
}

run::Config config_for(const Layout& layout) {
  run::Config config = config_of(layout);
  config.precision.mode = "fp64";
  config.training.clip = 0;  // the norm covers all models together
  config.optimizer.learning_rate = 0.01;
  return config;
}

/// Returns the losses of both models in the first steps.
std::vector<double> losses_of(Engine& engine, const std::vector<std::string>& models) {
  std::vector<double> losses;
  for (int64_t step = 0; step < kSteps; ++step) {
    engine.zero_grad();
    const tensor::Batch batch = test::own_batch(engine, step, kText);
    for (const std::string& model : models)
      losses.push_back(engine.train_step(batch, static_cast<double>(batch.at("labels").numel()), lost, model));
    engine.step();
  }
  return losses;
}

// Ranks along axes that do not split a trained model do the same work; its gradients are those of one of them.
TEST(FurtherModels, TrainWholeBesideASplitModel) {
  const auto losses = [](const Layout& layout, const std::string& sequence_mode) {
    run::Config config = config_for(layout);
    if (!sequence_mode.empty()) config.parallel.sequence = {.size = 2, .mode = sequence_mode};
    std::vector<double> all;
    comm::run_ranks(static_cast<int>(config.parallel.ranks()), [&](comm::World& world) {
      comm::Mesh mesh(world, config.parallel.axes());
      const auto engine = initialize(
          mesh, config,
          {{.shape = policy()},
           {.name = "critic", .shape = critic(), .axes = std::vector<std::string>{}, .optimizer = plain_sgd()}});
      const std::vector<double> mine = losses_of(*engine, {"", "critic"});
      if (world.rank() == 0) all = mine;
    });
    return all;
  };
  const std::vector<double> want = losses({}, "");
  EXPECT_NE(want[1], want[3]) << "the critic learns";
  for (const auto& [layout, mode] : std::vector<std::pair<Layout, std::string>>{
           {{.pipeline = 4}, ""},
           {{.tensor = 2, .pipeline = 2}, ""},
           {{.zero = 3, .data = 2, .pipeline = 2}, ""},
           {{.zero = 2, .data = 2}, "ring"},
           {{.zero = 3}, "ulysses"},
       }) {
    const std::vector<double> got = losses(layout, mode);
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-10) << layout.ranks() << mode << " " << i;
  }
}

TEST(FurtherModels, MayHaveAnOptimizerOfTheirOwn) {
  for (const Layout& layout : {Layout{}, Layout{.zero = 3, .data = 2}, Layout{.pipeline = 2}}) {
    const run::Config config = config_for(layout);
    run::Config other = config;
    other.optimizer = plain_sgd();
    comm::run_ranks(layout.ranks(), [&](comm::World& world) {
      comm::Mesh mesh(world, config.parallel.axes());
      const auto together = initialize(
          mesh, config, {{.shape = policy()}, {.name = "critic", .shape = critic(), .optimizer = plain_sgd()}});
      const auto first = initialize(mesh, config, policy()), second = initialize(mesh, other, critic());
      const std::vector<double> both = losses_of(*together, {"", "critic"}), of_policy = losses_of(*first, {""}),
                                of_critic = losses_of(*second, {""});
      for (int64_t step = 0; step < kSteps; ++step) {
        EXPECT_EQ(both[2 * step], of_policy[step]) << step;
        EXPECT_EQ(both[2 * step + 1], of_critic[step]) << step;
      }
      EXPECT_EQ(together->state().progress.at("optimizers").at("critic"), "sgd");
      nlohmann::json changed = together->state().progress;
      changed["optimizers"]["critic"] = "lion";
      EXPECT_THAT(test::thrown_message([&] { together->check_progress(changed); }), HasSubstr("critic.optimizer.name"));
      const auto states_of = [&](const run::Config& of, const RunModels& models, const std::string& name) {
        int64_t bytes = 0;
        for (const MemoryNeed& need : memory_needs({of, models}, world.rank()))
          if (need.model == name && need.what == "states") bytes += need.bytes;
        return bytes;
      };
      const RunModels models{{.shape = policy()}, {.name = "critic", .shape = critic(), .optimizer = plain_sgd()}};
      EXPECT_EQ(states_of(config, models, "critic"), states_of(other, critic(), ""));
      EXPECT_LT(states_of(config, models, "critic"), states_of(config, critic(), ""));
    });
  }
}

TEST(FurtherModels, MayBeTheMainModelWithoutItsAdapters) {
  nn::Adapter adapter{.treatment = [](const std::string& name) {
    return nn::Treatment{.trains = nn::is_low_rank(name), .saved = nn::is_low_rank(name)};
  }};
  adapter.product = [](auto product, const nn::Parameter& weight, nn::Parameters& parameters) {
    return weight.hidden_matrix ? nn::with_low_rank(product, weight, parameters, {.rank = 2}) : product;
  };
  for (const Layout& layout : {Layout{}, Layout{.tensor = 2}, Layout{.zero = 3, .data = 2}}) {
    const run::Config config = config_for(layout);
    comm::run_ranks(layout.ranks(), [&](comm::World& world) {
      comm::Mesh mesh(world, config.parallel.axes());
      const auto engine = initialize(
          mesh, config,
          {{.shape = policy(), .adapter = adapter}, {.name = "reference", .is_main_without_adapters = true}});
      const auto plain = initialize(mesh, config, policy());
      const tensor::Batch batch = test::own_batch(*engine, 0, kText);
      const auto of = [&](Engine& one, const std::string& model) {
        return one.forward(batch, lost, model).front().item<double>();
      };
      const double want = of(*plain, "");
      losses_of(*engine, {""});
      EXPECT_NE(of(*engine, ""), want) << "the adapters have learnt";
      EXPECT_EQ(of(*engine, "reference"), want);
      EXPECT_NE(of(*engine, ""), want) << "they are switched on again";
      EXPECT_THAT(test::thrown_message([&] { losses_of(*engine, {"reference"}); }), HasSubstr("which is frozen"));
      EXPECT_THAT(test::thrown_message([&] { engine->model("reference"); }), HasSubstr("call forward()"));
      for (const ModelSize& size : model_sizes(
               {config,
                {{.shape = policy(), .adapter = adapter}, {.name = "reference", .is_main_without_adapters = true}}}))
        EXPECT_EQ(size.parameters == 0, size.name == "reference");
    });
  }
  EXPECT_THAT(test::thrown_message(
                  [] { RunModels({{.shape = policy()}, {.name = "reference", .is_main_without_adapters = true}}); }),
              HasSubstr("must have adapters that can be switched off"));
}

}  // namespace
}  // namespace colossal::train::further_models_test
