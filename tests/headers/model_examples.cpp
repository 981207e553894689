// The examples at the beginning of headers of tensor, data, nn, models and parallel. All of them are compiled, and most
// are run. tests/base/examples_test.cpp compares them with the headers.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "colossal/base/json.h"
#include "colossal/data/batch_fields.h"
#include "colossal/models/decoder.h"
#include "colossal/models/folder_config.h"
#include "colossal/models/model.h"
#include "colossal/models/registry.h"
#include "colossal/models/task_batch.h"
#include "colossal/models/transformer_block.h"
#include "colossal/nn/adapter.h"
#include "colossal/nn/attention_cache.h"
#include "colossal/nn/batch_step.h"
#include "colossal/nn/embedding.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/linear.h"
#include "colossal/nn/linear_layers.h"
#include "colossal/nn/loss_head.h"
#include "colossal/nn/low_rank.h"
#include "colossal/nn/norm.h"
#include "colossal/nn/parameter.h"
#include "colossal/nn/reports.h"
#include "colossal/nn/serial_layers.h"
#include "colossal/ops/activation.h"
#include "colossal/ops/linear_token_scores.h"
#include "colossal/ops/token_scores.h"
#include "colossal/parallel/expert/config.h"
#include "colossal/parallel/pipeline/transfers.h"
#include "colossal/parallel/tensor/layout.h"
#include "colossal/parallel/tensor/linear.h"
#include "colossal/tensor/batch.h"
#include "colossal/tensor/host_value.h"
#include "colossal/tensor/replica_rows.h"
#include "colossal/train/engine.h"

namespace colossal::header_examples {
namespace {

TEST(HeaderExamples, Batch) {
  const at::Tensor ids = at::ones({4, 8}, at::kLong), labels = at::ones({4, 8}, at::kLong), weights = at::ones({4, 3});
  const at::Device device = at::kCPU;
  using tensor::Dim;
  tensor::Batch batch;
  batch.add("ids", {ids, {Dim::Row, Dim::Token}});
  batch.add("labels", {labels, {Dim::Row, Dim::Token}, /*ignored=*/-100});
  batch.add("weights", {weights, {Dim::Row, Dim::Other}});
  const tensor::Batch half = batch.part(0, batch.rows() / 2);
  const tensor::Batch there = batch.map([&](const tensor::Field& f) { return f.tensor.to(device); });
  const at::Tensor& read = there.at("ids");
  EXPECT_TRUE(at::equal(read, ids));
  EXPECT_EQ(half.at("weights").data_ptr(), weights.data_ptr());
  EXPECT_EQ(half.rows(), 2);
}

TEST(HeaderExamples, ReplicaRows) {
  tensor::Batch batch;
  batch.add("ids", {at::arange(8, at::kLong), {tensor::Dim::Row}});
  const tensor::ReplicaRows rows{.batch_size = 8, .micro_batches = 2, .replica = 1, .replicas = 2};
  const std::vector<int64_t> global{rows.global(0), rows.global(1), rows.global(2), rows.global(3)};
  const tensor::Batch own = rows.of(batch);
  EXPECT_TRUE(at::equal(own.at("ids"), at::tensor(global)));
}

TEST(HeaderExamples, ExpertConfig) {
  const parallel::ExpertConfig config{.size = 4, .tensor = "deal"};
  parallel::check_experts(8, config);
  const std::vector<comm::Mesh::Axis> axes = parallel::expert_axes(config);
  EXPECT_EQ(axes.size(), 1u);
}

TEST(HeaderExamples, BatchFields) {
  const at::Tensor ids = at::ones({4, 8}, at::kLong), labels = ids, positions = ids, images = at::zeros({4, 3, 8, 8}),
                   classes = at::zeros({4, 1}, at::kLong);
  const tensor::Batch batch = data::text_batch(ids, labels, positions);
  const tensor::Batch pictures = data::image_batch(images, classes);
  EXPECT_EQ(batch.fields().size(), 3u);
  EXPECT_EQ(pictures.fields().size(), 2u);
}

TEST(HeaderExamples, BatchStep) {
  const at::Tensor ids = at::ones({4, 8}, at::kLong), positions = ids;
  const tensor::Batch micro_batch = data::text_batch(ids, ids);
  const std::unique_ptr<nn::AttentionCache> cache;
  nn::ForwardContext step = nn::step_of(micro_batch);
  step.training = true;
  nn::ForwardContext decoding = nn::step_of(nn::token_batch(ids, positions));
  decoding.parts.set(nn::Decoding{cache.get()});
  EXPECT_EQ(step.batch->rows(), 4);
  EXPECT_FALSE(step.positions.defined());
  EXPECT_TRUE(decoding.positions.defined());
}

TEST(HeaderExamples, TypedParts) {
  struct Frames {
    int64_t count;
  };
  nn::ForwardContext step;
  EXPECT_EQ(step.parts.find<Frames>(), nullptr);
  step.parts.set(Frames{16});
  const Frames* frames = step.parts.find<Frames>();
  const nn::ForwardContext next{.parts = {Frames{8}, nn::Sequences{{5, 3}}}};
  EXPECT_EQ(frames->count, 16);
  EXPECT_EQ(next.parts.find<Frames>()->count, 8);
  EXPECT_EQ(nn::sequences_of(next).lengths.size(), 2u);
}

TEST(HeaderExamples, Parameter) {
  const tensor::MeshCoordinates coordinates({{"tensor", 2, 1}});
  nn::Parameters parameters(coordinates, {.treatment = [](const std::string& name) {
                              return nn::Treatment{.trains = name != "embedding.weight"};
                            }});
  const auto rows = tensor::ShardSpec::split({64, 16}, 0, {"tensor"});
  nn::Parameter& weight = parameters.add("embedding.weight", rows, nn::Init::normal(0.02), /*decay=*/true);
  nn::Buffer& bias = parameters.buffer("blocks.0.router.bias", tensor::ShardSpec::whole({4}), at::kFloat);
  EXPECT_FALSE(weight.treatment.trains);
  EXPECT_EQ(weight.value.size(0), 32);
  EXPECT_TRUE(at::equal(bias.value, at::zeros({4})));
}

TEST(HeaderExamples, LowRank) {
  nn::Adapter adapter{.treatment = [](const std::string& name) {
    const bool is_adapter = nn::is_low_rank(name);
    return nn::Treatment{.trains = is_adapter, .saved = is_adapter};
  }};
  adapter.product = [](auto product, const nn::Parameter& weight, nn::Parameters& parameters) {
    return weight.hidden_matrix ? nn::with_low_rank(product, weight, parameters, {.rank = 4}) : product;
  };
  nn::Parameters parameters({}, {.treatment = adapter.treatment, .products = {adapter.product}});
  nn::SerialLayers make(parameters);
  make.expand("blocks.0.mlp.up", 8, 16, {.deviation = 0.02});
  EXPECT_FALSE(parameters.at("blocks.0.mlp.up.weight").treatment.trains);
  EXPECT_TRUE(parameters.at("blocks.0.mlp.up.adapter_a").treatment.trains);
}

TEST(HeaderExamples, TokenScores) {
  const at::Tensor logits = at::zeros({3, 5}), labels = at::tensor({0, 4, 1}, at::kLong), advantages = at::ones({3});
  const ops::TokenScores scores = ops::token_scores(logits, labels, {.temperature = 0.7, .entropy = true});
  const at::Tensor loss = -(advantages * scores.log_probabilities + 0.01 * scores.entropies).mean();
  EXPECT_NEAR(loss.item<float>(), 0.99 * std::log(5), 1e-6);
}

TEST(HeaderExamples, LinearTokenScores) {
  const at::Tensor hidden = at::ones({3, 4}), weight = at::eye(5, 4), labels = at::tensor({0, 4, -100}, at::kLong);
  const at::Tensor advantages = at::ones({3});
  const ops::TokenScores scores = ops::linear_token_scores(hidden, weight, {}, labels, {.entropy = true});
  const at::Tensor loss = -(advantages * scores.log_probabilities).sum() - 0.01 * scores.entropies.sum();
  const at::Tensor all = at::log_softmax(at::matmul(hidden, weight.t()), -1)[0];
  EXPECT_TRUE(at::allclose(loss, -(all[0] + all[4]) + 0.02 * (all.exp() * all).sum()));
}

at::Tensor tokens_of_each_expert(const at::Tensor&) { return at::tensor({1.0, 5.0}); }
at::Tensor balance_loss(const at::Tensor& x) { return x.square().sum(); }

TEST(HeaderExamples, Reports) {
  struct Router {
    Router(const std::string& name, int64_t experts, nn::Layers& make)
        : load(make.reports().add({.name = name + ".load", .size = experts, .over = nn::Over::Sum})),
          balance(make.reports().add_loss({.name = name + ".balance", .weight = 0.01})) {}
    at::Tensor forward(const at::Tensor& x, const nn::ForwardContext& step) {
      step.report(load, tokens_of_each_expert(x));
      return step.attach_loss(balance, balance_loss(x), x);
    }
    nn::Report load, balance;
  };
  nn::Parameters parameters({}, {});
  nn::SerialLayers make(parameters);
  Router router("blocks.0.router", 2, make);
  const nn::Report load = router.load;
  models::Model model;
  model.end_step = [=](const nn::Reported& reported, std::vector<Metric>& rows) {
    const std::vector<double>& loads = reported.at(load);
    rows.push_back({.name = "largest_load", .value = *std::max_element(loads.begin(), loads.end())});
  };
  std::vector<Metric> rows;
  model.end_step({.values = {{1, 5}, {0.5}}}, rows);
  EXPECT_EQ(number_of(rows.at(0)), 5);
  const at::Tensor x = at::ones({2, 3});
  EXPECT_TRUE(at::equal(router.forward(x, {}), x)) << "a step without reports";
}

}  // namespace

// This example is compiled, but not run.

void adapter(comm::World& world, const run::Config& config, const models::ModelShape& shape) {
  const nn::Adapter head_only{
      .treatment = [](const std::string& name) { return nn::Treatment{.trains = name.starts_with("head.")}; }};
  const auto engine = train::initialize(world, config, train::NamedModel{.shape = shape, .adapter = head_only});
}

at::Tensor mean_loss(const models::Model& model, const tensor::Batch& batch, const at::Tensor& hidden,
                     const nn::ForwardContext& step) {
  models::check_batch(model.shape, batch);
  const double labels = tensor::host_value(models::counted_labels(batch));
  at::Tensor loss = models::loss_sum(model, hidden, step) / labels;
  return loss;
}

}  // namespace colossal::header_examples

namespace colossal::models::header_examples {
namespace {

using tensor::Dim;

Model make(const ModelShape& s, nn::Layers& layers) {
  Model model;
  model.fields = {"ids", "positions"};
  std::shared_ptr<nn::Embedding> tokens = layers.embedding("embedding", s.vocabulary, s.hidden, 0.02);
  model.embed = [=](const tensor::Batch& b, const nn::ForwardContext& step) {
    return tokens->forward(b.at("ids"), step);
  };
  add_transformer_blocks(model, s, {.activation = ops::gelu}, layers);
  std::shared_ptr<nn::Norm> norm = layers.layer_norm("norm", s.hidden, {s.norm_epsilon});
  model.norm = [=](const at::Tensor& x, const nn::ForwardContext&) { return norm->forward(x); };
  model.head = layers.lm_head("head", s.hidden, s.vocabulary, {.tied = s.tied ? tokens.get() : nullptr});
  return model;
}

struct Mixer {
  at::Tensor forward(const at::Tensor& hidden, const nn::ForwardContext&) const {
    return at::full({hidden.size(0), 8, 8, 32}, hidden.size(1), hidden.options());
  }
};

struct MyLmSizes {
  int64_t window = 0;
  void fields(Fields& f) { f.integer("window", window, "tokens", "attention window; 0 = no limit"); }
  bool operator==(const MyLmSizes&) const = default;
};

void keys(FolderKeys& k, ModelShape& s, MyLmSizes& own) {
  k.required("vocab_size", s.vocabulary);
  k.required("hidden_size", s.hidden, "n_embed");
  k.required("num_hidden_layers", s.layers);
  k.required("num_attention_heads", s.heads);
  if (k.reads()) s = gpt_layout(s.vocabulary, s.hidden, s.layers, s.heads);
  k.optional("intermediate_size", s.ffn, s.ffn);
  k.optional("layer_norm_eps", s.norm_epsilon, 1e-5);
  k.or_null("sliding_window", own.window, 4096);
  k.fixed("parallel_residual", true);
  k.only("is_decoder", false);
  k.written("attention_dropout", 0.0);
}

ModelShape from_json(const nlohmann::json& j) { return read_folder(FolderConfig(j, "MyLM"), keys); }

nlohmann::json to_json(const ModelShape& s) { return write_folder("my_lm", "MyLMForCausalLM", s, keys); }

TEST(HeaderExamples, FolderConfig) {
  const ModelShape shape = from_json({{"vocab_size", 20},
                                      {"n_embed", 8},
                                      {"num_hidden_layers", 2},
                                      {"num_attention_heads", 2},
                                      {"sliding_window", nullptr}});
  EXPECT_EQ(shape.hidden, 8);
  EXPECT_EQ(shape.ffn, 32);
  EXPECT_EQ(shape.own.as<MyLmSizes>().window, 0);
  const nlohmann::json written = to_json(shape);
  EXPECT_EQ(written["architectures"], nlohmann::json::array({"MyLMForCausalLM"}));
  EXPECT_EQ(written["sliding_window"], nlohmann::json());
  EXPECT_EQ(from_json(written), shape);
}

TEST(HeaderExamples, Model) {
  const ModelShape s{
      .vocabulary = 20, .hidden = 8, .layers = 2, .heads = 2, .kv_heads = 2, .head_dim = 4, .ffn = 16, .positions = 32};
  nn::Parameters parameters({}, {});
  nn::SerialLayers layers(parameters);
  Model model = make(s, layers);
  EXPECT_EQ(model.blocks.size(), 2u);
  const auto block = std::make_shared<const Mixer>();
  const State pair{.name = "pair",
                   .dims = {Dim::Row, Dim::Other, Dim::Other, Dim::Feature},
                   .sizes = [](const nn::ForwardContext& step, int64_t) -> std::vector<int64_t> {
                     return {step.batch->rows(), 8, 8, 32};
                   }};
  model.states = {hidden_state(s.hidden, s.positions), pair};
  model.blocks.push_back({{0, 1}, {1}, [block](models::States& states, const nn::ForwardContext& step) {
                            states[1] = states[1] + block->forward(states[0], step);
                          }});
  States states{at::zeros({2, 3, 8}), at::ones({2, 8, 8, 32})};
  model.blocks.back().run(states, {});
  EXPECT_TRUE(at::equal(states[1], at::full({2, 8, 8, 32}, 4.0)));
}

}  // namespace
}  // namespace colossal::models::header_examples

namespace colossal::parallel::header_examples {
namespace {

TEST(HeaderExamples, PassedStates) {
  std::vector<std::pair<int, int>> got;
  const auto receive = [&](const PassedState& passed, int stage) { got.emplace_back(passed.to, stage); };
  const auto placement = schedule::Placement::looped(4, 1);
  const std::vector<PassedState> passed{{.state = 0, .from = 0, .to = 1, .sizes = {8, 64, 32}},
                                        {.state = 0, .from = 1, .to = 3, .sizes = {8, 64, 32}}};
  const StateRoutes routes(placement, passed);
  for (const StateRoutes::Stop& stop : routes.arrivals(2)) receive(routes[stop.passed], stop.stage);
  EXPECT_EQ(got, (std::vector<std::pair<int, int>>{{3, 1}}));
}

}  // namespace

// This example is compiled, but not run.

at::Tensor values_of(nn::Parameters& parameters, const std::shared_ptr<const Layout>& layout, int64_t hidden_size,
                     const at::Tensor& hidden, const nn::ForwardContext& step) {
  TensorOutputs values(parameters, layout, "head.value", hidden_size, 1, {});
  const at::Tensor y = values.forward(hidden, step);
  return y;
}

}  // namespace colossal::parallel::header_examples
