// Draft tokens of the model's own multi-token layers: completions have the bits that they have without them, in every
// layout, and a model that knows its text accepts most of them.
#include "colossal/infer/decoding/multi_token_drafts.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <random>

#include "colossal/checkpoint/hugging_face/hugging_face.h"
#include "colossal/checkpoint/peft/folder.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/data/batch_fields.h"
#include "colossal/infer/engine.h"
#include "colossal/models/families/deepseek.h"
#include "colossal/models/shape_parts.h"
#include "colossal/nn/batch_step.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/reports.h"
#include "colossal/nn/serial_layers.h"
#include "colossal/run/adapter_modules.h"
#include "colossal/run/external_names.h"
#include "colossal/run/saved_model.h"
#include "infer/engine_answers.h"
#include "support/parity.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::infer::multi_token_drafts_test {
namespace {

using distributed::DistributedModel;
using distributed::ParallelConfig;
using Tokens = std::vector<int64_t>;

constexpr int64_t kVocabulary = 37, kStride = 5;

models::ModelShape tiny(int64_t layers) {
  models::ModelShape shape = test::tiny_deepseek();
  shape.positions = 64;
  auto own = shape.own.as<models::DeepseekSizes>();
  own.multi_token_layers = layers;
  own.multi_token_loss = 1;
  shape.own = own;
  shape.set(models::MultiTokenSizes{layers});
  return shape;
}

/// Returns tokens of the text that models learn. No token occurs twice within kVocabulary tokens, so prompt lookup has
/// nothing to propose there.
Tokens text_from(int64_t first, int64_t count) {
  Tokens tokens;
  for (int64_t i = 0; i < count; ++i) tokens.push_back((first + i * kStride) % kVocabulary);
  return tokens;
}

/// A model on one process, which learns the text with Adam.
class Learned {
 public:
  Learned(int64_t layers, int64_t steps) : shape_(tiny(layers)), parameters_({}, {.seed = 7}), make_(parameters_) {
    model_ = models::make_model(shape_, make_);
    reports_ = std::make_shared<nn::ReportAccumulator>(model_.reports, at::kCPU);
    for (int64_t i = 1; i <= steps; ++i) learn(i);
  }

  void write(const std::string& folder) const {
    comm::run_ranks(1, [&](comm::World& world) {
      comm::Mesh mesh(world, {{"data", 1}});
      checkpoint::export_weights(folder, parameters_, run::external_names(shape_),
                                 shape_.architecture->hugging_face.to_json(shape_), mesh.group("data"));
    });
  }

 private:
  static constexpr int64_t kRows = 8, kTokens = 32;

  void learn(int64_t step_number) {
    Tokens ids, labels;
    for (int64_t row = 0; row < kRows; ++row) {
      const Tokens text = text_from((step_number * kRows + row) * 11 % kVocabulary, kTokens + 1);
      ids.insert(ids.end(), text.begin(), text.end() - 1);
      labels.insert(labels.end(), text.begin() + 1, text.end());
    }
    const auto field = [](const Tokens& tokens) { return at::tensor(tokens, at::kLong).view({kRows, kTokens}); };
    const at::Tensor positions = at::arange(kTokens).expand({kRows, kTokens}).contiguous();
    nn::ForwardContext step =
        nn::step_of(data::text_batch(field(ids), field(labels), positions, at::zeros_like(positions)));
    step.training = true;
    step.parts.set(nn::ReportsOfStep{reports_});
    reports_->begin(1);
    const at::Tensor end = models::run_stage(model_, {.last = shape_.layers}, {}, step)[0];
    const at::Tensor loss = model_.head->loss_sum(end, step.batch->at("labels"), step) / (kRows * kTokens);
    torch::autograd::backward({loss}, {at::ones_like(loss)});
    const at::NoGradGuard no_grad;
    for (nn::Parameter& p : parameters_) update(p, step_number);
  }

  void update(nn::Parameter& p, int64_t step_number) {
    constexpr double kRate = 0.01, kFirst = 0.9, kSecond = 0.99;
    const at::Tensor gradient = p.value.grad();
    if (!gradient.defined()) return;
    auto& [mean, square] = moments_[p.name];
    if (!mean.defined()) mean = at::zeros_like(gradient), square = at::zeros_like(gradient);
    mean.mul_(kFirst).add_(gradient, 1 - kFirst);
    square.mul_(kSecond).addcmul_(gradient, gradient, 1 - kSecond);
    const double n = static_cast<double>(step_number);
    const at::Tensor scale = (square / (1 - std::pow(kSecond, n))).sqrt_().add_(1e-8);
    p.value.addcdiv_(mean / (1 - std::pow(kFirst, n)), scale, -kRate);
    p.value.mutable_grad() = at::Tensor();
  }

  models::ModelShape shape_;
  nn::Parameters parameters_;
  nn::SerialLayers make_;
  models::Model model_;
  std::shared_ptr<nn::ReportAccumulator> reports_;
  std::map<std::string, std::pair<at::Tensor, at::Tensor>> moments_;
};

/// Loads the folder on the ranks of the layout, with packed weights, whose products do not depend on other rows.
void with_loaded(const std::string& folder, const ParallelConfig& layout,
                 const std::function<void(const run::SavedModel&)>& work) {
  comm::run_ranks(static_cast<int>(layout.ranks()), [&](comm::World& world) {
    comm::Mesh mesh(world, layout.axes());
    work(run::load_model(folder, mesh, layout, at::kCPU, {.tokenizer = "none", .packing = nn::WeightPacking{}}));
  });
}

/// Folders of models with one and with two layers that have learned the text.
class MultiTokenDrafts : public testing::TestWithParam<int64_t> {
 protected:
  const std::string& folder() const {
    static std::map<int64_t, std::unique_ptr<test::TemporaryFolder>> folders;
    static std::map<int64_t, std::string> paths;
    std::unique_ptr<test::TemporaryFolder>& own = folders[GetParam()];
    if (!own) {
      own = std::make_unique<test::TemporaryFolder>();
      Learned(GetParam(), 200).write(own->path());
      paths[GetParam()] = own->path();
    }
    return paths.at(GetParam());
  }
};

/// Returns requests of several lengths: greedy and sampled, with end tokens and penalties. Some prompts begin alike,
/// and some are not of the text.
std::vector<Request> some_requests() {
  std::mt19937 draw(5);
  std::vector<Request> requests;
  for (int64_t i = 0; i < 14; ++i) {
    Request request{.options = {.max_tokens = static_cast<int64_t>(1 + draw() % 20)}};
    request.prompt =
        text_from(i % 3 == 0 ? 2 : static_cast<int64_t>(draw() % kVocabulary), static_cast<int64_t>(1 + draw() % 24));
    if (i % 5 == 4)
      for (int64_t& token : request.prompt) token = static_cast<int64_t>(draw() % kVocabulary);
    if (i % 2) request.options.sampling = {.temperature = 3, .seed = i, .repetition_penalty = i % 3 ? 1 : 1.2};
    if (i % 4 == 2) request.end_ids = {(request.prompt.back() + 6 * kStride) % kVocabulary};
    requests.push_back(std::move(request));
  }
  return requests;
}

void expect_equal_bits(DistributedModel& model, std::optional<at::ScalarType> cache_dtype) {
  const std::vector<Request> requests = some_requests();
  infer::Engine plain(model, {.cache_bytes = 1 << 22, .cache_dtype = cache_dtype, .block_tokens = 16});
  const std::vector<Tokens> want = engine_test::answers_of(plain, requests);
  const int64_t layers = infer::MultiTokenDrafts::layers_of(model);
  const int64_t block = 16 * ModelRunner::bytes_of_token(model, cache_dtype, layers);
  for (const int64_t draft_tokens : {1, 2, 5})
    for (const bool is_tight : {false, true}) {
      infer::Engine engine(model, {.cache_bytes = is_tight ? block * 6 / model.cache_ranks() : int64_t{1} << 22,
                                   .cache_dtype = cache_dtype,
                                   .block_tokens = 16,
                                   .step_tokens = is_tight ? 7 : 512,
                                   .draft_tokens = draft_tokens});
      EXPECT_EQ(engine_test::answers_of(engine, requests), want) << draft_tokens << (is_tight ? " tight" : "");
      EXPECT_GT(engine.draft_counts().accepted, 0);
      EXPECT_LT(engine.draft_counts().accepted, engine.draft_counts().proposed) << "samples at a high temperature";
    }
}

/// Writes adapters of all linear layers that requests may choose, multi-token layers included.
void write_adapters(const std::string& folder, const models::ModelShape& shape) {
  constexpr int64_t kRank = 2;
  const run::AdapterModules modules(shape);
  std::map<std::string, checkpoint::PeftLayer> layers;
  checkpoint::PeftConfig config{.rank = kRank};
  auto generator = at::detail::createCPUGenerator(3);
  for (const run::LinearModule& module : modules.linear()) {
    if (module.is_stack()) continue;
    if (module.name.find("kv_b_proj") != std::string::npos) continue;
    config.targets.push_back(module.name);
    layers[module.name] = {.a = at::randn({kRank, module.in}, generator),
                           .b = at::randn({module.part.count, kRank}, generator) / 20,
                           .rank = kRank};
  }
  checkpoint::PeftFolder(config, std::move(layers), {}).write(folder);
}

/// Drafts are written without adapters, and change no completion of a request that has one.
void expect_equal_tokens_of_adapters(const std::string& folder) {
  test::TemporaryFolder adapters;
  write_adapters(adapters.path(), models::built_in().shape_of(checkpoint::read_config(folder)));
  comm::run_ranks(1, [&](comm::World& world) {
    comm::Mesh mesh(world, ParallelConfig{}.axes());
    run::Loading loading{.tokenizer = "none", .packing = nn::WeightPacking{}};
    loading.named_adapters.resize(1);
    loading.named_adapters[0].name = "poet", loading.named_adapters[0].folder = adapters.path();
    const run::SavedModel saved = run::load_model(folder, mesh, {}, at::kCPU, loading);
    std::vector<Request> requests = some_requests();
    infer::Engine base(*saved.model, {.cache_bytes = 1 << 22, .adapters = saved.adapters});
    const std::vector<Tokens> of_base = engine_test::answers_of(base, requests);
    for (size_t i = 0; i < requests.size(); i += 3) requests[i].adapter = "poet";
    infer::Engine plain(*saved.model, {.cache_bytes = 1 << 22, .adapters = saved.adapters});
    const std::vector<Tokens> want = engine_test::answers_of(plain, requests);
    EXPECT_NE(want, of_base);
    infer::Engine engine(*saved.model, {.cache_bytes = 1 << 22, .draft_tokens = 3, .adapters = saved.adapters});
    EXPECT_EQ(engine_test::answers_of(engine, requests), want);
    EXPECT_GT(engine.draft_counts().accepted, 0);
  });
}

TEST_P(MultiTokenDrafts, LeaveCompletionsUnchanged) {
  const ParallelConfig layouts[] = {{},
                                    {.tensor = {.size = 2}},
                                    {.pipeline = {.size = 2}},
                                    {.tensor = {.size = 2}, .pipeline = {.size = 2}},
                                    {.sequence = {.size = 2}},
                                    {.expert = {.size = 2}}};
  for (const ParallelConfig& layout : layouts)
    with_loaded(folder(), layout, [](const run::SavedModel& saved) {
      EXPECT_TRUE(saved.notices.empty());
      expect_equal_bits(*saved.model, {});
    });
  expect_equal_tokens_of_adapters(folder());
}

TEST_P(MultiTokenDrafts, LeaveCompletionsOfAQuantizedCacheUnchanged) {
  with_loaded(folder(), {}, [](const run::SavedModel& saved) { expect_equal_bits(*saved.model, at::kChar); });
}

// Prompt lookup would propose nothing here. Tokens from elsewhere would be right once in kVocabulary times.
TEST_P(MultiTokenDrafts, AcceptMostDraftsOfAModelThatKnowsItsText) {
  const int64_t layers = GetParam();
  with_loaded(folder(), {}, [&](const run::SavedModel& saved) {
    infer::Engine engine(*saved.model, {.cache_bytes = 1 << 22, .block_tokens = 16, .draft_tokens = layers});
    const Tokens text = text_from(3, 30);
    Tokens answer;
    engine.add({.prompt = Tokens(text.begin(), text.begin() + 6), .options = {.max_tokens = 24}},
               [&](const Event& event) {
                 if (event.is_answer()) answer.push_back(event.token);
               });
    while (engine.has_work()) engine.step();
    ASSERT_EQ(answer, Tokens(text.begin() + 6, text.end())) << "the model has learned the text";
    EXPECT_GT(engine.draft_counts().accepted, engine.draft_counts().proposed / 2);
    EXPECT_GT(engine.draft_counts().proposed, 0);
  });
}

/// Returns the drafts of a plain computation without a cache: the model and the layers read all tokens at once.
Tokens plain_drafts(const models::Model& model, const Tokens& tokens, int64_t count) {
  const auto row = [](const Tokens& ids) { return at::tensor(ids, at::kLong).unsqueeze(0); };
  const auto step_of = [&](const Tokens& ids) {
    return nn::step_of(nn::token_batch(row(ids), at::arange(static_cast<int64_t>(ids.size())).unsqueeze(0)));
  };
  const int64_t layers = model.multi_token->count();
  const Tokens read(tokens.begin(), tokens.end() - 1);
  at::Tensor in, out = models::run_stage(model, {.last = model.shape.layers}, {}, step_of(read))[0];
  Tokens all = tokens, drafts;
  for (int64_t k = 0; k < count; ++k) {
    const int64_t layer = std::min(k, layers - 1);
    in = k < layers ? out : at::cat({in, out.narrow(1, out.size(1) - 1, 1)}, 1);
    const Tokens ids(all.begin() + layer + 1, all.end());
    const nn::ForwardContext step = step_of(ids);
    out = model.multi_token->forward(layer, in, step);
    const at::Tensor logits = model.multi_token->logits(layer, out, step)[0];
    drafts.push_back(logits[logits.size(0) - 1].argmax().item<int64_t>());
    all.push_back(drafts.back());
  }
  return drafts;
}

/// Runs the steps of a sequence that begins with `prompt` and returns the drafts after each of the tokens `next`.
std::vector<Tokens> drafts_in_steps(DistributedModel& model, const Tokens& prompt, const Tokens& next, int64_t count,
                                    int64_t step_tokens) {
  ModelRunner runner(model, {.blocks = 4, .block_tokens = 16});
  runner.keep_hidden();
  infer::MultiTokenDrafts drafts(model, runner);
  Scheduler scheduler({.blocks = 4, .block_tokens = 16, .step_tokens = step_tokens});
  scheduler.add(0, prompt, static_cast<int64_t>(next.size()));
  std::vector<Tokens> all;
  while (all.size() < next.size()) {
    for (const Scheduler::ScheduledTokens& scheduled : scheduler.next()) {
      runner.logits(scheduler, {scheduled});
      infer::MultiTokenDrafts::Sequence read{0, 0, scheduled.first, scheduled.count, scheduled.is_last};
      if (scheduled.is_last) {
        scheduler.append(0, next[all.size()]);
        scheduler.reserve(0, drafts.entries_for(read, count));
        read.max_draft_tokens = count;
      }
      read.tokens = scheduler.tokens(0), read.blocks = scheduler.blocks(0);
      const Tokens draft = drafts.write({read}).at(0);
      if (!scheduled.is_last) continue;
      all.push_back(draft);
      scheduler.release(0);
    }
  }
  return all;
}

TEST_P(MultiTokenDrafts, EqualThoseOfAPlainComputation) {
  const int64_t layers = GetParam();
  comm::run_ranks(1, [&](comm::World& world) {
    comm::Mesh mesh(world, ParallelConfig{}.axes());
    DistributedModel model(mesh, {}, tiny(layers), {.seed = 5}, {});
    const at::NoGradGuard no_grad;
    for (nn::Parameter& p : model.parameters())
      if (p.value.dim() > 1) p.value.mul_(20);  // because otherwise all tokens are almost equally likely
    const Tokens prompt{4, 9, 30, 2, 2, 17, 8, 21, 5, 33, 0, 12, 6, 7}, next{11, 3, 29};
    // Chunks would change the last entries of the second layer, which reads a token that is not known yet.
    for (const int64_t step_tokens : layers == 1 ? Tokens{3, 64} : Tokens{64}) {
      const std::vector<Tokens> got = drafts_in_steps(model, prompt, next, 4, step_tokens);
      Tokens text = prompt;
      for (size_t i = 0; i < next.size(); ++i) {
        text.push_back(next[i]);
        // The second layer has read its own draft in place of a token that came later, so only the first ones compare.
        if (layers == 1 || i == 0) {
          EXPECT_EQ(got[i], plain_drafts(model.model(), text, 4)) << i;
        }
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Layers, MultiTokenDrafts, testing::Values(1, 2), testing::PrintToStringParamName());

// The last layer is applied again for tokens after its own.
TEST(MultiTokenDraftsAgain, AcceptDraftsAfterTheFirstOne) {
  const test::TemporaryFolder folder;
  Learned(1, 200).write(folder.path());
  with_loaded(folder.path(), {}, [](const run::SavedModel& saved) {
    infer::Engine engine(*saved.model, {.cache_bytes = 1 << 22, .block_tokens = 16, .draft_tokens = 3});
    int64_t most = 0, before = 0;
    engine.add({.prompt = text_from(3, 6), .options = {.max_tokens = 24}});
    while (engine.has_work()) {
      engine.step();
      most = std::max(most, engine.draft_counts().accepted - before);
      before = engine.draft_counts().accepted;
    }
    EXPECT_GE(most, 2);
  });
}

TEST(MultiTokenDraftsOfFolders, FallBackToLookupWithANotice) {
  const test::TemporaryFolder folder;
  Learned(1, 0).write(folder.path());
  const test::TemporaryFolder without;
  Learned(0, 0).write(without.path());
  std::filesystem::copy_file(folder / "config.json", without / "config.json",
                             std::filesystem::copy_options::overwrite_existing);
  for (const ParallelConfig& layout : {ParallelConfig{}, ParallelConfig{.pipeline = {.size = 2}}})
    with_loaded(without.path(), layout, [](const run::SavedModel& saved) {
      ASSERT_EQ(saved.notices.size(), 1u);
      EXPECT_THAT(saved.notices[0], testing::AllOf(testing::HasSubstr("num_nextn_predict_layers"),
                                                   testing::HasSubstr("--draft-tokens looks draft tokens up")));
      EXPECT_EQ(infer::MultiTokenDrafts::layers_of(*saved.model), 0);
      EXPECT_EQ(saved.model->decoding_model().shape.part<models::MultiTokenSizes>().layers, 0);
      infer::Engine engine(*saved.model, {.cache_bytes = 1 << 22, .block_tokens = 16, .draft_tokens = 2});
      Tokens twice = text_from(3, 6);
      twice.insert(twice.end(), twice.begin(), twice.end());
      engine.add({.prompt = twice, .options = {.max_tokens = 4}});
      while (engine.has_work()) engine.step();
      EXPECT_GT(engine.draft_counts().proposed, 0) << "the repeated prompt is looked up";
    });
}

TEST(MultiTokenDraftsOfFolders, NeedLayers) {
  comm::run_ranks(1, [&](comm::World& world) {
    comm::Mesh mesh(world, ParallelConfig{}.axes());
    DistributedModel model(mesh, {}, tiny(0), {}, {});
    ModelRunner runner(model, {.blocks = 4, .block_tokens = 16});
    EXPECT_THAT(test::thrown_message([&] { infer::MultiTokenDrafts(model, runner); }),
                testing::HasSubstr("need a model that has some"));
  });
}

}  // namespace
}  // namespace colossal::infer::multi_token_drafts_test
