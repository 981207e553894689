#include "colossal/comm/launch/environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "colossal/base/error.h"
#include "colossal/comm/launch/host.h"
#include "colossal/comm/launch/local_ranks.h"
#include "support/thrown_message.h"

namespace colossal::test::environment_test {
namespace {

using comm::Environment;
using comm::Launcher;
using comm::read_environment;
using comm::Variables;
using testing::HasSubstr;

std::string refusal(const Variables& variables) {
  return thrown_message([&] { read_environment(variables); });
}

/// Returns the environment variables of a rank of `srun -n 8`.
Variables step_of_srun() {
  return {{"SLURM_JOB_ID", "77"},
          {"SLURM_STEP_ID", "0"},
          {"SLURM_STEP_NUM_TASKS", "8"},
          {"SLURM_NTASKS", "8"},
          {"SLURM_PROCID", "5"},
          {"SLURM_LOCALID", "1"},
          {"SLURM_NODELIST", "gpu[03-04,9]"},
          {"SLURM_STEP_NODELIST", "gpu[03-04,9]"}};
}

TEST(EnvironmentWithoutLauncher, RefusesARankWithoutTheNumberOfRanks) {
  EXPECT_THAT(refusal({{"RANK", "0"}}), HasSubstr("[launch] WORLD_SIZE is not set, but RANK is; set both"));
  Variables variables = step_of_srun();
  variables["RANK"] = "0";
  EXPECT_EQ(read_environment(variables).launcher, Launcher::Slurm) << "another launcher says it all";
}

TEST(EnvironmentWithoutLauncher, HasOneRank) {
  const Environment environment = read_environment({});
  EXPECT_EQ(environment.launcher, Launcher::None);
  EXPECT_EQ(environment.rank, 0);
  EXPECT_EQ(environment.size, 1);
}

TEST(EnvironmentOfTorchrun, UsesTheAgentsStoreUnderAPrefixPerRestart) {
  Variables variables{{"RANK", "3"},
                      {"WORLD_SIZE", "8"},
                      {"LOCAL_RANK", "1"},
                      {"LOCAL_WORLD_SIZE", "2"},
                      {"MASTER_ADDR", "n7"},
                      {"MASTER_PORT", "1234"},
                      {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                      {"TORCHELASTIC_RESTART_COUNT", "2"},
                      {"TORCHELASTIC_RUN_ID", "abc"}};
  Environment environment = read_environment(variables);
  EXPECT_EQ(environment.launcher, Launcher::Torchrun);
  EXPECT_EQ(environment.rank, 3);
  EXPECT_EQ(environment.size, 8);
  EXPECT_EQ(environment.host, "n7");
  EXPECT_EQ(environment.port, 1234);
  EXPECT_TRUE(environment.hosted_store);
  EXPECT_THAT(environment.prefix, testing::AllOf(HasSubstr("abc"), HasSubstr("2")));
  const std::string before = environment.prefix;
  variables["TORCHELASTIC_RESTART_COUNT"] = "3";
  variables.erase("TORCHELASTIC_USE_AGENT_STORE");
  environment = read_environment(variables);
  EXPECT_NE(environment.prefix, before);
  EXPECT_FALSE(environment.hosted_store);
}

TEST(EnvironmentOfTorchrun, RefusesInvalidRanks) {
  EXPECT_THAT(refusal({{"RANK", "8"}, {"WORLD_SIZE", "8"}}), HasSubstr("[launch] RANK must be in [0, 7]: got 8"));
  EXPECT_THAT(refusal({{"RANK", "x"}, {"WORLD_SIZE", "8"}}), HasSubstr("RANK must be a whole number: got \"x\""));
  EXPECT_THAT(refusal({{"RANK", "1"}, {"WORLD_SIZE", "0"}}), HasSubstr("WORLD_SIZE must be in [1,"));
  EXPECT_THAT(refusal({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "70000"}}),
              HasSubstr("[1, 65535]: got 70000"));
  EXPECT_THAT(refusal({{"RANK", "1"}, {"WORLD_SIZE", "99999999999999"}}), HasSubstr("must be a whole number"));
}

TEST(EnvironmentOfSlurm, MeetsOnTheFirstHostAtAPortOfTheJob) {
  Variables variables = step_of_srun();
  const Environment environment = read_environment(variables);
  EXPECT_EQ(environment.launcher, Launcher::Slurm);
  EXPECT_EQ(environment.rank, 5);
  EXPECT_EQ(environment.size, 8);
  EXPECT_EQ(environment.host, "gpu03");
  EXPECT_GE(environment.port, 20000);
  EXPECT_LT(environment.port, 32000);
  EXPECT_FALSE(environment.hosted_store);
  EXPECT_EQ(read_environment(variables).port, environment.port);
  variables["MASTER_PORT"] = "4000";
  variables["MASTER_ADDR"] = "10.0.0.1";
  EXPECT_EQ(read_environment(variables).port, 4000);
  EXPECT_EQ(read_environment(variables).host, "10.0.0.1");
}

TEST(EnvironmentOfSlurm, CountsTheTasksOfTheStep) {
  Variables variables = step_of_srun();
  variables["SLURM_NTASKS"] = "16";  // srun --preserve-env, or a step on a part of the allocation
  EXPECT_EQ(read_environment(variables).size, 8);
  variables["SLURM_STEP_NODELIST"] = "gpu04";
  EXPECT_EQ(read_environment(variables).host, "gpu04");
}

TEST(EnvironmentOfSlurm, IgnoresBatchScripts) {
  Variables variables{{"SLURM_JOB_ID", "77"},       {"SLURM_JOB_NUM_NODES", "1"}, {"SLURM_PROCID", "0"},
                      {"SLURM_LOCALID", "0"},       {"SLURM_NODEID", "0"},        {"SLURM_NODELIST", "gpu03"},
                      {"SLURM_TASKS_PER_NODE", "1"}};
  EXPECT_EQ(read_environment(variables).launcher, Launcher::None) << "sbatch";
  variables["SLURM_NTASKS"] = variables["SLURM_NPROCS"] = "2";
  EXPECT_EQ(read_environment(variables).launcher, Launcher::None) << "sbatch -n 2";
  EXPECT_EQ(read_environment(variables).size, 1);
}

TEST(EnvironmentOfSlurm, IgnoresShellsOfAnAllocation) {
  const Variables outside_of_steps{{"SLURM_JOB_ID", "77"}, {"SLURM_NTASKS", "4"}, {"SLURM_NODELIST", "gpu03"}};
  EXPECT_EQ(read_environment(outside_of_steps).launcher, Launcher::None) << "salloc -n 4";
  Variables shell{{"SLURM_JOB_ID", "77"},          {"SLURM_STEP_ID", "0"},      {"SLURM_STEP_NUM_TASKS", "1"},
                  {"SLURM_NTASKS", "1"},           {"SLURM_PROCID", "0"},       {"SLURM_LOCALID", "0"},
                  {"SLURM_PTY_PORT", "41001"},     {"SLURM_PTY_WIN_COL", "80"}, {"SLURM_NODELIST", "gpu03"},
                  {"SLURM_STEP_NODELIST", "gpu03"}};
  EXPECT_EQ(read_environment(shell).launcher, Launcher::None) << "srun --pty bash";
  shell["SLURM_NTASKS"] = "4";
  shell["SLURM_STEP_ID"] = "4294967290";
  EXPECT_EQ(read_environment(shell).launcher, Launcher::None) << "salloc -n 4, whose shell is the interactive step";
}

TEST(EnvironmentOfOpenMpi, NeedsNoAddressOnOneHost) {
  Variables variables{{"OMPI_COMM_WORLD_RANK", "1"},
                      {"OMPI_COMM_WORLD_SIZE", "4"},
                      {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                      {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                      {"PMIX_NAMESPACE", "123"}};
  const Environment environment = read_environment(variables);
  EXPECT_EQ(environment.launcher, Launcher::OpenMpi);
  EXPECT_EQ(environment.host, "127.0.0.1");
  variables["OMPI_COMM_WORLD_LOCAL_SIZE"] = "2";
  EXPECT_THAT(refusal(variables), HasSubstr("set MASTER_ADDR"));
  variables["MASTER_ADDR"] = "n1";
  EXPECT_EQ(read_environment(variables).host, "n1");
}

TEST(EnvironmentOfOurLauncher, OverridesTheSurroundingLauncher) {
  const Environment environment = read_environment({{"COLOSSAL_RANK", "1"},
                                                    {"COLOSSAL_SIZE", "2"},
                                                    {"COLOSSAL_STORE_HOST", "127.0.0.1"},
                                                    {"COLOSSAL_STORE_PORT", "99"},
                                                    {"COLOSSAL_SECRET", "hush"},
                                                    {"COLOSSAL_HOST", "pretended"},
                                                    {"RANK", "0"},
                                                    {"WORLD_SIZE", "1"}});
  EXPECT_EQ(environment.launcher, Launcher::Colossal);
  EXPECT_EQ(environment.rank, 1);
  EXPECT_EQ(environment.port, 99);
  EXPECT_TRUE(environment.hosted_store);
  EXPECT_EQ(environment.secret, "hush");
  EXPECT_EQ(environment.host_name, "pretended");
  EXPECT_THAT(refusal({{"COLOSSAL_RANK", "1"}}), HasSubstr("COLOSSAL_SIZE is not set"));
}

TEST(FirstHost, ReadsSlurmLists) {
  EXPECT_EQ(comm::first_host("n1"), "n1");
  EXPECT_EQ(comm::first_host("n1,n2"), "n1");
  EXPECT_EQ(comm::first_host("n[01-03,7]"), "n01");
  EXPECT_EQ(comm::first_host("n[7]"), "n7");
  EXPECT_EQ(comm::first_host("login,n[01-03]"), "login");
  EXPECT_EQ(comm::first_host("n[01-03]-ib,m2"), "n01-ib");
  EXPECT_EQ(comm::first_host("rack[2-3]n[04-05],x"), "rack2n04");
  EXPECT_THAT(thrown_message([] { comm::first_host("n[01"); }), HasSubstr("not closed"));
  EXPECT_THAT(thrown_message([] { comm::first_host("n[]"); }), HasSubstr("not closed or empty"));
}

TEST(Loopback, RecognizesLoopbackNames) {
  for (const char* host : {"127.0.0.1", "127.0.1.1", "::1", "localhost"}) EXPECT_TRUE(comm::is_loopback(host)) << host;
  for (const char* host : {"", "10.0.0.1", "128.0.0.1", "127.example.org", "n1"})
    EXPECT_FALSE(comm::is_loopback(host)) << host;
}

TEST(HostIdentity, EqualsOnAllProcessesOfAHostUnlessOverridden) {
  EXPECT_EQ(comm::host_identity(""), comm::host_identity(""));
  EXPECT_EQ(comm::host_identity("one"), "one");
}

TEST(ShareOfCores, DividesCoresEvenlyWithoutOverlap) {
  const std::vector<int> cores{0, 1, 4, 5, 8};
  EXPECT_EQ(comm::share_of_cores(cores, 0, 2), (std::vector<int>{0, 1}));
  EXPECT_EQ(comm::share_of_cores(cores, 1, 2), (std::vector<int>{4, 5, 8}));
  EXPECT_EQ(comm::share_of_cores({3, 6}, 3, 4), (std::vector<int>{6})) << "fewer cores than ranks: in turn";
  EXPECT_TRUE(comm::share_of_cores({}, 0, 2).empty());
}

class Sysfs : public testing::Test {
 protected:
  Sysfs() { std::filesystem::remove_all(root_); }
  ~Sysfs() override { std::filesystem::remove_all(root_); }
  void add(const std::string& device, const std::string& node, const std::string& cores) {
    const std::string folder = concat(root_, "/bus/pci/devices/", device);
    std::filesystem::create_directories(folder);
    std::ofstream(folder + "/numa_node") << node << "\n";
    std::ofstream(folder + "/local_cpulist") << cores << "\n";
  }
  const std::string root_ = testing::TempDir() + "/sysfs";
};

TEST_F(Sysfs, GivesRanksTheCoresOfTheirGpus) {
  add("0000:3b:00.0", "0", "0-3,8-9");
  add("0000:5e:00.0", "0", "0-3,8-9");
  add("0000:af:00.0", "1", "4-7,10");
  const std::vector<int> all{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
  using Cores = std::vector<int>;
  EXPECT_EQ(comm::cores_near(all, "0000:AF:00.0", root_), (Cores{4, 5, 6, 7, 10}));
  EXPECT_EQ(comm::cores_near({9, 5, 1}, "0000:3B:00.0", root_), (Cores{1, 9})) << "of those it may use";
  const std::vector<std::string> gpus{"0000:3B:00.0", "0000:AF:00.0", "0000:5E:00.0"};
  EXPECT_EQ(comm::share_of_cores(all, 0, gpus, root_), (Cores{0, 1, 2}));
  EXPECT_EQ(comm::share_of_cores(all, 1, gpus, root_), (Cores{4, 5, 6, 7, 10})) << "alone on its node";
  EXPECT_EQ(comm::share_of_cores(all, 2, gpus, root_), (Cores{3, 8, 9}));
}

TEST_F(Sysfs, GivesEvenSharesWithoutNumaNodes) {
  add("0000:3b:00.0", "0", "0-1");
  add("0000:5e:00.0", "-1", "0-5");
  add("0000:af:00.0", "1", "6-7");
  add("0000:d8:00.0", "1", "none");
  const std::vector<int> all{0, 1, 2, 3, 4, 5};
  for (const char* other : {"0000:5E:00.0", "0000:AF:00.0", "0000:D8:00.0", "0000:00:00.0"}) {
    EXPECT_TRUE(comm::cores_near(all, other, root_).empty()) << other;
    EXPECT_EQ(comm::share_of_cores(all, 0, {"0000:3B:00.0", other}, root_), (std::vector<int>{0, 1, 2})) << other;
    EXPECT_EQ(comm::share_of_cores(all, 1, {"0000:3B:00.0", other}, root_), (std::vector<int>{3, 4, 5})) << other;
  }
}

TEST(SignalName, NamesTheSignalThatKilledARank) {
  EXPECT_EQ(comm::signal_name(9), "SIGKILL");
  EXPECT_EQ(comm::signal_name(11), "SIGSEGV");
  EXPECT_EQ(comm::signal_name(64), "signal 64");
}

}  // namespace
}  // namespace colossal::test::environment_test
