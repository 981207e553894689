// `colossal draw` on several ranks: the files of one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "support/paths.h"
#include "support/process.h"
#include "support/temporary_folder.h"

namespace colossal::test::draw_ranks_test {
namespace {

using Words = std::vector<std::string>;

void expect_end(Words words) {
  words.insert(words.begin(), program_path());
  const Finished finished = run_process({.command = words, .variables = {{"OMP_NUM_THREADS", "1"}}});
  EXPECT_EQ(finished.status, 0) << finished.output;
}

TEST(DrawRanks, WriteTheFilesOfOneRank) {
  const TemporaryFolder folder;
  const std::string run = folder / "run";
  expect_end({"train", source_dir() + "/examples/dit_shapes.toml", "--run.folder=" + run, "--run.device=cpu",
              "--model.hidden=16", "--model.ffn=32", "--model.layers=2", "--training.steps=3",
              "--training.batch_size=8", "--training.evaluate_batches=0", "--training.sample_every=0"});
  const auto draw = [&](const std::string& name, const Words& flags) {
    Words words{"draw", "--from", run, "--class", "heart", "--count", "3", "--steps", "3", "--to", folder / name};
    words.insert(words.end(), flags.begin(), flags.end());
    expect_end(words);
    std::string all;
    for (const char* file : {"/0000-1.png", "/0001-2.png", "/0002-3.png"})
      all += read_file(folder / (name + file), 1 << 20);
    return all;
  };
  const std::string one = draw("one", {});
  EXPECT_TRUE(draw("data", {"--parallel.data=2"}) == one);
  EXPECT_TRUE(draw("tensor", {"--parallel.tensor=2"}) == one);
  EXPECT_TRUE(draw("disk", {"--memory.host=8MiB", "--memory.disk=" + (folder / "scratch")}) == one);
}

}  // namespace
}  // namespace colossal::test::draw_ranks_test
