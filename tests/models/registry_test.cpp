// A registry with an architecture that is not in the library: its keys in a config, its refusals, its model.
#include "colossal/models/registry.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include "colossal/base/json.h"
#include "colossal/models/config.h"
#include "colossal/models/task_batch.h"
#include "colossal/models/transformer_block.h"
#include "colossal/nn/batch_step.h"
#include "colossal/nn/embedding.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/loss_head.h"
#include "colossal/nn/norm.h"
#include "colossal/nn/recompute.h"
#include "colossal/nn/serial_layers.h"
#include "colossal/ops/activation.h"
#include "models/hidden_states.h"
#include "support/parity.h"
#include "support/thrown_message.h"

namespace colossal::models::registry_test {
namespace {

using testing::HasSubstr;

struct OwnKeys {
  bool gated = false;
  int64_t reach = 8;
  std::string mixing = "sum";
  void fields(Fields& f) {
    f.flag("gated", gated, "whether the feed-forward layer has a gate");
    f.integer("reach", reach, "tokens", "that a token sees", 1, 64);
    f.choice("mixing", mixing, {"sum", "mean"}, "of tokens");
  }
  bool operator==(const OwnKeys&) const = default;
};

BlockVariant variant_of(const ModelShape& s) {
  const bool gated = s.own.as<OwnKeys>().gated;
  const auto swiglu = [](const at::Tensor& both) { return ops::swiglu(both); };
  return {.activation = gated ? nn::Unary(swiglu) : nn::Unary(ops::gelu), .gated = gated};
}

Model make(const ModelShape& s, nn::Layers& layers) {
  Model model;
  std::shared_ptr<nn::Embedding> tokens = layers.embedding("embedding", s.vocabulary, s.hidden, 0.02);
  model.embed = [=](const tensor::Batch& batch, const nn::ForwardContext& step) {
    return tokens->forward(batch.at("ids"), step);
  };
  add_transformer_blocks(model, s, variant_of(s), layers);
  model.norm = [](const at::Tensor& x, const nn::ForwardContext&) { return x; };
  model.head = layers.lm_head("head", s.hidden, s.vocabulary, {});
  return model;
}

Architecture strange() {
  return {.name = "strange",
          .own = OwnKeys{},
          .presets = {{"strange-tiny",
                       {.vocabulary = 20,
                        .hidden = 8,
                        .layers = 2,
                        .heads = 2,
                        .kv_heads = 2,
                        .head_dim = 4,
                        .ffn = 16,
                        .positions = 32}}},
          .make = make};
}

Registry with_strange() {
  Registry registry = built_in();
  registry.add(strange());
  return registry;
}

std::string refusal(const Registry& registry, const ModelConfig& config) {
  return test::thrown_message([&] { registry.resolve(config); });
}

TEST(Registry, ResolvesAndBuildsAddedArchitecture) {
  const ModelShape shape =
      with_strange().resolve({.name = "strange-tiny", .layers = 3, .own = own_keys({"gated=true", "reach=4"})}, 30);
  EXPECT_EQ(shape.vocabulary, 30);
  EXPECT_EQ(shape.own.as<OwnKeys>(), (OwnKeys{.gated = true, .reach = 4}));
  nn::Parameters parameters({}, {});
  nn::SerialLayers layers(parameters);
  const Model model = make_model(shape, layers);
  EXPECT_EQ(parameters.at("blocks.2.mlp.gate_up.weight").spec.shape, (std::vector<int64_t>{32, 8}));
  EXPECT_EQ(hidden_states(model, at::zeros({2, 5}, at::kLong), {}).sizes(), (std::vector<int64_t>{2, 5, 8}));
  // 6 operations per matrix element and token, 12 per pair of tokens (15 pairs) and feature of a head.
  EXPECT_EQ(costs_of(shape, example_batch(shape, 1, 5)).blocks,
            std::vector<double>(3, 6 * 5 * (4 * 8 * 8 + 3 * 8 * 16) + 12 * 15 * 8));
  EXPECT_EQ(costs_of(shape, example_batch(shape, 1, 5)).last, 6 * 5 * 8 * 30);
  EXPECT_THAT(test::thrown_message([] { built_in().resolve({.name = "strange-tiny"}); }),
              HasSubstr("unknown preset `strange-tiny`"));
}

TEST(Registry, RoundTripsOwnKeysThroughConfig) {
  ModelConfig config;
  const auto read = [&](const std::string& toml) {
    struct File {
      ModelConfig model;
      void fields(Fields& f) { f.section("model", model, ""); }
    } file;
    ConfigDocument::parse(toml, "x.toml").read(file);
    return file;
  };
  const auto file = read("[model]\nname = \"strange-tiny\"\nmixing = \"mean\"\nreach = 3\n");
  EXPECT_EQ(with_strange().resolve(file.model).own.as<OwnKeys>(), (OwnKeys{.reach = 3, .mixing = "mean"}));
  const auto again = read(to_toml(file));
  EXPECT_EQ(with_strange().resolve(again.model), with_strange().resolve(file.model));
  EXPECT_EQ(again.model.own.values().size(), 2u);
}

TEST(Registry, RefusesUnknownKeysOfArchitecture) {
  const Registry registry = with_strange();
  EXPECT_THAT(refusal(registry, {.name = "strange-tiny", .own = own_keys({"rech=3"})}),
              HasSubstr("unknown key `model.rech`, did you mean `model.reach`?"));
  EXPECT_THAT(refusal(registry, {.name = "strange-tiny", .own = own_keys({"hiden=3"})}),
              HasSubstr("unknown key `model.hiden`, did you mean `model.hidden`?"));
  EXPECT_THAT(refusal(registry, {.name = "strange-tiny", .own = own_keys({"reach=65"})}),
              HasSubstr("`model.reach` must be between 1 and 64 (tokens): got 65"));
  EXPECT_THAT(refusal(registry, {.name = "strange-tiny", .own = own_keys({"patch=4"})}),
              HasSubstr("`model.patch` is a key of models of architecture vit, and strange-tiny is a strange, which "
                        "has the keys gated, reach, mixing"));
  EXPECT_THAT(refusal(registry, {.name = "bloom-tiny", .own = own_keys({"reach=4"})}),
              HasSubstr("`model.reach` is a key of models of architecture strange, and bloom-tiny is a bloom, which "
                        "has no keys besides the common ones"));
}

TEST(Registry, KeepsOwnKeysOfPresets) {
  const ModelShape shape =
      built_in().resolve({.name = "llama3.1-8b", .own = own_keys({"rope_original_positions=4096"})});
  ModelShape preset = built_in().resolve({.name = "llama3.1-8b"});
  EXPECT_FALSE(shape == preset);
  EXPECT_THAT(to_toml(shape.own), HasSubstr("rope_theta = 5e+05"));
  EXPECT_THAT(to_toml(shape.own), HasSubstr("rope_original_positions = 4096"));
}

TEST(Registry, RefusesTakenNames) {
  Registry registry = with_strange();
  const auto adding = [&](const Architecture& row) { return test::thrown_message([&] { registry.add(row); }); };
  Architecture other = strange();
  EXPECT_THAT(adding(other), HasSubstr("the name of an architecture must be new: strange is registered already"));
  other.name = "stranger";
  EXPECT_THAT(adding(other), HasSubstr("the name of a preset must be new: strange-tiny is registered already"));
  other.presets.clear();
  other.hugging_face.model_type = "gpt2";
  EXPECT_THAT(adding(other), HasSubstr("folders of model_type gpt2 are read by gpt2 already"));
  other.hugging_face.model_type.clear();
  EXPECT_EQ(adding(other), "");
  other.hugging_face = registry.at("llama")->hugging_face;
  other.hugging_face.model_type = "strange";
  other.name = "window";
  EXPECT_THAT(adding(other), HasSubstr("folders of model_type mistral are read by llama already"));
  other.name = "";
  EXPECT_THAT(adding(other), HasSubstr("must have a name and a make: got no name"));
  other.name = "empty";
  other.make = nullptr;
  EXPECT_THAT(adding(other), HasSubstr("must have a name and a make: got empty"));
}

TEST(Registry, RefusesIncompleteHuggingFaceRow) {
  Registry registry = built_in();
  Architecture row = strange();
  row.hugging_face = registry.at("gpt2")->hugging_face;
  row.hugging_face.model_type = "strange";
  row.hugging_face.to_json = nullptr;
  EXPECT_THAT(test::thrown_message([&] { registry.add(row); }),
              HasSubstr("must have its names, from_json and to_json: got strange without"));
  EXPECT_EQ(registry.architectures().size(), built_in().architectures().size());
}

TEST(Registry, RefusesOwnKeysNamedLikeCommonKeys) {
  struct Shadowing {
    double dropout = 0.5;
    void fields(Fields& f) { f.number("dropout", dropout, "", "of attention", 0, 1); }
    bool operator==(const Shadowing&) const = default;
  };
  Registry registry = built_in();
  Architecture row = strange();
  row.own = Shadowing{};
  EXPECT_THAT(test::thrown_message([&] { registry.add(row); }),
              HasSubstr("keys of an architecture must differ from the keys of all models: got dropout of strange"));
}

TEST(Registry, RefusesCostsOfBlocksThatReadValues) {
  Architecture row = strange();
  row.make = [](const ModelShape& s, nn::Layers& layers) {
    Model model = make(s, layers);
    model.blocks.back() = [](const at::Tensor& x, const nn::ForwardContext&) { return x * x.sum().item<double>(); };
    return model;
  };
  Registry registry = built_in();
  const ModelShape shape = registry.add(row).resolve({.name = "strange-tiny"});
  EXPECT_THAT(test::thrown_message([&] { costs_of(shape, example_batch(shape, 1, 5)); }),
              HasSubstr("the blocks of strange must run on tensors without data (at::kMeta)"));
  row.make = [](const ModelShape& s, nn::Layers& layers) {
    Model model = make(s, layers);
    model.blocks.back() = [](const at::Tensor& x, const nn::ForwardContext&) { return x.abs(); };
    return model;
  };
  Registry other = built_in();
  const ModelShape without_kernel = other.add(row).resolve({.name = "strange-tiny"});
  EXPECT_THAT(test::thrown_message([&] { costs_of(without_kernel, example_batch(without_kernel, 1, 5)); }),
              testing::AllOf(HasSubstr("aten::abs"), testing::Not(HasSubstr("\n"))));
}

/// Returns a shape of the strange architecture with its model made by `make`.
ModelShape shape_of(Model (*make)(const ModelShape&, nn::Layers&)) {
  Architecture row = strange();
  row.make = make;
  Registry registry = built_in();
  return registry.add(row).resolve({.name = "strange-tiny"});
}

/// Returns the error message of make_model().
std::string refusal_of_model(Model (*make)(const ModelShape&, nn::Layers&)) {
  const ModelShape shape = shape_of(make);
  nn::Parameters parameters({}, {});
  nn::SerialLayers layers(parameters);
  return test::thrown_message([&] { make_model(shape, layers); });
}

template <auto part>
Model make_without(const ModelShape& s, nn::Layers& layers) {
  Model model = make(s, layers);
  model.*part = nullptr;
  return model;
}

TEST(Registry, RefusesModelsWithoutEmbedBlocksOrNorm) {
  EXPECT_EQ(refusal_of_model(make), "");
  EXPECT_THAT(refusal_of_model(make_without<&Model::embed>),
              HasSubstr("strange must make an embed, blocks and a norm: got "
                        "no embed"));
  EXPECT_THAT(refusal_of_model(make_without<&Model::norm>), HasSubstr("got no norm (one that does nothing"));
}

Model make_headless(const ModelShape& s, nn::Layers& layers) {
  Model model = make(s, layers);
  model.head = nullptr;
  return model;
}

TEST(Registry, RefusesUseOfMissingHead) {
  EXPECT_EQ(refusal_of_model(make_headless), "");
  const ModelShape shape = shape_of(make_headless);
  EXPECT_LT(costs_of(shape, example_batch(shape, 1, 4)).last,
            costs_of(shape_of(make), example_batch(shape, 1, 4)).last);
  nn::Parameters parameters(tensor::MeshCoordinates{}, {});
  nn::SerialLayers layers(parameters);
  const Model model = make_model(shape, layers);
  const nn::ForwardContext step = nn::step_of(test::batch_of_ones(shape, 1, 4));
  const at::Tensor hidden = at::zeros({1, 4, shape.hidden});
  for (const auto& use : {loss_sum, found_labels})
    EXPECT_THAT(test::thrown_message([&] { use(model, hidden, step); }),
                HasSubstr("[model] strange has no head, which losses of labels, accuracy, logits and generation need"));
}

/// A network with its own fields, without attention or a head.
Architecture network() {
  return {.name = "network",
          .presets = {{"network-tiny", {.hidden = 8, .layers = 2}}},
          .make =
              [](const ModelShape& s, nn::Layers& layers) {
                Model model;
                std::shared_ptr<nn::Norm> norm = layers.layer_norm("norm", s.hidden, {1e-5});
                model.embed = [](const tensor::Batch& batch, const nn::ForwardContext&) { return batch.at("numbers"); };
                model.blocks.assign(s.layers, [](const at::Tensor& x, const nn::ForwardContext&) { return x; });
                model.norm = [norm](const at::Tensor& x, const nn::ForwardContext&) { return norm->forward(x); };
                return model;
              },
          .task = [](const ModelShape&) { return Task{.reads = Reads::Fields, .writes = Writes::Nothing}; },
          .unused = {"heads", "kv_heads", "head_dim", "ffn", "positions"}};
}

TEST(Registry, AllowsZeroForUnusedSizes) {
  Registry registry;
  const ModelShape shape = registry.add(network()).resolve({.name = "network-tiny", .hidden = 12});
  EXPECT_EQ(shape.hidden, 12);
  EXPECT_EQ(shape.heads, 0);
  nn::Parameters parameters({}, {});
  nn::SerialLayers layers(parameters);
  EXPECT_EQ(make_model(shape, layers).head, nullptr);
  EXPECT_THAT(test::thrown_message([&] { registry.resolve({.name = "network-tiny", .heads = 2}); }),
              HasSubstr("heads has no effect on a network, which does not use it: got 2; remove it from [model]"));
  ModelShape negative = shape;
  negative.ffn = -1;
  EXPECT_THAT(test::thrown_message([&] { negative.validate(); }), HasSubstr("ffn must be positive: got -1"));
  Architecture uses_all = network();
  uses_all.unused.clear();
  EXPECT_THAT(test::thrown_message([&] { Registry().add(uses_all).resolve({.name = "network-tiny"}); }),
              HasSubstr("heads must be positive: got 0"));
}

TEST(Registry, RefusesParameterNamesWithoutPlace) {
  EXPECT_THAT(refusal_of_model([](const ModelShape& s, nn::Layers& layers) {
                layers.layer_norm("blocks.shared", s.hidden, {1e-5});
                return make(s, layers);
              }),
              HasSubstr("must be named `blocks.<i>.<name>` with i in [0, 2): got blocks.shared."));
  EXPECT_THAT(refusal_of_model([](const ModelShape& s, nn::Layers& layers) {
                layers.layer_norm("blocks.2.norm", s.hidden, {1e-5});
                return make(s, layers);
              }),
              HasSubstr("with i in [0, 2): got blocks.2.norm."));
  EXPECT_THAT(refusal_of_model([](const ModelShape& s, nn::Layers& layers) {
                Model model = make(s, layers);
                layers.layer_norm("final_norm", s.hidden, {1e-5});
                return model;
              }),
              HasSubstr("made after the blocks must have names that begin with `norm.` or `head.`: got final_norm."));
  EXPECT_THAT(test::thrown_message(
                  [] { stages_using("blocks.x.weight", built_in().resolve({.name = "gpt2-tiny"}), {0, 2, 4}); }),
              HasSubstr("must be named `blocks.<i>.<name>`"));
}

TEST(Registry, RefusesOwnSizesOfAnotherArchitecture) {
  ModelShape shape = with_strange().resolve({.name = "strange-tiny"});
  shape.architecture = built_in().at("llama");
  nn::Parameters parameters({}, {});
  nn::SerialLayers layers(parameters);
  EXPECT_THAT(test::thrown_message([&] { make_model(shape, layers); }),
              HasSubstr("must be read as the type that they were made from: got another type"));
}

}  // namespace
}  // namespace colossal::models::registry_test
