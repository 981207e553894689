// Profiles as TOML, named clusters, the user's cache folder, and every refusal with its message.
#include "colossal/plan/profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/plan/cluster.h"
#include "support/temporary_folder.h"

namespace colossal::plan::profile_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

/// The three lines that a user's profile needs.
const std::string kUsersProfile =
    "device  = { memory = \"80GiB\", reserve = \"4GiB\", bandwidth = 3.35e12, bf16 = 989e12, start = 5e-6 }\n"
    "node    = { devices = 8, bandwidth = 4.0e11, latency = 4e-6 }\n"
    "network = { bandwidth = 4.8e10, latency = 1.5e-5, oversubscription = 1 }\n";

std::string fault_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    EXPECT_EQ(error.component(), "cluster");
    return error.message();
  }
  return "";
}
std::string fault_in(const std::string& toml) {
  return fault_of([&] { parse_profile(toml, "mine.toml"); });
}
std::string replaced(std::string text, const std::string& what, const std::string& by) {
  const size_t at = text.find(what);
  EXPECT_NE(at, std::string::npos) << what;
  return text.replace(at, what.size(), by);
}

/// A profile with a value in every key, as a calibration writes it.
Profile measured(double threads) {
  Profile profile = parse_profile(kUsersProfile, "measured");
  profile.device.shared = true;
  profile.host = {1e10, 1e-5};
  profile.disk = {2e9, 1e9, 1e-4};
  profile.machine = {"A processor", 4, int64_t{300} << 20};
  profile.products = {{"fp32", "bf16"}, {threads}, {64, 128}, {64}, {64}, {1, 2, 3, 4}};
  profile.elementwise = {{threads}, {1e3, 1e6}, {1e9, 2e9}};
  profile.attention = {{"fp32", "bf16"}, {threads}, {threads * 1e9, threads * 3e9}};
  if (threads < 4) profile.collectives = {{"all_reduce", "barrier"}, {4 / threads}, {1e-6, 2e-6}, {1e9, 2e9}};
  for (double& rate : profile.products.rates) rate *= threads * 1e9;
  profile.check();
  return profile;
}

TEST(Profile, NeedsThreeLines) {
  const Profile profile = parse_profile(kUsersProfile, "mine.toml");
  EXPECT_EQ(profile.name, "mine.toml");
  EXPECT_EQ(profile.device.memory, int64_t{80} << 30);
  EXPECT_EQ(profile.device.reserve, int64_t{4} << 30);
  EXPECT_EQ(profile.device.bf16, 989e12);
  EXPECT_EQ(profile.node.devices, 8);
  EXPECT_EQ(profile.network.latency, 1.5e-5);
  EXPECT_EQ(Cluster(profile).device_bytes(), int64_t{76} << 30);
}

TEST(Profile, ReadsBackWhatItWrites) {
  std::vector<Profile> profiles{measured(1), parse_profile(kUsersProfile, "users")};
  for (const auto& name : named_profiles()) profiles.push_back(find_profile(name));
  for (const Profile& profile : profiles) {
    const std::string toml = profile_to_toml(profile);
    const Profile again = parse_profile(toml, profile.name);
    EXPECT_EQ(profile_to_toml(again), toml) << profile.name;
    EXPECT_EQ(again.device.bandwidth, profile.device.bandwidth);
    EXPECT_EQ(again.products.rates, profile.products.rates);
    EXPECT_EQ(again.collectives.bandwidth, profile.collectives.bandwidth);
    EXPECT_EQ(again.machine.processor, profile.machine.processor);
    EXPECT_EQ(again.disk.write, profile.disk.write);
  }
}

TEST(Profile, LeavesOutSectionsWithoutValues) {
  const Profile one_device = parse_profile("device = { memory = 100, bandwidth = 1e9, fp32 = 1e9 }", "one");
  const std::string toml = profile_to_toml(one_device);
  for (const char* section : {"[node]", "[network]", "[host]", "[disk]", "[products]", "[collectives]"})
    EXPECT_EQ(toml.find(section), std::string::npos) << toml;
  EXPECT_EQ(parse_profile(toml, "one").node.devices, 1);
}

TEST(Profile, RefusesUnknownKeys) {
  EXPECT_THAT(fault_in(replaced(kUsersProfile, "latency = 4e-6", "latancy = 4e-6")),
              HasSubstr("mine.toml:2: unknown key `node.latancy`, did you mean `node.latency`?"));
  const std::string other = fault_in(kUsersProfile + "zzzzzzzzzzzzzz = 1\n");
  EXPECT_THAT(other, HasSubstr("mine.toml:4: unknown key `zzzzzzzzzzzzzz`"));
  EXPECT_THAT(other, HasSubstr("docs/explanation/clusters.md lists the keys of a profile"));
}

TEST(Profile, RefusesZeroBandwidthByKey) {
  EXPECT_THAT(fault_in(replaced(kUsersProfile, "bandwidth = 3.35e12", "bandwidth = 0")),
              HasSubstr("mine.toml:1: `device.bandwidth` must be at least 1 (bytes/s): got 0"));
  EXPECT_THAT(fault_in(replaced(kUsersProfile, "bandwidth = 4.0e11", "bandwidth = 0.0")),
              HasSubstr("mine.toml:2: `node.bandwidth` must be at least 1 (bytes/s)"));
  EXPECT_THAT(fault_in(replaced(kUsersProfile, "bandwidth = 4.8e10", "bandwidth = 0")),
              HasSubstr("mine.toml:3: `network.bandwidth` must be at least 1 (bytes/s): got 0"));
  EXPECT_THAT(fault_in(replaced(kUsersProfile, "oversubscription = 1", "oversubscription = 0.5")),
              HasSubstr("`network.oversubscription` must be at least 1"));
}

TEST(Profile, RefusesNewerFormats) {
  EXPECT_THAT(fault_in("format = 2\nnew_key = 3\n" + kUsersProfile),
              HasSubstr("mine.toml:1: `format` must be at most 1, the newest that this version reads: got 2; update "
                        "colossal"));
  EXPECT_EQ(parse_profile("format = 1\n" + kUsersProfile, "mine.toml").format, 1);
}

TEST(Profile, NamesMissingKeys) {
  EXPECT_THAT(fault_in(""), HasSubstr("mine.toml: `device.memory` is missing"));
  EXPECT_THAT(fault_in(replaced(kUsersProfile, "memory = \"80GiB\", reserve = \"4GiB\", ", "")),
              HasSubstr("`device.memory` is missing"));
  EXPECT_THAT(fault_in(replaced(kUsersProfile, "bandwidth = 3.35e12, ", "")),
              HasSubstr("`device.bandwidth` is missing; write the bytes per second"));
  EXPECT_THAT(fault_in(replaced(kUsersProfile, "bf16 = 989e12, ", "")),
              HasSubstr("no rate of products is given; write operations per second"));
  EXPECT_THAT(fault_in(replaced(kUsersProfile, "bandwidth = 4.0e11, ", "")),
              HasSubstr("`node.bandwidth` is missing; a node has 8 devices"));
  EXPECT_THAT(fault_in(replaced(kUsersProfile, "4GiB", "80GiB")),
              HasSubstr("`device.reserve` must be less than device.memory"));
}

TEST(Profile, RefusesTextThatIsNoToml) {
  EXPECT_THAT(fault_in("device = {"), HasSubstr("mine.toml:1: not valid TOML"));
}

TEST(Profile, RefusesTablesThatDoNotFit) {
  const auto fault = [](const std::function<void(Profile&)>& change) {
    Profile profile = measured(1);
    change(profile);
    return fault_of([&] { profile.check(); });
  };
  EXPECT_THAT(fault([](Profile& p) { p.products.rates.pop_back(); }),
              HasSubstr("measured: [products] a table must have a value for each point of its grid: got 3 values"));
  EXPECT_THAT(fault([](Profile& p) { p.products.m = {128, 64}; }), HasSubstr("must ascend: got 64 after 128"));
  EXPECT_THAT(fault([](Profile& p) { p.products.n = {}; }), HasSubstr("along each axis: got an empty list"));
  EXPECT_THAT(fault([](Profile& p) { p.products.dtypes[1] = "bf61"; }),
              HasSubstr("names must be among fp64, fp32, bf16, fp16, fp8: got `bf61`, did you mean `bf16`?"));
  EXPECT_THAT(fault([](Profile& p) { p.elementwise.rates[0] = -1; }),
              HasSubstr("measured: [elementwise] a table must have positive numbers: got -1"));
  EXPECT_THAT(fault([](Profile& p) { p.attention.rates = {}; }), HasSubstr("measured: [attention] a table must have"));
  EXPECT_THAT(fault([](Profile& p) { p.attention.dtypes[0] = "int8"; }), HasSubstr("got `int8`"));
  EXPECT_THAT(fault([](Profile& p) { p.collectives.latency = {}; }), HasSubstr("measured: [collectives]"));
  EXPECT_THAT(fault([](Profile& p) { p.collectives.names[0] = "all_reduze"; }), HasSubstr("mean `all_reduce`?"));
}

TEST(Profile, HasNamedClusters) {
  EXPECT_THAT(named_profiles(), ElementsAre("a100-8x", "h100-8x", "h200-8x", "rtx-3060", "rtx-4090"));
  EXPECT_EQ(find_profile("a100-8x").device.bf16, 312e12);
  EXPECT_EQ(find_profile("h100-8x").node.devices, 8);
  EXPECT_EQ(find_profile("h200-8x").device.bandwidth, 4.8e12);
  EXPECT_EQ(find_profile("h200-8x").network.bandwidth, find_profile("h100-8x").network.bandwidth);
  EXPECT_EQ(find_profile("rtx-3060").device.memory, int64_t{12} << 30);
  EXPECT_EQ(find_profile("rtx-4090").device.memory, int64_t{24} << 30);
  EXPECT_EQ(find_profile("rtx-3060").node.devices, 1);
}

TEST(Profile, SuggestsTheNearestCluster) {
  EXPECT_EQ(fault_of([] { find_profile("a100-9x"); }),
            "unknown cluster `a100-9x`, did you mean `a100-8x`?; known are a100-8x, h100-8x, h200-8x, rtx-3060, "
            "rtx-4090, this, and the paths of profiles");
  EXPECT_THAT(fault_of([] { find_profile("qqqqqqqq"); }), StartsWith("unknown cluster `qqqqqqqq`; known are"));
}

TEST(Profile, ReadsFiles) {
  const colossal::test::TemporaryFolder folder;
  EXPECT_EQ(find_profile(folder.write("mine.toml", kUsersProfile)).device.bf16, 989e12);
  EXPECT_THAT(fault_of([&] { find_profile(folder / "absent.toml"); }), HasSubstr("absent.toml"));
}

/// Sets an environment variable until the end of the test; null removes it.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    if (const char* before = getenv(name)) before_ = before;
    set(value);
  }
  ~Variable() { set(before_ ? before_->c_str() : nullptr); }

 private:
  void set(const char* value) const {
    if (value != nullptr)
      setenv(name_, value, 1);
    else
      unsetenv(name_);
  }
  const char* name_;
  std::optional<std::string> before_;
};

TEST(StoredProfile, UsesTheCacheFolder) {
  const Variable home("HOME", "/home/user");
  {
    const Variable cache("XDG_CACHE_HOME", "/cache");
    EXPECT_EQ(stored_profile_path(), "/cache/colossal/profile.toml");
  }
  const Variable cache("XDG_CACHE_HOME", nullptr);
  EXPECT_EQ(stored_profile_path(), "/home/user/.cache/colossal/profile.toml");
  const Variable no_home("HOME", nullptr);
  EXPECT_THAT(fault_of([] { stored_profile_path(); }), HasSubstr("neither XDG_CACHE_HOME nor HOME is set"));
}

TEST(StoredProfile, MatchesProcessorAndCores) {
  const colossal::test::TemporaryFolder folder;
  const std::string path = folder.write("profile.toml", profile_to_toml(measured(1)));
  Machine machine;
  machine.cpu = "A processor";
  machine.cores = 4;
  std::string why;
  EXPECT_TRUE(stored_profile(path, machine, why));
  EXPECT_THAT(why, IsEmpty());
  machine.cores = 8;
  EXPECT_FALSE(stored_profile(path, machine, why));
  EXPECT_THAT(why, HasSubstr("is of another machine: 4 cores of `A processor`, not 8 of `A processor`"));
  machine.cores = 4;
  machine.cpu = "Another";
  EXPECT_FALSE(stored_profile(path, machine, why));
  EXPECT_THAT(why, HasSubstr("4 cores of `A processor`, not 4 of `Another`"));
  EXPECT_FALSE(stored_profile(folder / "absent.toml", machine, why));
  EXPECT_THAT(why, HasSubstr("there is no profile at "));
  EXPECT_FALSE(stored_profile(folder.write("broken.toml", "format = 9"), machine, why));
  EXPECT_THAT(why, HasSubstr("the profile cannot be used: "));
}

TEST(Profile, MergesThreadCounts) {
  const Profile merged = merge_profiles({measured(4), measured(2), measured(1)});
  EXPECT_THAT(merged.products.threads, ElementsAre(1, 2, 4));
  EXPECT_THAT(merged.products.rates,
              ElementsAre(1e9, 2e9, 2e9, 4e9, 4e9, 8e9, 3e9, 4e9, 6e9, 8e9, 12e9, 16e9));  // by type, then threads
  EXPECT_THAT(merged.elementwise.threads, ElementsAre(1, 2, 4));
  EXPECT_THAT(merged.elementwise.rates, ElementsAre(1e9, 2e9, 1e9, 2e9, 1e9, 2e9));
  EXPECT_THAT(merged.attention.threads, ElementsAre(1, 2, 4));
  EXPECT_THAT(merged.attention.rates, ElementsAre(1e9, 2e9, 4e9, 3e9, 6e9, 12e9));  // by type, then threads
  EXPECT_THAT(merged.collectives.ranks, ElementsAre(2, 4));
  EXPECT_THAT(merged.collectives.latency, ElementsAre(1e-6, 1e-6, 2e-6, 2e-6));
  EXPECT_EQ(profile_to_toml(merge_profiles({measured(1)})), profile_to_toml(measured(1)));
}

TEST(Profile, MergesOnlyEqualGrids) {
  Profile other = measured(2);
  other.products.m = {64, 256};
  EXPECT_THAT(fault_of([&] { merge_profiles({other, measured(1)}); }), HasSubstr("must have the same grids"));
  Profile half = measured(2);
  half.attention.dtypes = {"fp32", "fp16"};
  EXPECT_THAT(fault_of([&] { merge_profiles({half, measured(1)}); }), HasSubstr("the same types of attention"));
  half.attention = {};  // of an older version
  EXPECT_THAT(merge_profiles({half, measured(1)}).attention.rates, IsEmpty());
  EXPECT_THAT(fault_of([] { merge_profiles({}); }), HasSubstr("at least 1 profile: got 0"));
}

}  // namespace
}  // namespace colossal::plan::profile_test
