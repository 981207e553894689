#include "colossal/base/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/base/json.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::config_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct TensorSection {
  int64_t size = 1;
  std::string mode = "1d";
  bool operator==(const TensorSection&) const = default;
  void fields(Fields& f) {
    f.integer("size", size, "ranks", "ranks that share each matrix", 1, 64);
    f.choice("mode", mode, {"1d", "2d", "2.5d"}, "how a matrix is cut");
  }
};

struct ParallelSection {
  TensorSection tensor;
  int64_t data = 1;  // follows the table on purpose, because the printer must still put it under [parallel]
  bool operator==(const ParallelSection&) const = default;
  void fields(Fields& f) {
    f.section("tensor", tensor, "tensor parallelism", "size");
    f.integer("data", data, "ranks", "replicas of the model", 1);
  }
};

struct TrainingSection {
  int64_t steps = 100;
  double clip = 1.0;
  bool shuffle = true;
  int64_t memory = int64_t{70} << 30;
  std::string folder = "runs/x";
  std::vector<double> betas{0.9, 0.95};
  std::vector<int64_t> milestones;
  std::vector<std::string> skip{"bias"};
  bool operator==(const TrainingSection&) const = default;
  void fields(Fields& f) {
    f.integer("steps", steps, "steps", "how long to train", 1, 1000);
    f.number("clip", clip, "", "largest gradient norm", 0.0);
    f.flag("shuffle", shuffle, "whether the order is shuffled");
    f.bytes("memory", memory, "memory of the device", 0, int64_t{1} << 50);
    f.text("folder", folder, "where the results go");
    f.numbers("betas", betas, "", "decay of the moments", 0.0, 1.0);
    f.integers("milestones", milestones, "steps", "where the rate drops", 1);
    f.texts("skip", skip, "parameters without decay");
  }
};

struct Config {
  std::string name = "none";
  ParallelSection parallel;
  TrainingSection training;
  bool operator==(const Config&) const = default;
  void fields(Fields& f) {
    f.section("parallel", parallel, "how the ranks are laid out");
    f.section("training", training, "the loop");
    f.text("name", name, "of the run");
  }
};

Config read(const std::string& toml, const std::vector<std::string>& flags = {}) {
  auto document = ConfigDocument::parse(toml, "x.toml");
  for (const auto& flag : flags) document.set(flag);
  Config config;
  document.read(config);
  return config;
}

/// Reads `toml` with values of a program over it.
Config read_with(const std::string& toml, const std::map<std::string, ConfigValue>& changes) {
  auto document = ConfigDocument::parse(toml, "x.toml");
  for (const auto& [key, value] : changes) document.set(key, value);
  Config config;
  document.read(config);
  return config;
}

std::string complaint(const std::string& toml, const std::vector<std::string>& flags = {}) {
  try {
    read(toml, flags);
  } catch (const Error& error) {
    EXPECT_EQ(error.component(), "config");
    return error.what();
  }
  return "no complaint";
}

TEST(Config, ReadsEveryKindOfField) {
  const Config config = read(R"(
name = "run"
[parallel]
data = 2
tensor = { size = 4, mode = "2.5d" }
[training]
steps = 7
clip = 2           # an integer is a number
shuffle = false
memory = "1.5GiB"
folder = "a \"b\""
betas = [0.5, 1]
milestones = [10, 20]
skip = []
)");
  EXPECT_EQ(config.name, "run");
  EXPECT_EQ(config.parallel.data, 2);
  EXPECT_EQ(config.parallel.tensor.size, 4);
  EXPECT_EQ(config.parallel.tensor.mode, "2.5d");
  EXPECT_EQ(config.training.steps, 7);
  EXPECT_EQ(config.training.clip, 2.0);
  EXPECT_FALSE(config.training.shuffle);
  EXPECT_EQ(config.training.memory, 3 * (int64_t{1} << 29));
  EXPECT_EQ(config.training.folder, "a \"b\"");
  EXPECT_THAT(config.training.betas, ElementsAre(0.5, 1.0));
  EXPECT_THAT(config.training.milestones, ElementsAre(10, 20));
  EXPECT_TRUE(config.training.skip.empty());
}

struct OpenSection {
  int64_t steps = 1;
  void fields(Fields& f) { f.integer("steps", steps, "", "steps"); }
};

/// A struct that keeps the tables that it has no fields for.
struct OpenConfig {
  OpenSection training;
  ConfigDocument tables{};
  void fields(Fields& f) {
    f.section("training", training, "");
    f.rest(tables);
  }
};

OpenConfig read_open(const std::string& toml, const std::vector<std::string>& flags = {}) {
  ConfigDocument document = ConfigDocument::parse(toml, "x.toml");
  for (const std::string& flag : flags) document.set(flag);
  OpenConfig config;
  document.read(config);
  return config;
}

TEST(Config, KeepsTablesThatAStructDoesNotName) {
  const OpenConfig config = read_open(
      "[own]\nrate = 0.5\nname = \"x\"\n[own.sub]\nn = 3\n[empty]\n[training]\nsteps = 2\n", {"--other.list=[1, 2]"});
  EXPECT_EQ(config.training.steps, 2);
  const std::string toml = to_toml(config);
  EXPECT_EQ(toml,
            "[training]\nsteps = 2\n\n[empty]\n\n[other]\nlist = [1, 2]\n\n[own]\nname = \"x\"\nrate = 0.5\n"
            "sub.n = 3\n");
  EXPECT_EQ(to_toml(read_open(toml)), toml);
  std::vector<std::string> keys;
  for (const KeyHelp& key : describe_config(config)) keys.push_back(key.section + ": " + key.key);
  EXPECT_THAT(keys, ElementsAre("training: training.steps", "other: other.list", "own: own.name", "own: own.rate",
                                "own: own.sub.n"));
}

TEST(Config, KeepsNoStrayKeysOfTablesThatAStructNames) {
  const auto complaint_of = [](const char* toml) -> std::string {
    return test::thrown_message([&] { read_open(toml); });
  };
  EXPECT_EQ(complaint_of("[training]\nstpes = 2\n"),
            "[config] x.toml:2: unknown key `training.stpes`, did you mean `training.steps`?");
  EXPECT_EQ(complaint_of("stray = 2\n"),
            "[config] x.toml:1: unknown key `stray`; `colossal help config` lists them all");
}

TEST(Config, KeepsMembersThatTheFileDoesNotName) { EXPECT_EQ(read("[training]\n"), Config()); }

TEST(Config, ReadsAPlainValueInPlaceOfATable) {
  EXPECT_EQ(read("[parallel]\ntensor = 2").parallel.tensor, (TensorSection{2, "1d"}));
  EXPECT_EQ(read("[parallel.tensor]\nsize = 2\nmode = \"2d\"").parallel.tensor, (TensorSection{2, "2d"}));
}

TEST(Config, PrefersTheLaterOfShortAndLongForm) {
  EXPECT_EQ(read("[parallel]\ntensor = {size = 2, mode = \"2d\"}", {"--parallel.tensor=4"}).parallel.tensor,
            (TensorSection{4, "2d"}));
  EXPECT_EQ(read("[parallel]\ntensor = 2", {"--parallel.tensor.size=8"}).parallel.tensor.size, 8);
  EXPECT_EQ(read("", {"--parallel.tensor.size=8", "--parallel.tensor=2"}).parallel.tensor.size, 2);
  EXPECT_EQ(read("", {"--parallel.tensor={size=2, mode=\"2d\"}"}).parallel.tensor, (TensorSection{2, "2d"}));
}

TEST(Config, ReadsFlagsWithoutQuotes) {
  const Config config =
      read("", {"--name=2024", "training.folder=runs/a=b", "--training.memory=2GB", "--training.shuffle=false",
                "--training.betas=0.5,0.75", "--training.milestones=[3, 4]", "--training.skip=norm,bias",
                "--training.clip=1e-2", "--training.steps=10", "--training.steps=11"});
  EXPECT_EQ(config.name, "2024");
  EXPECT_EQ(config.training.folder, "runs/a=b");
  EXPECT_EQ(config.training.memory, 2'000'000'000);
  EXPECT_FALSE(config.training.shuffle);
  EXPECT_THAT(config.training.betas, ElementsAre(0.5, 0.75));
  EXPECT_THAT(config.training.milestones, ElementsAre(3, 4));
  EXPECT_THAT(config.training.skip, ElementsAre("norm", "bias"));
  EXPECT_EQ(config.training.clip, 0.01);
  EXPECT_EQ(config.training.steps, 11);
}

TEST(Config, PrintsTextThatReadsBackEqual) {
  Config config;
  config.name = "tab\t quote\" slash\\ newline\n umlaut \xC3\xBC \x01";
  config.parallel = {{8, "2d"}, 3};
  config.training.clip = std::numeric_limits<double>::infinity();
  config.training.betas = {0.1, 1.0 / 3, 5e-324, 1.0};
  config.training.milestones = {1, kMaxInteger};
  config.training.memory = (int64_t{3} << 20) + 1;
  config.training.skip = {"a,b", ""};
  EXPECT_EQ(read(to_toml(config)), config) << to_toml(config);
  EXPECT_EQ(read(to_toml(Config())), Config());
}

TEST(Config, PrintsTablesInOrderWithRootKeysFirst) {
  const std::string text = to_toml(Config());
  EXPECT_EQ(text.rfind("name = \"none\"\n", 0), 0u) << text;
  EXPECT_THAT(text, HasSubstr("\n[parallel]\ndata = 1\n\n[parallel.tensor]\nsize = 1\nmode = \"1d\"\n"));
  EXPECT_THAT(text, HasSubstr("memory = \"70GiB\"\n"));
}

TEST(ConfigErrors, NamesPlaceAndNearestKeyOfAnUnknownKey) {
  EXPECT_EQ(complaint("\n[paralel]\ntensor = 2\n"),
            "[config] x.toml:3: unknown key `paralel.tensor`, did you mean `parallel.tensor`?");
  EXPECT_EQ(complaint("[training]\nstpes = 2\n"),
            "[config] x.toml:2: unknown key `training.stpes`, did you mean `training.steps`?");
  EXPECT_EQ(
      complaint("", {"--parallel.tensor.sise=2"}),
      "[config] --parallel.tensor.sise: unknown key `parallel.tensor.sise`, did you mean `parallel.tensor.size`?");
}

TEST(ConfigErrors, FindsAnUnknownKeyInAnotherSection) {
  EXPECT_EQ(complaint("[parallel]\nmilestones = [1]"),
            "[config] x.toml:2: unknown key `parallel.milestones`, did you mean `training.milestones`?");
}

TEST(ConfigErrors, PointsToTheListForAnUnknownKey) {
  EXPECT_EQ(complaint("zzzzzzzzzzzz = 1"),
            "[config] x.toml:1: unknown key `zzzzzzzzzzzz`; `colossal help config` lists them all");
}

TEST(ConfigErrors, RefusesAnUnknownEmptySection) {
  EXPECT_EQ(complaint("[trainin]"), "[config] x.toml:1: unknown section `trainin`, did you mean `training`?");
}

TEST(ConfigErrors, ReportsTheEarliestErrorOfTheFile) {
  EXPECT_THAT(complaint("[training]\nsteps = 0\n[parallel]\ndatta = 1"), HasSubstr("x.toml:2"));
  EXPECT_THAT(complaint("[parallel]\ndatta = 1\n[training]\nsteps = 0"), HasSubstr("x.toml:2"));
}

TEST(ConfigErrors, NamesWantedAndFoundTypes) {
  EXPECT_EQ(complaint("[training]\nsteps = \"many\""),
            "[config] x.toml:2: `training.steps` must be an integer: got \"many\"");
  EXPECT_EQ(complaint("[training]\nsteps = 2.5"),
            "[config] x.toml:2: `training.steps` must be an integer: got the number 2.5");
  EXPECT_EQ(complaint("[training]\nclip = true"), "[config] x.toml:2: `training.clip` must be a number: got true");
  EXPECT_EQ(complaint("[training]\nshuffle = 1"), "[config] x.toml:2: `training.shuffle` must be true or false: got 1");
  EXPECT_EQ(complaint("[training]\nfolder = 1"), "[config] x.toml:2: `training.folder` must be text in quotes: got 1");
  EXPECT_EQ(complaint("[training]\nfolder = 2026-01-01"),
            "[config] x.toml:2: `training.folder` must be text in quotes: got a date or time");
  EXPECT_EQ(complaint("[training]\nbetas = 1.0"),
            "[config] x.toml:2: `training.betas` must be a list such as [1, 2]: got the number 1");
  EXPECT_EQ(complaint("[training]\nbetas = [0.5, \"x\"]"),
            "[config] x.toml:2: `training.betas[1]` must be a number: got \"x\"");
  EXPECT_EQ(complaint("[training]\nbetas = [[1]]"),
            "[config] x.toml:2: `training.betas` must be a list such as [1, 2]: got a list of lists or dates");
  EXPECT_EQ(complaint("training = 3"),
            "[config] x.toml:1: `training` must be a table ([training] and keys below it): got 3");
  EXPECT_EQ(complaint("[parallel]\ntensor = \"2d\""),
            "[config] x.toml:2: `parallel.tensor.size` must be an integer: got \"2d\"; did you mean "
            "`parallel.tensor.mode`?");
  EXPECT_EQ(complaint("[parallel]\ntensor = \"3d\""),
            "[config] x.toml:2: `parallel.tensor.size` must be an integer: got \"3d\"");
  EXPECT_EQ(complaint("[[training]]\nsteps = 1"),
            "[config] x.toml:1: `training` must be a table ([training] and keys below it): got a list of tables");
}

TEST(ConfigErrors, RefusesATableInPlaceOfAValue) {
  EXPECT_EQ(complaint("[training.steps]\na = 1"),
            "[config] x.toml:1: `training.steps` must be an integer: got a table");
}

TEST(ConfigErrors, NamesTheRange) {
  EXPECT_EQ(complaint("[training]\nsteps = 0"),
            "[config] x.toml:2: `training.steps` must be between 1 and 1000 (steps): got 0");
  EXPECT_EQ(complaint("[parallel]\ndata = -2"),
            "[config] x.toml:2: `parallel.data` must be at least 1 (ranks): got -2");
  EXPECT_EQ(complaint("[training]\nclip = nan"),
            "[config] x.toml:2: `training.clip` must be at least 0: got the number nan");
  EXPECT_EQ(complaint("[training]\nbetas = [0.5, 1.5]"),
            "[config] x.toml:2: `training.betas[1]` must be between 0 and 1: got the number 1.5");
  EXPECT_EQ(complaint("[training]\nmemory = \"2000TiB\""),
            "[config] x.toml:2: `training.memory` must be between 0B and 1PiB: got \"2000TiB\"");
}

TEST(ConfigErrors, RefusesABadByteSize) {
  for (const char* bad : {"GiB", "12 parsecs", "-1GiB", "1.2.3GiB", "99999999999TiB", "8EiB"}) {
    EXPECT_THAT(complaint("[training]\nmemory = \"" + std::string(bad) + "\""),
                HasSubstr("`training.memory` must be a size in bytes such as \"70GiB\", less than 8EiB: got \""))
        << bad;
  }
}

TEST(ConfigErrors, ListsChoicesAndSuggestsOne) {
  EXPECT_EQ(
      complaint("[parallel.tensor]\nmode = \"2.5D\""),
      "[config] x.toml:2: `parallel.tensor.mode` must be one of 1d, 2d, 2.5d: got \"2.5D\", did you mean `2.5d`?");
}

TEST(ConfigErrors, RefusesFlagsWithoutKeyOrValue) {
  EXPECT_EQ(complaint("", {"--training.steps"}), "[config] `--training.steps` has no value: write --section.key=value");
  EXPECT_EQ(complaint("", {"--=3"}), "[config] `--=3` names no key: write --section.key=value");
  EXPECT_EQ(complaint("", {"--training.steps="}),
            "[config] --training.steps: `training.steps` must be an integer: got \"\"");
}

TEST(ConfigErrors, RefusesTextThatIsNotToml) {
  EXPECT_THAT(complaint("a = 1\nb = = 2"), HasSubstr("[config] x.toml:2: not valid TOML: "));
  EXPECT_THAT(complaint("a = 1\na = 2"), HasSubstr("[config] x.toml:2: not valid TOML: "));
}

TEST(ConfigErrors, RefusesUnreadableFiles) {
  EXPECT_THROW(
      {
        try {
          ConfigDocument::load("/nonexistent/x.toml");
        } catch (const Error& error) {
          EXPECT_STREQ(error.what(), "[config] cannot open /nonexistent/x.toml: No such file or directory");
          throw;
        }
      },
      Error);
  EXPECT_THROW(ConfigDocument::load("/tmp"), Error);
}

TEST(Config, SurvivesHostileText) {
  const std::string deep(100000, '[');
  EXPECT_THAT(complaint("a = " + deep), HasSubstr("not valid TOML"));
  EXPECT_THAT(complaint("a = \"\xff\xfe\""), HasSubstr("not valid TOML"));
  EXPECT_THAT(complaint("", {"--name.x.y.=1"}), HasSubstr("unknown key"));
  EXPECT_THAT(complaint("", {"--" + std::string(100000, 'a') + "=1"}), HasSubstr("unknown key"));
  EXPECT_EQ(read("", {"--name=1\nb = 2"}).name, "1\nb = 2");
  std::string dotted, nested;
  for (int i = 0; i < 1'000'000; ++i) dotted += "a.";
  for (int i = 0; i < 10; ++i) nested += "{a.a.a.a.a.a.a.a.a.a = ";
  EXPECT_THAT(complaint("b = 1\n" + dotted + "a = 1"),
              HasSubstr("[config] x.toml:2: a key must have at most 100 dots"));
  EXPECT_THAT(complaint("[" + dotted + "a]"), HasSubstr("[config] x.toml:1: a key must have at most 100 dots"));
  // The parts contain characters that end a key, except within quotes.
  for (const std::string part : {"\"=\".", "',' . ", "\"\\\"=\\n\"."}) {
    std::string quoted;
    for (int i = 0; i < 300'000; ++i) quoted += part;
    EXPECT_THAT(complaint(quoted + "a = 1"), HasSubstr("[config] x.toml:1: a key must have at most 100 dots"));
    EXPECT_EQ(read("", {"--name={" + quoted + "a = 1}"}).name, "{" + quoted + "a = 1}");
  }
  EXPECT_THAT(complaint("b = " + nested + "1" + std::string(10, '}')),
              HasSubstr("tables are nested more than 30 deep"));
  std::string lines = "b = ";
  for (int i = 0; i < 120; ++i) lines += "[\n{" + dotted.substr(0, 200) + "a = ";
  for (int i = 0; i < 120; ++i) lines += i == 0 ? "1}]" : "}]";
  EXPECT_THAT(complaint(lines), HasSubstr("unknown key `b`"));
  EXPECT_EQ(read("", {"--name={" + dotted + "a = 1}"}).name, "{" + dotted + "a = 1}");
  EXPECT_EQ(read("", {"--name=" + std::string(200, '.')}).name, std::string(200, '.'));
  EXPECT_EQ(read("# " + std::string(100, '.') + "\nname = \"" + std::string(100, '.') + "\"").name,
            std::string(100, '.'));
}

TEST(Config, IgnoresDotsWithinQuotes) {
  Config config;
  config.training.skip = {"a\".\\", "'''", "#"};
  std::string list = "['.\"', \"\\\".#\", ";
  for (int i = 0; i < 150; ++i) {
    config.training.skip.push_back("cs.AI" + std::to_string(i));
    list += "'cs.AI', ";
  }
  EXPECT_EQ(read(to_toml(config)), config);
  EXPECT_EQ(read("", {"--training.skip=" + list + "]"}).training.skip.size(), 152u);
  const std::string dots(300, '.');
  std::string deep;
  for (int i = 0; i < 101; ++i) deep += "a.";
  for (const std::string& text :
       {"\"\"\"" + dots + "\n\\\"\"\"\"\"\"", "''' \" " + dots + "\n'''''", std::string("'' # \"'\n")})
    EXPECT_THAT(complaint("name = " + text + "\n" + deep + "a = 1"),
                HasSubstr("[config] x.toml:3: a key must have at most 100 dots"))
        << text;
}

TEST(Config, FindsValuesBeforeTheRead) {
  auto document = ConfigDocument::parse("[model]\nname = \"gpt2\"\nlayers = 3", "x.toml");
  document.set("--run.folder=1.50");
  EXPECT_EQ(document.text("model.name"), "gpt2");
  EXPECT_EQ(document.text("model.layers"), "3");
  EXPECT_EQ(document.text("run.folder"), "1.50");
  EXPECT_EQ(document.text("model"), std::nullopt);
  EXPECT_EQ(document.text("model.width"), std::nullopt);
}

TEST(Config, JoinsFileAndFlags) {
  const test::TemporaryFolder folder;
  write_file(folder / "x.toml", "[training]\nsteps = 5\nclip = 3.0");
  const auto config = read_config<Config>(folder / "x.toml", {"--training.steps=6"});
  EXPECT_EQ(config.training.steps, 6);
  EXPECT_EQ(config.training.clip, 3.0);
}

TEST(ConfigHelp, ListsEveryKeyWithItsFacts) {
  const auto keys = describe_config(Config());
  ASSERT_EQ(keys.size(), 12u);
  EXPECT_EQ(keys[0].key, "name");
  EXPECT_EQ(keys[1].key, "parallel.data");
  EXPECT_EQ(keys[1].range, ">= 1");
  const auto& size = keys[2];
  EXPECT_EQ(size.key, "parallel.tensor.size");
  EXPECT_EQ(size.section, "parallel.tensor");
  EXPECT_EQ(size.stands_for, "size");
  EXPECT_EQ(size.type, "integer");
  EXPECT_EQ(size.unit, "ranks");
  EXPECT_EQ(size.range, "1 .. 64");
  EXPECT_EQ(size.default_value, "1");
  EXPECT_EQ(size.meaning, "ranks that share each matrix");
  EXPECT_EQ(keys[3].type, "one of 1d, 2d, 2.5d");
  EXPECT_EQ(keys[7].type, "bytes");
  EXPECT_EQ(keys[7].default_value, "\"70GiB\"");
  EXPECT_EQ(keys[9].type, "list of numbers");
}

TEST(ConfigHelp, KeepsTextWithinItsWidth) {
  const std::string text = format_help(describe_config(Config()), 60);
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 60u) << line;
  EXPECT_THAT(text, HasSubstr("[parallel.tensor]\n"));
  EXPECT_THAT(text, HasSubstr("  steps = 100\n      how long to train [integer, steps, 1 .. 1000]\n"));
}

TEST(Config, TakesTypedValues) {
  const Config config = read_with("[parallel]\ntensor = 2\n[training]\nsteps = 5",
                                  {{"parallel.tensor.size", {int64_t{4}}},
                                   {"training.betas", {ConfigValue::List{0.5, int64_t{1}}}},
                                   {"training.folder", {std::string("12")}},
                                   {"training.memory", {std::string("4GiB")}}});
  EXPECT_EQ(config.parallel.tensor.size, 4) << "a later value wins over the short form of the file";
  EXPECT_EQ(config.training.steps, 5);
  EXPECT_THAT(config.training.betas, ElementsAre(0.5, 1));
  EXPECT_EQ(config.training.folder, "12");
  EXPECT_EQ(config.training.memory, int64_t{4} << 30);
}

TEST(Config, NamesNoPlaceOfTypedValues) {
  try {
    read_with("", {{"training.step", {int64_t{4}}}});
    FAIL() << "an unknown key was accepted";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "[config] unknown key `training.step`, did you mean `training.steps`?");
  }
}

}  // namespace
}  // namespace colossal::config_test
