// The objective that a config selects, refusals, and the way the library's objectives use a model.
#include "colossal/run/objective.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <cmath>

#include "colossal/base/config.h"
#include "colossal/base/error.h"
#include "colossal/base/known_metrics.h"
#include "colossal/nn/forward_context.h"
#include "colossal/run/program.h"
#include "support/thrown_message.h"

namespace colossal::run::objective_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

struct RankingKeys {
  int64_t pairs = 3;
  double margin = 0.5;
  void fields(Fields& f) {
    f.integer("pairs", pairs, "pairs", "pairs of a sample", 1);
    f.number("margin", margin, "", "smallest difference");
  }
  bool operator==(const RankingKeys&) const = default;
};

class Ranking : public Objective {
 public:
  explicit Ranking(RankingKeys keys) : keys(keys) {}
  OpenedData open(const DataRequest&) const override { return {}; }
  tensor::Batch example(int64_t) const override { return {}; }
  void check(const tensor::Batch&) const override {}
  double weight(const tensor::Batch&) const override { return 1; }
  at::Tensor loss(const models::Model&, const models::States& end, const nn::ForwardContext&) const override {
    return end.at(0).sum();
  }
  const RankingKeys keys;
};

ObjectiveRow ranking(const std::string& name, const std::string& table) {
  return {.name = name,
          .tables = {{table, RankingKeys{}}},
          .make = [table](const Config&, const OwnTables& tables, const models::ModelShape&) {
            return std::make_unique<Ranking>(tables.as<RankingKeys>(table));
          }};
}

Objectives two_more() {
  Objectives objectives = built_in_objectives();
  objectives.add(ranking("ranking", "ranking")).add(ranking("ordering", "ordering"));
  return objectives;
}

Config config_of(const std::string& toml, const std::vector<std::string>& flags = {}) {
  ConfigDocument document = ConfigDocument::parse(toml, "x.toml");
  for (const std::string& flag : flags) document.set(flag);
  Config config;
  document.read(config);
  return config;
}

models::ModelShape shape_of(const std::string& preset) { return models::built_in().resolve({.name = preset}); }

ChosenObjective chosen(const Config& config, const std::string& preset = "gpt2-tiny") {
  return choose_objective(config, two_more(), shape_of(preset));
}

std::string refusal(const Config& config) {
  return test::thrown_message([&] { chosen(config); });
}

TEST(ChooseObjective, UsesDefaultOfArchitecture) {
  EXPECT_EQ(chosen({}).name, "next-token");
  EXPECT_EQ(chosen({}, "bert-tiny").name, "masked-token");
  EXPECT_EQ(chosen({}, "t5-tiny").name, "target");
  EXPECT_EQ(chosen({}, "vit-tiny-cifar").name, "class");
  EXPECT_TRUE(chosen({}).tables.values().empty());
}

// A row of an encoder and a decoder has the tokens of both, and an image has its patches and the class token.
TEST(Objective, CountsTheTokensOfItsRows) {
  Config config;
  config.data.sequence = 96;
  const auto counted = [&](const std::string& preset) {
    const auto objective = choose_objective(config, two_more(), shape_of(preset)).objective;
    return objective->tokens(objective->example(3), shape_of(preset));
  };
  EXPECT_EQ(counted("gpt2-tiny"), 3 * 96);
  EXPECT_EQ(counted("bert-tiny"), 3 * 96);
  EXPECT_EQ(counted("t5-tiny"), 3 * 96);
  EXPECT_EQ(counted("vit-tiny-cifar"), 3 * shape_of("vit-tiny-cifar").positions);
}

TEST(ChooseObjective, SelectsByTableOfConfig) {
  const ChosenObjective given = chosen(config_of("[ranking]\npairs = 7\n", {"--ranking.margin=0.25"}));
  EXPECT_EQ(given.name, "ranking");
  EXPECT_EQ(dynamic_cast<const Ranking&>(*given.objective).keys, (RankingKeys{7, 0.25}));
  EXPECT_EQ(chosen(config_of("[ordering]\n")).name, "ordering") << "an empty table is enough";
  EXPECT_EQ(chosen(config_of("", {"--ordering.pairs=1"})).name, "ordering");
}

// The config that a run saves has every key of the table, and reads back equal.
TEST(ChooseObjective, SavesAllKeysOfItsTable) {
  Config config = config_of("[ranking]\npairs = 7\n");
  config.tables = chosen(config).tables;
  const std::string kept = to_toml(config);
  EXPECT_THAT(kept, HasSubstr("[ranking]\nmargin = 0.5\npairs = 7\n"));
  const Config again = config_of(kept);
  EXPECT_EQ(to_toml(again), kept);
  EXPECT_EQ(dynamic_cast<const Ranking&>(*chosen(again).objective).keys, (RankingKeys{7, 0.5}));
}

TEST(ChooseObjective, SavesTableWithoutKeys) {
  Objectives objectives = built_in_objectives();
  ObjectiveRow row = objectives.at("next-token");
  row.name = "keyless";
  row.tables = {{"keyless", OwnKeys()}};
  objectives.add(row);
  Config config = config_of("[keyless]\n");
  config.tables = choose_objective(config, objectives, shape_of("gpt2-tiny")).tables;
  const Config again = config_of(to_toml(config));
  EXPECT_EQ(choose_objective(again, objectives, shape_of("gpt2-tiny")).name, "keyless");
}

TEST(ChooseObjective, RefusesTableOfAnAdapter) {
  EXPECT_THAT(
      test::thrown_message([&] { choose_objective({}, two_more(), shape_of("gpt2-tiny"), {{"ranking", OwnKeys{}}}); }),
      HasSubstr("the table of an objective must be new: [ranking] belongs to an adapter"));
}

TEST(ChooseObjective, RefusesTablesOfTwoObjectives) {
  EXPECT_EQ(refusal(config_of("[ordering]\n[ranking]\npairs = 2\n")),
            "[config] a config must have the table of one objective: got [ranking] and [ordering]; leave one out");
}

TEST(ChooseObjective, NamesNearestForUnknownTablesAndKeys) {
  EXPECT_EQ(refusal(config_of("[rankin]\npairs = 2\n")),
            "[config] x.toml:2: unknown key `rankin.pairs`, did you mean `ranking.pairs`?");
  EXPECT_EQ(refusal(config_of("[rankin]\n")), "[config] x.toml:1: unknown section `rankin`, did you mean `ranking`?");
  EXPECT_EQ(refusal(config_of("[paralel]\nzero = 1\n")),
            "[config] x.toml:2: unknown key `paralel.zero`, did you mean `parallel.zero`?");
  EXPECT_EQ(refusal(config_of("", {"--ranking.pair=2"})),
            "[config] --ranking.pair: unknown key `ranking.pair`, did you mean `ranking.pairs`?");
  EXPECT_THAT(refusal(config_of("[ranking]\npairs = 0\n")), HasSubstr("`ranking.pairs` must be at least 1 (pairs)"));
}

TEST(ChooseObjective, RefusesUnknownName) {
  models::Architecture row = *models::built_in().at("gpt2");
  row.task = [](const models::ModelShape&) { return models::Task{.objective = "next-tokens"}; };
  models::ModelShape shape = shape_of("gpt2-tiny");
  shape.architecture = std::make_shared<const models::Architecture>(row);
  EXPECT_EQ(test::thrown_message([&] { choose_objective({}, built_in_objectives(), shape); }),
            "[objective] unknown objective next-tokens, did you mean `next-token`?");
}

TEST(Objectives, RefuseTakenNamesAndTables) {
  const auto refused = [](const ObjectiveRow& row) { return test::thrown_message([&] { two_more().add(row); }); };
  EXPECT_THAT(refused(ranking("ranking", "another")), HasSubstr("the name of an objective must be new: ranking"));
  EXPECT_THAT(refused(ranking("another", "ranking")), HasSubstr("[ranking] belongs to ranking already"));
  EXPECT_THAT(refused(ranking("another", "training")), HasSubstr("every config has [training]"));
  EXPECT_THAT(refused(ranking("another", "")), HasSubstr("keys of an objective need a table: got another"));
  EXPECT_THAT(refused(ranking("", "another")), HasSubstr("must have a name and a make: got no name"));
  EXPECT_THAT(refused({.name = "another"}), HasSubstr("must have a name and a make: got another"));
}

// An architecture may name an objective of the library that cannot use its head.
TEST(Objectives, RefuseModelsWithUnsuitableHead) {
  const auto refused = [](const char* objective, const char* preset) {
    return test::thrown_message(
        [&] { built_in_objectives().at(objective).make(Config{}, OwnTables(), shape_of(preset)); });
  };
  EXPECT_EQ(refused("next-token", "vit-tiny-cifar"),
            "[objective] objective next-token needs a model whose head predicts each token of a text: got a vit, which "
            "classifies images; name another model or objective");
  EXPECT_THAT(refused("masked-token", "t5-tiny"), HasSubstr("got a t5, which generates a target text"));
  EXPECT_THAT(refused("target", "gpt2-tiny"), HasSubstr("whose head answers a source text: got a gpt2"));
  EXPECT_THAT(refused("class", "bert-tiny"), HasSubstr("whose head classifies whole samples: got a bert"));
  EXPECT_EQ(refused("next-token", "bert-tiny"), "");
}

TEST(Objectives, RefuseModelsWithoutHead) {
  const ChosenObjective given = chosen({});
  models::Model model;
  EXPECT_EQ(test::thrown_message([&] { given.objective->check_model(model); }),
            "[objective] the objective of the run needs a model with a head: got one without; add it to the model, or "
            "choose another objective");
}

TEST(Objectives, ComputeMetricsFromSums) {
  EXPECT_THAT(chosen({}).objective->metrics({6}, 4),
              ElementsAre(known_metric("eval_loss", 1.5), known_metric("perplexity", std::exp(1.5))));
  EXPECT_THAT(chosen({}, "vit-tiny-cifar").objective->metrics({6, 3}, 4),
              ElementsAre(known_metric("eval_loss", 1.5), known_metric("accuracy", 0.75)));
  EXPECT_THAT(Ranking({}).metrics({6}, 0.5), ElementsAre(known_metric("eval_loss", 12.0)));
}

}  // namespace
}  // namespace colossal::run::objective_test
