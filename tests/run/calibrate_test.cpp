// Calibration on tiny grids: the profile is complete, positive and readable. No test looks at how fast anything is.
#include "colossal/run/calibrate.h"

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/base/machine.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/plan/cluster.h"
#include "support/temporary_folder.h"

namespace colossal::run::calibrate_test {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Gt;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

CalibrationOptions tiny(const std::string& folder) {
  return {.dtypes = {"fp32", "bf16"},
          .m = {1, 64},
          .n = {8, 64},
          .k = {8, 64},
          .elementwise_bytes = {1200, 120000},
          .attention_tokens = 16,
          .message_bytes = 4096,
          .disk_bytes = 4096,
          .seconds = 0.2,
          .disk_folder = folder};
}

/// Returns the profile that each rank measured.
std::vector<plan::Profile> measured_by(int ranks, const CalibrationOptions& options) {
  std::vector<plan::Profile> profiles(ranks);
  comm::run_ranks(ranks, [&](comm::World& world) {
    at::set_num_threads(1);
    profiles[world.rank()] = calibrate(world, at::kCPU, options);
  });
  return profiles;
}

TEST(Calibrate, FillsAProfile) {
  const test::TemporaryFolder folder;
  for (const int ranks : {1, 2, 3}) {
    const plan::Profile profile = measured_by(ranks, tiny(folder.path()))[0];
    EXPECT_TRUE(profile.device.shared);
    EXPECT_GT(profile.device.memory, profile.device.reserve);
    EXPECT_GT(profile.device.start, 0);
    EXPECT_GT(profile.device.fp32, 0);
    EXPECT_GT(profile.device.bf16, 0);
    EXPECT_EQ(profile.device.fp64, 0);  // not asked for
    EXPECT_THAT(profile.products.threads, ElementsAre(1));
    EXPECT_THAT(profile.products.rates, SizeIs(2 * 2 * 2 * 2));
    EXPECT_THAT(profile.products.rates, Each(Gt(0)));
    EXPECT_THAT(profile.elementwise.rates, SizeIs(2));
    EXPECT_THAT(profile.attention.dtypes, ElementsAre("fp32", "bf16"));
    EXPECT_THAT(profile.attention.threads, ElementsAre(1));
    EXPECT_THAT(profile.attention.rates, SizeIs(2));
    EXPECT_THAT(profile.attention.rates, Each(Gt(0)));
    EXPECT_GT(profile.device.overhead, 0);  // autograd takes longer than the start of a kernel
    EXPECT_GT(profile.host.bandwidth, 0);
    EXPECT_GT(profile.disk.read, 0);
    EXPECT_GT(profile.disk.write, 0);
    EXPECT_EQ(profile.machine.cores, ranks);  // one thread each
    EXPECT_EQ(profile.machine.processor, describe_machine().cpu);
    EXPECT_GT(profile.machine.resident, 0);
    EXPECT_EQ(profile.network.bandwidth, 0);  // one host
    EXPECT_THAT(profile.collectives.bandwidth, SizeIs(ranks == 1 ? 0 : 8));
    EXPECT_EQ(plan::profile_to_toml(plan::parse_profile(plan::profile_to_toml(profile), "again")),
              plan::profile_to_toml(profile));
  }
}

TEST(Calibrate, GivesAllRanksTheSameProfile) {
  const auto profiles = measured_by(3, tiny(""));
  for (const auto& profile : profiles) EXPECT_EQ(plan::profile_to_toml(profile), plan::profile_to_toml(profiles[0]));
}

TEST(Calibrate, PredictsLongerTimesForMoreWork) {
  const plan::Cluster cluster(measured_by(2, tiny(""))[0]);
  EXPECT_EQ(cluster.ranks_per_node(), 2);
  EXPECT_EQ(cluster.threads(), 1);
  // Each pair has 2^16 times the work or more, so that no noise of the measurement reverses it.
  const auto fp32 = plan::NumberType::Fp32;
  EXPECT_LT(cluster.product_seconds(1, 8, 8, fp32), cluster.product_seconds(4096, 512, 512, fp32));
  EXPECT_LT(cluster.elementwise_seconds(1), cluster.elementwise_seconds(1e10));
  for (const auto collective : {Collective::AllReduce, Collective::AllToAll, Collective::Send}) {
    EXPECT_GT(cluster.collective_seconds(collective, 0, {2, 1}), 0);
    EXPECT_LT(cluster.collective_seconds(collective, 4, {2, 1}), cluster.collective_seconds(collective, 1e9, {2, 1}));
  }
}

TEST(Calibrate, FillsGridsThatNoTimeIsLeftFor) {
  CalibrationOptions options = tiny("");
  options.seconds = 0;
  const auto profile = measured_by(2, options)[0];
  EXPECT_THAT(profile.products.rates, SizeIs(16));
  EXPECT_THAT(std::vector<double>(profile.products.rates.begin() + 1, profile.products.rates.begin() + 8),
              Each(profile.products.rates[0]));  // of fp32 only the first point was measured
}

TEST(Calibrate, LeavesOutADiskThatCannotBeUsed) {
  const test::TemporaryFolder folder;
  const std::string file = folder.write("file", "");
  EXPECT_EQ(measured_by(1, tiny(file + "/below"))[0].disk.read, 0);
}

TEST(Calibrate, RefusesUnknownTypes) {
  CalibrationOptions options = tiny("");
  options.dtypes = {"int4"};
  try {
    measured_by(1, options);
    ADD_FAILURE() << "nothing was refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.component(), "cluster");
    EXPECT_THAT(error.message(), HasSubstr("dtypes of products must be among fp64, fp32, bf16 and fp16: got `int4`"));
  }
}

/// Sets XDG_CACHE_HOME until the end of a test.
class CacheFolder {
 public:
  explicit CacheFolder(const std::string& path) {
    if (const char* before = getenv("XDG_CACHE_HOME")) before_ = before;
    setenv("XDG_CACHE_HOME", path.c_str(), 1);
  }
  ~CacheFolder() {
    if (before_)
      setenv("XDG_CACHE_HOME", before_->c_str(), 1);
    else
      unsetenv("XDG_CACHE_HOME");
  }

 private:
  std::optional<std::string> before_;
};

TEST(ChooseCluster, PrefersTheStoredProfile) {
  const test::TemporaryFolder folder;
  const CacheFolder cache(folder.path());
  plan::Profile profile = measured_by(1, tiny(""))[0];
  profile.machine.cores = describe_machine().cores;
  profile.device.bf16 = 12345;
  store_profile(profile, plan::stored_profile_path());
  const ClusterChoice choice = choose_cluster("this");
  EXPECT_EQ(choice.profile.device.bf16, 12345);
  EXPECT_THAT(choice.note, IsEmpty());
}

TEST(ChooseCluster, SaysThatTimesAreRough) {
  const test::TemporaryFolder folder;
  const CacheFolder cache(folder.path());
  EXPECT_THAT([] { choose_cluster("this", /*on_gpus=*/true); },
              testing::ThrowsMessage<Error>(HasSubstr("run `colossal plan --calibrate` once")));
  const ClusterChoice absent = choose_cluster("this");
  EXPECT_THAT(absent.note, HasSubstr("times are rough, because there is no profile at " + folder.path()));
  EXPECT_THAT(absent.note, HasSubstr("`colossal plan --calibrate` measures this machine once"));
  EXPECT_EQ(absent.profile.machine.cores, describe_machine().cores);
  EXPECT_GT(plan::Cluster(absent.profile).product_seconds(64, 64, 64, plan::NumberType::Bf16), 0);
  EXPECT_GT(absent.profile.device.attention, 0);
  EXPECT_LE(absent.profile.device.attention, 1);
  EXPECT_GT(absent.profile.device.overhead, 0);

  plan::Profile other = absent.profile;
  other.machine.processor = "Another";
  store_profile(other, plan::stored_profile_path());
  EXPECT_THAT(choose_cluster("this").note, HasSubstr("is of another machine"));
}

TEST(ChooseCluster, KnowsNamedClusters) {
  const ClusterChoice choice = choose_cluster("h100-8x");
  EXPECT_EQ(choice.profile.device.bf16, plan::find_profile("h100-8x").device.bf16);
  EXPECT_THAT(choice.note, IsEmpty());
}

}  // namespace
}  // namespace colossal::run::calibrate_test
