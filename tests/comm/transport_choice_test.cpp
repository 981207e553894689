// All ranks choose the same transport, whatever devices their own host has.
#include "colossal/comm/launch/transport_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "colossal/base/error.h"
#include "support/thrown_message.h"

namespace colossal::test::transport_choice_test {
namespace {

using comm::choose_transport;
using comm::RankFacts;
using testing::HasSubstr;

/// A host with `ranks` ranks that all see its `gpus` GPUs.
struct Host {
  std::string name;
  int ranks, gpus;
};

std::string bus(int gpu) { return concat("0000:", 10 + gpu, ":00.0"); }

std::vector<RankFacts> run_on(const std::vector<Host>& hosts, const std::string& backend = "auto",
                              bool has_nccl = true) {
  std::vector<RankFacts> facts;
  for (const auto& host : hosts) {
    std::vector<std::string> gpus;
    for (int gpu = 0; gpu < host.gpus; ++gpu) gpus.push_back(bus(gpu));
    facts.insert(facts.end(), host.ranks, {host.name, backend, gpus, has_nccl});
  }
  return facts;
}

TEST(TransportChoice, ChoosesNcclWhenEveryRankOfEveryHostHasAGpu) {
  EXPECT_EQ(choose_transport(run_on({{"a", 4, 4}, {"b", 2, 2}})).backend, "nccl");
  EXPECT_EQ(choose_transport(run_on({{"a", 4, 8}})).backend, "nccl");
  EXPECT_EQ(choose_transport(run_on({{"a", 1, 1}, {"b", 1, 1}})).why, "");
}

TEST(TransportChoice, AgreesOnAllRanksIfOneHostLacksGpus) {
  const auto choice = choose_transport(run_on({{"a", 4, 4}, {"b", 4, 2}}));
  EXPECT_EQ(choice.backend, "gloo") << "the ranks of host a have GPUs enough, but b's do not";
  EXPECT_THAT(choice.why, HasSubstr("by gloo instead of nccl: ranks 4 and 6 share the GPU at 0000:10:00.0 of their "
                                    "host, where rank 6 sees 2 GPUs"));
  EXPECT_EQ(choose_transport(run_on({{"a", 1, 0}, {"b", 1, 1}})).backend, "gloo");
  EXPECT_EQ(choose_transport(run_on({{"a", 2, 1}})).backend, "shm");
}

TEST(TransportChoice, CountsRanksOfAHostThatAreNotNeighbours) {
  const auto choice = choose_transport(run_on({{"a", 1, 1}, {"b", 1, 1}, {"a", 1, 1}}));
  EXPECT_EQ(choice.backend, "gloo");
  EXPECT_THAT(choice.why, HasSubstr("ranks 0 and 2 share the GPU at 0000:10:00.0"));
}

// Slurm does this with --gpus-per-task=1: each task sees one GPU, as number 0.
TEST(TransportChoice, ComparesGpusNotTheirNumberPerRank) {
  auto ranks = run_on({{"a", 4, 0}, {"b", 4, 0}});
  for (size_t r = 0; r < ranks.size(); ++r) ranks[r].gpus = {bus(static_cast<int>(r % 4))};
  EXPECT_EQ(choose_transport(ranks).backend, "nccl");
  ranks[6].gpus = ranks[5].gpus;
  const auto choice = choose_transport(ranks);
  EXPECT_EQ(choice.backend, "gloo");
  EXPECT_THAT(choice.why, HasSubstr("ranks 5 and 6 share the GPU at 0000:11:00.0 of their host, where rank 6 sees 1 "
                                    "GPU"));
  ranks[5].gpus = {bus(7), bus(0), bus(6)};  // its local rank is 1
  EXPECT_THAT(choose_transport(ranks).why, HasSubstr("ranks 4 and 5 share the GPU at 0000:10:00.0"));
}

TEST(TransportChoice, RefusesNcclIfRanksShareAGpu) {
  EXPECT_EQ(choose_transport(run_on({{"a", 2, 2}}, "nccl")).backend, "nccl");
  EXPECT_THAT(
      thrown_message([] { choose_transport(run_on({{"a", 2, 1}}, "nccl")); }),
      HasSubstr("[launch] backend = \"nccl\" needs one GPU per rank: ranks 0 and 1 share the GPU at 0000:10:00.0"));
}

TEST(TransportChoice, NeedsNcclInEveryBuild) {
  auto ranks = run_on({{"a", 2, 2}});
  ranks[1].has_nccl = false;
  const auto choice = choose_transport(ranks);
  EXPECT_EQ(choice.backend, "shm");
  EXPECT_THAT(choice.why, HasSubstr("the build of rank 1 has no NCCL"));
}

TEST(TransportChoice, ExplainsNothingWithoutGpus) {
  for (const bool has_nccl : {false, true}) {
    EXPECT_EQ(choose_transport(run_on({{"a", 4, 0}}, "auto", has_nccl)).backend, "shm");
    EXPECT_EQ(choose_transport(run_on({{"a", 2, 0}, {"b", 2, 0}}, "auto", has_nccl)).backend, "gloo");
    EXPECT_EQ(choose_transport(run_on({{"a", 2, 0}, {"b", 2, 0}}, "auto", has_nccl)).why, "");
  }
}

TEST(TransportChoice, UsesTheConfiguredBackend) {
  EXPECT_EQ(choose_transport(run_on({{"a", 2, 2}}, "gloo")).backend, "gloo");
  EXPECT_EQ(choose_transport(run_on({{"a", 2, 2}}, "shm")).backend, "shm");
  EXPECT_THAT(thrown_message([] { choose_transport(run_on({{"a", 1, 0}, {"b", 1, 0}}, "shm")); }),
              HasSubstr("[launch] backend = \"shm\" needs all ranks on one host: they are on 2"));
  auto ranks = run_on({{"a", 3, 0}});
  ranks[2].backend = "gloo";
  EXPECT_THAT(thrown_message([&] { choose_transport(ranks); }), HasSubstr("\"auto\" on rank 0, \"gloo\" on rank 2"));
}

TEST(RankFacts, ConvertsToTextAndBack) {
  const RankFacts facts{"host with spaces 1:2", "auto", {bus(0), bus(3)}, true};
  const RankFacts read = RankFacts::read(facts.text(), 0);
  EXPECT_EQ(read.host, facts.host);
  EXPECT_EQ(read.backend, facts.backend);
  EXPECT_EQ(read.gpus, facts.gpus);
  EXPECT_EQ(read.has_nccl, facts.has_nccl);
  EXPECT_TRUE(RankFacts::read(RankFacts{"host", "auto"}.text(), 0).gpus.empty());
}

TEST(RankFacts, RefusesTextOfAnotherBuild) {
  for (const char* text : {"", "auto", "auto x 1 host", "auto 1", "auto 1 1", "auto -1 1 host", "auto 1 7 host"})
    EXPECT_THAT(thrown_message([&] { RankFacts::read(text, 5); }), HasSubstr("rank 5 sent \"")) << text;
}

}  // namespace
}  // namespace colossal::test::transport_choice_test
