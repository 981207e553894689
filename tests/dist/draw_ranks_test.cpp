// `colossal draw` and `colossal serve` on several ranks: the files of one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <future>
#include <string>
#include <vector>

#include "colossal/base/base64.h"
#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/base/json.h"
#include "colossal/http/client.h"
#include "dist/serve_process.h"
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

/// Trains a tiny run and returns its folder.
std::string trained(const TemporaryFolder& folder) {
  const std::string run = folder / "run";
  expect_end({"train", source_dir() + "/examples/dit_shapes.toml", "--run.folder=" + run, "--run.device=cpu",
              "--model.hidden=16", "--model.ffn=32", "--model.layers=2", "--training.steps=3",
              "--training.batch_size=8", "--training.evaluate_batches=0", "--training.sample_every=0"});
  return run;
}

TEST(DrawRanks, WriteTheFilesOfOneRank) {
  const TemporaryFolder folder;
  const std::string run = trained(folder);
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
  EXPECT_TRUE(draw("guidance", {"--parallel.guidance=2"}) == one);
  EXPECT_TRUE(draw("disk", {"--memory.host=8MiB", "--memory.disk=" + (folder / "scratch")}) == one);
}

TEST(DrawRanks, ServeTheFilesOfOneRank) {
  const TemporaryFolder folder;
  const std::string run = trained(folder);
  expect_end({"draw", "--from", run, "--class", "heart", "--count", "2", "--seed", "7", "--steps", "3", "--guidance",
              "2", "--to", folder / "drawn"});
  const std::string body =
      R"({"prompt": "heart", "n": 2, "seed": 7, "num_inference_steps": 3, "guidance_scale": 2, "size": "16x16"})";
  for (const Words& layout : {Words{}, Words{"--parallel.data", "2", "--replicas", "2"}}) {
    Words words{"--from", run};
    words.insert(words.end(), layout.begin(), layout.end());
    ServeProcess server(words);
    const auto post = [url = server.url()](const std::string& text) {
      return http::Client({.url = url, .timeout = 60}).post("/v1/images/generations", text);
    };
    std::vector<std::future<http::Reply>> replies;  // one of each replica, if there are two
    for (int i = 0; i < 2; ++i) replies.push_back(std::async(std::launch::async, post, body));
    for (std::future<http::Reply>& one : replies) {
      const http::Reply reply = one.get();
      ASSERT_EQ(reply.status, 200) << reply.body;
      const auto data = nlohmann::json::parse(reply.body).at("data");
      ASSERT_EQ(data.size(), 2u);
      for (int k = 0; k < 2; ++k) {
        const std::string file = read_file(folder / concat("drawn/000", k, "-", 7 + k, ".png"), 1 << 20);
        EXPECT_TRUE(from_base64(data[k].at("b64_json").get<std::string>()) == file);
      }
    }
    EXPECT_THAT(post(R"({"prompt": "heard"})").body, testing::HasSubstr("heart"));
    EXPECT_EQ(post(R"({"prompt": "heart", "size": "17x16"})").status, 400);
    server.send(SIGTERM);
    EXPECT_EQ(server.finish().status, 0);
  }
}

}  // namespace
}  // namespace colossal::test::draw_ranks_test
