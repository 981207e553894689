// What a run trains: tables with a row per token, and which treatments [training] parameters makes.
#include "colossal/run/trained_parameters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "colossal/base/json_fields.h"
#include "colossal/models/built_in.h"
#include "colossal/models/registry.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::run::trained_parameters_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

models::ModelShape shape_of(const std::string& preset) { return models::built_in().resolve({.name = preset}, 300); }

TEST(TokenTables, IncludeHeadsAndTheirBiases) {
  EXPECT_THAT(token_tables(shape_of("gpt2-tiny")), ElementsAre("embedding.weight"));
  EXPECT_THAT(token_tables(shape_of("gptj-tiny")), ElementsAre("embedding.weight", "head.weight", "head.bias"));
  EXPECT_THAT(token_tables(shape_of("bert-tiny")), ElementsAre("embedding.weight", "head.bias"));
  EXPECT_THAT(token_tables(shape_of("t5-tiny")), ElementsAre("embedding.weight", "head.weight"));
  EXPECT_THAT(token_tables(shape_of("vit-tiny-cifar")), IsEmpty());
}

TEST(TrainedParameters, FollowTheKey) {
  const test::TemporaryFolder folder;
  folder.write(kExpansionFile, to_json_object(Expansion{.first = 290, .count = 10, .names = {"x"}}).dump());
  Config config;
  config.model.from = folder.path();
  const models::ModelShape shape = shape_of("gptj-tiny");
  EXPECT_FALSE(with_trained_parameters(config, {}, shape).treatment) << "all";
  config.training.parameters = "embeddings";
  const nn::Adapter tables = with_trained_parameters(config, {}, shape);
  EXPECT_TRUE(tables.treatment("head.bias").trains && tables.treatment("head.bias").saved);
  EXPECT_EQ(tables.treatment("head.bias").rows, nn::RowRange{});
  EXPECT_FALSE(tables.treatment("norm.weight").trains);
  EXPECT_TRUE(tables.treatment("norm.weight").saved);
  config.training.parameters = "new-rows";
  EXPECT_EQ(with_trained_parameters(config, {}, shape).treatment("embedding.weight").rows, (nn::RowRange{290, 300}));
}

TEST(TrainedParameters, RefuseAdaptersAndModelsWithoutText) {
  Config config;
  config.training.parameters = "embeddings";
  EXPECT_THAT(test::thrown_message([&] { with_trained_parameters(config, nn::frozen(), shape_of("gpt2-tiny")); }),
              HasSubstr("[training] parameters must be \"all\" with an adapter: got \"embeddings\""));
  EXPECT_THAT(test::thrown_message([&] { with_trained_parameters(config, {}, shape_of("vit-tiny-cifar")); }),
              HasSubstr("needs a model with a table of tokens"));
}

TEST(TrainedParameters, LeaveOutTheLanguageModelOfEsmFold) {
  const models::ModelShape shape =
      models::Registry().add(models::esmfold_architecture()).resolve({.name = "esmfold-tiny"});
  const auto trains = with_trained_parameters(Config(), {}, shape).treatment;
  ASSERT_TRUE(trains);
  for (const char* frozen : {"embedding.weight", "blocks.0.norm_1.weight", "blocks.1.norm_after.bias"})
    EXPECT_FALSE(trains(frozen).trains) << frozen;
  for (const char* trained :
       {"language.shares", "blocks.2.types.weight", "blocks.3.layernorm_1.weight", "head.errors.bias"})
    EXPECT_TRUE(trains(trained).trains) << trained;
  const nn::Adapter own = with_trained_parameters(Config(), nn::frozen(), shape);
  EXPECT_FALSE(own.treatment("head.errors.bias").trains) << "an adapter decides itself";
}

}  // namespace
}  // namespace colossal::run::trained_parameters_test
