// Predictions as JSON, which reads back equal, and as tables.
#include "colossal/plan/prediction.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "colossal/base/error.h"
#include "colossal/base/json.h"

namespace colossal::plan::prediction_test {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;
using testing::ThrowsMessage;

/// Every member differs from every other, so that two that are exchanged are found.
Prediction example() {
  PredictedRole role{
      .name = "stage 0",
      .ranks = 2,
      .first_rank = 4,
      .peak_bytes = 5'000'000'000'001,
      .resident_bytes = 6'000'000'000'001,
      .fullest = "backward of micro-batch 3",
      .kinds = {.parameters = 11, .gradients = 12, .states = 13, .activations = 14, .buffers = 15, .host = 16},
      .panels = 31,
      .cache = 32};
  role.calls = {{"data", "all_reduce", "backward", 17, 497'759'232}, {"pipeline", "send", "forward", 18, 1.5}};
  role.links = {{"inside a node", 19, 20}, {"between nodes", 21, 22}};
  role.seconds = {.compute = 0.1, .communication = 0.2, .bubble = 0.3, .optimizer = 0.4, .input = 0.5};
  Prediction prediction{.ranks = 8,
                        .fits = false,
                        .limit = "stage 0 needs 5 TB",
                        .step_seconds = 1.0 / 3,
                        .peak_bytes = 5'000'000'000'001,
                        .mfu = 0.62,
                        .mfu_formula = "causal pairs",
                        .flops_per_token = 2'523'968'372'736,
                        .seconds = {.compute = 1.1, .communication = 1.2, .bubble = 1.3, .optimizer = 1.4, .input = 1}};
  prediction.roles = {role, {.name = "stage 1", .ranks = 6, .fullest = "forward"}};
  prediction.remedies = {{"[memory]\nrecompute = \"block\"\n", 23, 0.7, "micro-batches must stay 1"}};
  prediction.assumptions = {"one document a row", "the batch is ready"};
  prediction.goodput = 0.9, prediction.checkpoint_seconds = 30, prediction.checkpoint_interval = 7200;
  return prediction;
}

TEST(Prediction, ReadsBackItsJson) {
  Prediction before = example();
  before.rank_load = {.worst = 4, .fitting = 1.25, .peak_bytes = 24};
  const std::string text = to_json(before);
  const Prediction after = parse_prediction(text, "prediction.json");
  EXPECT_EQ(to_json(after), text);
  EXPECT_EQ(after.step_seconds, before.step_seconds);  // every digit is written
  EXPECT_EQ(after.flops_per_token, before.flops_per_token);
  ASSERT_EQ(after.roles.size(), 2u);
  EXPECT_EQ(after.roles[0].kinds, before.roles[0].kinds);
  EXPECT_EQ(after.roles[0].calls, before.roles[0].calls);
  EXPECT_EQ(after.roles[0].links, before.roles[0].links);
  EXPECT_EQ(after.roles[0].seconds.bubble, 0.3);
  EXPECT_EQ(after.roles[0].panels, 31);
  EXPECT_EQ(after.roles[0].cache, 32);
  EXPECT_EQ(after.remedies.at(0).table, before.remedies[0].table);
  EXPECT_EQ(after.remedies[0].training, "micro-batches must stay 1");
  EXPECT_EQ(after.rank_load, before.rank_load);
  EXPECT_EQ(after.assumptions, before.assumptions);
  EXPECT_EQ(after.goodput, 0.9);
  EXPECT_EQ(after.checkpoint_seconds, 30);
  EXPECT_EQ(after.checkpoint_interval, 7200);
}

TEST(Prediction, HasTheDocumentedMembers) {
  const auto json = nlohmann::json::parse(to_json(example()));
  EXPECT_TRUE(json["peak_bytes"].is_number_integer());
  EXPECT_TRUE(json["flops_per_token"].is_number_integer());
  EXPECT_EQ(json["flops_per_token"], 2'523'968'372'736);
  EXPECT_EQ(json["seconds"]["input"], 1);
  const auto& role = json["roles"][0];
  EXPECT_EQ(role["kinds"], nlohmann::json::parse(R"({"parameters": 11, "gradients": 12, "states": 13,
                                                     "activations": 14, "buffers": 15, "host": 16})"));
  EXPECT_EQ(role["calls"][0], nlohmann::json::parse(R"({"group": "data", "collective": "all_reduce",
                                                        "phase": "backward", "calls": 17, "bytes": 497759232})"));
  EXPECT_TRUE(role["calls"][0]["bytes"].is_number_integer());
  EXPECT_EQ(role["calls"][1]["bytes"], 1.5);
  EXPECT_EQ(json["remedies"][0]["peak_bytes"], 23);
}

TEST(Prediction, RefusesOtherObjects) {
  const auto parse = [](const std::string& text) { return [text] { parse_prediction(text, "prediction.json"); }; };
  EXPECT_THAT(parse("[1]"), ThrowsMessage<Error>(HasSubstr("prediction.json: a prediction must be a JSON object")));
  EXPECT_THAT(parse("{\"ranks\": 1}"), ThrowsMessage<Error>(HasSubstr("prediction.json: a prediction must have")));
  EXPECT_THAT(parse("{\"ranks\": 1}"), ThrowsMessage<Error>(HasSubstr("fits is missing; write it again")));
  EXPECT_THAT(parse("{"), ThrowsMessage<Error>(HasSubstr("not valid JSON")));
  auto json = nlohmann::json::parse(to_json(example()));
  json["roles"][0]["calls"][0]["bytes"] = "many";
  EXPECT_THAT(parse(json.dump()),
              ThrowsMessage<Error>(HasSubstr("roles[0].calls[0].bytes must be a number: got \"many\"")));
}

TEST(Prediction, PrintsTables) {
  const std::string text = to_text(example());
  EXPECT_THAT(text, ContainsRegex("stage 0 +2 +4 +4.5 TiB +5.5 TiB +11 B"));
  EXPECT_THAT(text, HasSubstr("stage 0: fullest in backward of micro-batch 3\n"));
  EXPECT_THAT(text, ContainsRegex("stage 0 +data +all_reduce +backward +17 +475 MiB"));
  EXPECT_THAT(text, ContainsRegex("stage 0 +between nodes +21 +22 B"));
  EXPECT_THAT(text, HasSubstr("0.3333 = 1.1 compute + 1.2 communication + 1.3 bubble + 1.4 optimizer + 1 input\n"));
  EXPECT_THAT(text, HasSubstr("MFU 62 %: causal pairs\n"));
  EXPECT_THAT(text, HasSubstr("goodput 90 % of the time of a long run, with a checkpoint of "));
  EXPECT_THAT(text, HasSubstr("The layout does not fit: stage 0 needs 5 TB\n"));
  EXPECT_THAT(text, HasSubstr("# it changes what the run learns: micro-batches must stay 1\n[memory]\nrecompute"));
  EXPECT_THAT(text, HasSubstr("\nassumptions\n- one document a row\n- the batch is ready\n"));
}

TEST(Prediction, SaysWhatEachModelNeedsAndWhere) {
  Prediction prediction = example();
  prediction.parameters = 1200, prediction.vocabulary = 257;
  prediction.models = {{.parameters = 1200, .trained = 1200, .bytes = 4096, .needs = {{"parameters", "device", 4096}}}};
  EXPECT_EQ(model_line(prediction), "1200 parameters, vocabulary 257") << "nothing is frozen";
  prediction.models[0] = {
      .parameters = 1200,
      .trained = 200,
      .bytes = 7168,
      .needs = {{"frozen parameters", "device", 4096}, {"parameters", "device", 1024}, {"states", "host", 2048}}};
  const std::string main =
      "1200 parameters, vocabulary 257\n"
      "main model: 1200 parameters, 200 of them trained, 7.0 KiB over all ranks: "
      "frozen parameters 4.0 KiB, parameters 1.0 KiB (device), states 2.0 KiB (host)";
  EXPECT_EQ(model_line(prediction), main);
  prediction.models.push_back({.name = "reference"});
  prediction.models.push_back(
      {.name = "teacher", .parameters = 512, .bytes = 2048, .needs = {{"frozen parameters", "host or disk", 2048}}});
  EXPECT_EQ(model_line(prediction),
            main +
                "\nreference: the main model without its adapters\n"
                "teacher: 512 parameters, frozen, 2.0 KiB over all ranks: frozen parameters 2.0 KiB (host or disk)");
  EXPECT_EQ(parse_prediction(to_json(prediction), "prediction.json").models, prediction.models);
  prediction.models = {{.parameters = 1200, .trained = 1200, .bytes = 4096},
                       {.name = "panels", .bytes = 2048, .needs = {{"panels", "device", 2048}}, .held = "always"},
                       {.name = "cache", .bytes = 1024, .needs = {{"cache", "device", 1024}}, .held = "drawing"}};
  EXPECT_THAT(model_line(prediction),
              testing::EndsWith("\npanels: 2.0 KiB over all ranks, while answers are drawn and in updates"
                                "\ncache: 1.0 KiB over all ranks, while answers are drawn"));
  EXPECT_EQ(parse_prediction(to_json(prediction), "prediction.json").models, prediction.models);
}

TEST(Prediction, SaysUpToWhichLoadALayoutFits) {
  Prediction prediction = example();
  prediction.rank_load = {.worst = 4, .fitting = 1.25, .peak_bytes = 24};
  prediction.limit = "it fits up to a rank load of 1.25";
  EXPECT_THAT(to_text(prediction), HasSubstr("The layout fits at some loads only: it fits up to a rank load of 1.25"));
  prediction.fits = true;
  EXPECT_THAT(to_text(prediction), HasSubstr("rank load that the config permits, 4, a rank needs 24 B.\n"));
}

/// Predictions of runs that an earlier version saved.
TEST(Prediction, ReadsJsonWithoutLoads) {
  auto json = nlohmann::json::parse(to_json(example()));
  json.erase("rank_load");
  json["remedies"][0].erase("training");
  for (const char* member : {"parameters", "vocabulary", "models"}) json.erase(member);
  const Prediction read = parse_prediction(json.dump(), "prediction.json");
  EXPECT_EQ(read.rank_load, RankLoads());
  EXPECT_EQ(read.remedies.at(0).training, "");
}

TEST(Prediction, SaysThatALayoutFits) {
  Prediction prediction = example();
  prediction.fits = true;
  prediction.remedies.clear();
  EXPECT_THAT(to_text(prediction), HasSubstr("The layout fits.\n"));
  EXPECT_THAT(to_text(prediction), Not(HasSubstr("does not fit")));
}

}  // namespace
}  // namespace colossal::plan::prediction_test
