// Data of whole runs: texts, folders and tokens, changed or invalid data, and reads limited to the ranks' own tokens.
#include <filesystem>
#include <fstream>

#include "colossal/base/error.h"
#include "colossal/report/metrics.h"
#include "support/steps.h"
#include "support/thrown_message.h"
#include "support/tolerance.h"
#include "train/whole_runs.h"

namespace colossal::train::trainer_data_test {
namespace {

class RunData : public Run {};

// With joined documents each rank reads only its own tokens, in training, evaluation and after a stop.
TEST_F(RunData, EqualsOneProcessWithTokensSplitOverRanks) {
  const auto joined = [&](const std::string& folder, int64_t ranks) {
    run::Config c = make(folder, 1, 1);
    c.parallel.sequence = {.size = ranks, .mode = "ring"};
    c.data.documents = "joined";
    c.precision.mode = "fp64";
    c.training.steps = 8;
    return c;
  };
  const auto whole = train(joined("whole", 1), Start::New);
  train(joined("parts", 2), Start::New, 3);
  const auto last = train(joined("parts", 2), Start::Resume);
  for (const auto& [name, value] : whole) test::expect_close(last.at(name), value, 1 << 16, name);
  const auto want = report::read_metrics(base + "/whole/metrics.jsonl"),
             got = report::read_metrics(base + "/parts/metrics.jsonl");
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i)
    EXPECT_NEAR(*got.value("loss", i), *want.value("loss", i), 1e-10 * *want.value("loss", i));
}

// After the tokens that opening a file checks, number 10 of each row is invalid, so reading it is an error. The second
// of two ranks is the only one that needs it.
TEST_F(RunData, ReadsOnlyTheTokensOfARank) {
  run::Config c = make("parts", 1, 1);
  c.parallel.sequence = {.size = 2, .mode = "ring"};
  c.data.documents = "joined";
  c.data.path = base + "/tokens.bin";
  std::vector<uint16_t> tokens(3'000'000);
  for (size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = static_cast<uint16_t>(i > 1'000'000 && i % 24 == 10 ? 60'000 : i % 97);
  write_file(c.data.path, std::string(reinterpret_cast<const char*>(tokens.data()), tokens.size() * sizeof tokens[0]));
  write_file(c.data.path + ".json", R"({"dtype": "uint16"})");
  std::vector<std::string> refused(2);
  EXPECT_THROW(comm::run_ranks(2,
                               [&](comm::World& world) {
                                 try {
                                   Trainer(world, c, {.start = Start::New}).run();
                                 } catch (const std::exception& error) {
                                   refused[world.rank()] = error.what();
                                   throw;
                                 }
                               }),
               Error);
  EXPECT_EQ(refused[1].find("[data]"), 0u) << refused[1];
  EXPECT_NE(refused[0].find("[data]"), 0u) << refused[0];
}

// The checkpoint's position is in the middle of a block of lines, of a document and of an epoch.
TEST_F(RunData, ResumesAStreamOnAnotherNumberOfRanks) {
  std::filesystem::create_directories(base + "/lines");
  for (const char* name : {"/lines/a.jsonl", "/lines/b.jsonl"}) {
    std::ofstream text(base + name);
    for (int i = 0; i < 60; ++i) text << "{\"text\": \"line " << i * 37 % 101 << " of a text\"}\n";
    text << "no line of JSON\n";
  }
  const auto make_run = [&](const std::string& folder, int64_t ranks) {
    run::Config c = make(folder, ranks, 1);
    c.data.path = "builtin";
    c.data.own = run::data_keys(
        {concat("sources=a=", base, "/lines/a.jsonl,b=", base, "/lines/b.jsonl"), "weights=2,1", "shuffle_bytes=900"});
    c.data.on_error = "skip";
    c.precision.mode = "fp64";
    c.training.steps = 10;
    return c;
  };
  const run::Config whole = make_run("whole", 1), parts = make_run("parts", 1), more = make_run("more", 1);
  const auto want = train(whole, Start::New);
  train(parts, Start::New, 4);
  const auto got = train(parts, Start::Resume);
  for (const auto& [name, value] : want) EXPECT_TRUE(at::equal(got.at(name), value)) << name;
  EXPECT_GT(times("a.jsonl:61: not valid JSON", log_of(parts)), 0u);
  train(more, Start::New, 4);
  const auto on_two = train(make_run("more", 2), Start::Resume);
  for (const auto& [name, value] : want) test::expect_close(on_two.at(name), value, 1 << 16, name);
}

TEST_F(RunData, ResumesWithItsCopyOfTheBuiltinText) {
  std::filesystem::create_directories(base + "/sources/sub");
  std::filesystem::copy_file(base + "/text.txt", base + "/sources/a.md");
  std::filesystem::copy_file(base + "/text.txt", base + "/sources/sub/b.cpp");
  run::Config whole = make("whole", 1, 1), parts = make("parts", 2, 1);
  whole.data.path = parts.data.path = "builtin";
  train(whole, Start::New);
  train(parts, Start::New, 10);
  std::ofstream(base + "/sources/a.md") << "edited";
  train(parts, Start::Resume, 5);
  std::filesystem::remove_all(base + "/sources");
  train(parts, Start::Resume);
  const double want = test::last(report::read_metrics(base + "/whole/metrics.jsonl"), "loss");
  EXPECT_NEAR(test::last(report::read_metrics(base + "/parts/metrics.jsonl"), "loss"), want, 1e-4 * want);
  EXPECT_NE(
      test::thrown_message([&] { train(parts, Start::Overwrite); }).find("they are no longer at " + base + "/sources"),
      std::string::npos)
      << "anew is from the sources";
}

TEST_F(RunData, ReportsChangesSinceTheCheckpoint) {
  const run::Config c = make("run", 1, 1);
  train(c, Start::New, 5);
  const auto refusal = [&](const run::Config& changed) {
    return test::thrown_message([&] { train(changed, Start::Resume); });
  };
  run::Config moved = c;
  moved.data.path = base + "/elsewhere/text.txt";
  EXPECT_NE(refusal(moved).find("no such file or folder: data.path = " + moved.data.path), std::string::npos);
  std::filesystem::create_directories(base + "/elsewhere");
  std::filesystem::copy_file(c.data.path, moved.data.path);
  train(moved, Start::Resume, 2);
  run::Config shorter = c;
  shorter.data.sequence = 20;
  EXPECT_NE(refusal(shorter).find("sequence was 24, now it is 20"), std::string::npos) << refusal(shorter);
  run::Config split = c;
  split.data.held_out = 0.1;
  EXPECT_NE(refusal(split).find("text.txt was "), std::string::npos) << refusal(split);
  std::ofstream(c.data.path, std::ios::app) << "one more line\n";
  const std::string message = refusal(c);
  EXPECT_NE(message.find("text.txt was "), std::string::npos) << message;
  EXPECT_NE(message.find("or restart with --overwrite"), std::string::npos) << message;
}

TEST_F(RunData, SplitsAFolderOfALargeAndASmallFile) {
  std::filesystem::create_directories(base + "/folder");
  std::filesystem::copy_file(base + "/text.txt", base + "/folder/a.txt");
  std::ofstream(base + "/folder/b.txt") << "tiny";
  run::Config c = make("run", 1, 1);
  c.data.path = base + "/folder";
  c.training.steps = 3;
  train(c, Start::New);
  EXPECT_GT(test::last(report::read_metrics(c.run.folder + "/metrics.jsonl"), "eval_loss"), 0);
  c.data.held_out = 0.001;  // 15 tokens, less than a sample
  const std::string message = test::thrown_message([&] { train(c, Start::Overwrite); });
  EXPECT_NE(message.find("[data] the held-out part must hold a sequence"), std::string::npos) << message;
  EXPECT_NE(message.find("raise data.held_out, lower data.sequence, or set training.evaluate_batches = 0"),
            std::string::npos)
      << message;
}

TEST_F(RunData, ReportsInvalidData) {
  run::Config c = make("run", 2, 1);
  c.data.path = base + "/nothing.txt";
  EXPECT_NE(test::thrown_message([&] { train(c, Start::New); }).find("nothing.txt"), std::string::npos);
  std::ofstream(base + "/short.txt") << "short";
  c.data.path = base + "/short.txt";
  c.data.held_out = 0;
  EXPECT_NE(test::thrown_message([&] { train(c, Start::New); }).find("25"), std::string::npos);
  c = make("run", 2, 1);
  c.data.sequence = 33;
  EXPECT_NE(test::thrown_message([&] { train(c, Start::New); }).find("got 33 of 32"), std::string::npos);
  c = make("run", 2, 1);
  c.model.vocabulary = 100;
  EXPECT_NE(test::thrown_message([&] { train(c, Start::New); }).find("got 100, tokenizer 257"), std::string::npos);
}

}  // namespace
}  // namespace colossal::train::trainer_data_test
