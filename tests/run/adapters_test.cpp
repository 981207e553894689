// The adapter that a config selects, the keys that are saved with the run, and refusals.
#include "colossal/run/adapters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "colossal/base/config.h"
#include "colossal/base/error.h"
#include "colossal/run/data.h"
#include "colossal/run/program.h"
#include "support/thrown_message.h"

namespace colossal::run::adapters_test {
namespace {

using testing::HasSubstr;

struct AdapterKeys {
  int64_t rank = 4;
  void fields(Fields& f) { f.integer("rank", rank, "", "rank of each adapter", 1, 64); }
  bool operator==(const AdapterKeys&) const = default;
};

/// Returns an adapter that trains the blocks from index `rank` on.
AdapterRow row(const std::string& table) {
  return {.table = table, .keys = AdapterKeys{}, .make = [](const Config&, const OwnKeys& keys, const auto&) {
            const std::string prefix = concat("blocks.", keys.as<AdapterKeys>().rank, ".");
            return nn::Adapter{.treatment = [prefix](const std::string& name) {
              return nn::Treatment{.trains = name.starts_with(prefix)};
            }};
          }};
}

Program program_with(const std::vector<std::string>& tables) {
  Program program = built_in();
  for (const std::string& table : tables) program.adapters.add(row(table));
  return program;
}

Config config_of(const std::string& toml) {
  Config config;
  ConfigDocument::parse(toml, "x.toml").read(config);
  return config;
}

std::string refusal(const std::string& toml, const std::vector<std::string>& tables = {"first", "other"}) {
  return test::thrown_message([&] { resolve_model(config_of(toml), program_with(tables)); });
}

TEST(Adapters, SelectByTableAndSaveKeys) {
  const Program program = program_with({"first", "other"});
  EXPECT_FALSE(resolve_model({}, program).adapter.treatment) << "no table, no adapter";
  const ResolvedModel model = resolve_model(config_of("[first]\n"), program);
  EXPECT_TRUE(model.adapter.treatment("blocks.4.mlp.up.weight").trains);
  EXPECT_FALSE(model.adapter.treatment("blocks.1.mlp.up.weight").trains);
  Config kept = config_of("[other]\nrank = 1\n");
  kept.tables = resolve_model(kept, program).objective.tables;
  EXPECT_THAT(to_toml(kept), HasSubstr("[other]\nrank = 1"));
  const ResolvedModel again = resolve_model(config_of(to_toml(kept)), program);
  EXPECT_TRUE(again.adapter.treatment("blocks.1.mlp.up.weight").trains);
}

TEST(Adapters, RefuseTwoOrUnknownTablesAndBadKeys) {
  EXPECT_EQ(refusal("[first]\n[other]\n"),
            "[config] a config must have the table of one adapter: got [first] and [other]; leave one out");
  EXPECT_THAT(refusal("[frst]\nrank = 2\n"), HasSubstr("unknown key `frst.rank`, did you mean `first.rank`?"));
  EXPECT_THAT(refusal("[first]\nrank = 0\n"), HasSubstr("`first.rank` must be between 1 and 64"));
  EXPECT_THAT(refusal("[first]\n", {}), HasSubstr("unknown section `first`"));
}

TEST(Adapters, RefuseTakenTables) {
  const auto refused = [](const AdapterRow& added) {
    return test::thrown_message([&] { program_with({"first"}).adapters.add(added); });
  };
  EXPECT_THAT(refused(row("first")), HasSubstr("[adapter] the table of an adapter must be new: [first] is"));
  EXPECT_THAT(refused(row("adapter")), HasSubstr("[adapter] is registered already")) << "that of the library";
  EXPECT_THAT(refused(row("training")), HasSubstr("every config has [training]"));
  EXPECT_THAT(refused(row("")), HasSubstr("must have a table and a make: got no table"));
  EXPECT_THAT(refused({.table = "new"}), HasSubstr("got [new] without make"));
  const Adapters adapters = program_with({"first"}).adapters;
  EXPECT_THAT(test::thrown_message([&] {
                choose_adapter({}, adapters, models::built_in().resolve({.name = "gpt2-tiny"}), {{"first", OwnKeys{}}});
              }),
              HasSubstr("[first] belongs to an objective"));
}

}  // namespace
}  // namespace colossal::run::adapters_test
