// `colossal report` as a user runs it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "cli/outcome.h"
#include "colossal/base/file.h"
#include "colossal/report/metrics.h"
#include "support/steps.h"
#include "support/temporary_folder.h"

namespace colossal::cli::report_test {
namespace {

using ::testing::HasSubstr;

void write_run(const std::string& folder, const std::string& config) {
  std::filesystem::create_directories(folder);
  write_file(folder + "/config.toml", config);
  write_file(folder + "/metrics.jsonl", report::to_json_line(test::step_of(1, {{"loss", 2.0}})) + "\n");
}

TEST(ReportCommand, WritesOnePageOfSeveralRuns) {
  const test::TemporaryFolder folder;
  write_run(folder / "a", "[training]\nclip = 0.5\nsteps = 5\n");
  write_run(folder / "b", "[training]\nclip = 1.0\nsteps = 5\n");
  const auto outcome = run_command("report", {folder / "a", folder / "b", "--output", folder / "page.html"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "wrote " + (folder / "page.html") + "\n");
  EXPECT_THAT(outcome.err, HasSubstr((folder / "a") + ": ranks.jsonl is missing"));
  const std::string page = read_file(folder / "page.html", 1 << 24);
  EXPECT_THAT(page, HasSubstr("<th>training.clip</th><td>1</td><td class='other'>0.5</td><td>1</td>"));
  EXPECT_THAT(page, HasSubstr("1 of 5 steps are done"));
}

TEST(ReportCommand, DrawsLossesWithTheirLargestDifference) {
  const test::TemporaryFolder folder;
  for (const auto& [name, loss] : {std::pair{"data=2", 2.0}, std::pair{"tensor=2", 2.5}}) {
    write_run(folder / name, "");
    std::string lines;
    for (int step = 1; step <= 3; ++step)
      lines += report::to_json_line(test::step_of(step, {{"loss", step == 2 ? loss : 1.0}})) + "\n";
    write_file((folder / name) + "/metrics.jsonl", lines);
  }
  const auto draw = [&](std::vector<std::string> runs) {
    runs.insert(runs.end(), {"--output", folder / "page.html", "--svg", folder / "losses.svg"});
    return run_command("report", runs);
  };
  const auto outcome = draw({folder / "data=2", (folder / "tensor=2") + "/"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("wrote " + (folder / "losses.svg") + "\n"));
  const std::string svg = read_file(folder / "losses.svg", 1 << 20);
  EXPECT_THAT(svg, HasSubstr("2 runs; the largest difference at one step is 0.5<"));
  EXPECT_THAT(svg, HasSubstr(">tensor=2</text>"));
  std::vector<std::string> many;
  for (int i = 0; i < 8; ++i) {
    many.push_back(folder / std::to_string(i));
    write_run(many.back(), "");
  }
  EXPECT_THAT(draw(many).err, HasSubstr("a plot must have at most 7 series: got 8"));
}

TEST(ReportCommand, RefusesInvalidRunsByName) {
  const test::TemporaryFolder folder;
  write_run(folder / "a", "");
  std::filesystem::create_directories(folder / "empty");
  const auto message = [&](const std::vector<std::string>& words) {
    const auto outcome = run_command("report", words);
    EXPECT_NE(outcome.status, 0);
    return outcome.err;
  };
  EXPECT_THAT(message({folder / "empty"}), HasSubstr((folder / "empty") + " must be the folder of a run"));
  EXPECT_THAT(message({folder / "none"}), HasSubstr("there is no folder " + (folder / "none")));
  EXPECT_THAT(message({folder / "a", (folder / "a") + "/"}), HasSubstr("each run must be named once"));
  EXPECT_THAT(message(std::vector<std::string>(33, folder / "a")), HasSubstr("at most 32 runs: got 33"));
  EXPECT_THAT(message({}), HasSubstr("runs is required"));
}

}  // namespace
}  // namespace colossal::cli::report_test
