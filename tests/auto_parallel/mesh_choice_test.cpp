// The mesh that [parallel] auto chooses for a module: no other one has a faster plan.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <limits>

#include "auto_parallel/plan_courses.h"
#include "colossal/base/error.h"
#include "colossal/plan/solver.h"

namespace colossal::auto_parallel::mesh_choice_test {
namespace {

/// Returns the file of a cluster whose calls start at once, so that the bytes decide which plan is the fastest.
std::string cluster_of_bytes() {
  const std::string path = testing::TempDir() + "/auto-cluster.toml";
  std::ofstream(path)
      << "device = { memory = \"8GiB\", reserve = \"1GiB\", bandwidth = 1e10, fp64 = 1e12, start = 1e-9 }\n"
         "node = { devices = 8, bandwidth = 1e10, latency = 1e-9 }\n";
  return path;
}

/// Returns the seconds of the solved plan on a mesh; infinity if the mesh has no plan.
double planned_seconds(const std::string& name, int64_t data, int64_t tensor) {
  double seconds = std::numeric_limits<double>::infinity();
  try {
    comm::run_ranks(static_cast<int>(data * tensor), [&](comm::World& world) {
      const Subject subject = subjects().at(name)(0);
      const auto training = auto_parallel::initialize(world, *subject.module, subject.loss, subject.inputs(0),
                                                      config_of(data, tensor, name), {.cluster = cluster_of_bytes()});
      if (world.rank() == 0) seconds = training->plan().seconds;
    });
  } catch (const Error&) {  // data does not divide the rows
  }
  return seconds;
}

/// Trains a subject with [parallel] auto and returns the number of replicas of the mesh that was chosen. No other mesh
/// of the ranks may have a faster plan, and the course must be that of one process.
int64_t chosen_replicas(const std::string& name, int64_t ranks) {
  double fastest = std::numeric_limits<double>::infinity();
  for (int64_t data = 1; data <= ranks; ++data)
    if (ranks % data == 0) fastest = std::min(fastest, planned_seconds(name, data, ranks / data));
  const Course want = alone(name);
  std::atomic<int64_t> replicas = 0;
  comm::run_ranks(static_cast<int>(ranks), [&](comm::World& world) {
    const Subject subject = subjects().at(name)(world.rank());
    run::Config config = config_of(1, 1, name + "-auto");
    config.parallel.automatic = true;
    const auto training = auto_parallel::initialize(world, *subject.module, subject.loss, subject.inputs(0), config,
                                                    {.cluster = cluster_of_bytes()});
    EXPECT_EQ(training->plan().seconds, fastest);
    EXPECT_EQ(training->plan().mesh.ranks(), ranks);
    Course got{losses_of(*training, subject, kSteps), {}};
    training->gather();
    got.values = values_of(*subject.module);
    expect_course(got, want);
    replicas = training->replicas();
  });
  return replicas;
}

TEST(AutoMesh, DividesRowsIfGradientsHaveFewBytes) { EXPECT_EQ(chosen_replicas("mlp", 4), 4); }

TEST(AutoMesh, DividesOperatorsIfSomeNeedWholeRows) { EXPECT_EQ(chosen_replicas("largest", 4), 1); }

TEST(AutoMesh, DividesOperatorsIfRanksDoNotDivideRows) { EXPECT_EQ(chosen_replicas("mlp", 3), 1); }

TEST(AutoMesh, DividesBoth) { EXPECT_EQ(chosen_replicas("shared", 4), 2); }

}  // namespace
}  // namespace colossal::auto_parallel::mesh_choice_test
