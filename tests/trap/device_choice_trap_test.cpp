// The choice of a rank's device, and of the current device, among devices that are not CUDA's.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "colossal/base/cuda_build.h"
#include "colossal/base/error.h"
#include "colossal/comm/launch/host.h"
#include "colossal/comm/launch/launch.h"
#include "colossal/comm/store.h"
#include "support/trap_devices.h"

namespace colossal::comm::device_choice_trap_test {
namespace {

using test::TrapDevices;

int current() { return c10::impl::VirtualGuardImpl(at::kPrivateUse1).getDevice().index(); }

TEST(DeviceChoice, WrapsAroundTheDevicesOfTheProcess) {
  const TrapDevices three({"a", "b", "c"}), none({});
  EXPECT_EQ(choose_device("cuda", 0, three), test::trap_device(0));
  EXPECT_EQ(choose_device("auto", 5, three), test::trap_device(2));
  EXPECT_EQ(choose_device("cpu", 1, three), at::Device(at::kCPU));
  EXPECT_EQ(choose_device("auto", 1, none), at::Device(at::kCPU));
  EXPECT_THROW(choose_device("cuda", 0, none), Error);
}

TEST(DeviceChoice, ExplainsWhyGpusAreUnused) {
  const TrapDevices one({"a"}), none({});
  const std::filesystem::path root = testing::TempDir() + "/root-with-driver";
  std::filesystem::remove_all(root);
  EXPECT_EQ(why_gpus_are_unused("auto", none, root), "") << "no driver";
  std::filesystem::create_directories(root / "dev");
  std::ofstream(root / "dev/dxg") << "";
  EXPECT_EQ(why_gpus_are_unused("auto", none, root), "") << "WSL without a driver";
  std::filesystem::create_directories(root / "usr/lib/wsl/lib");
  std::ofstream(root / "usr/lib/wsl/lib/libcuda.so") << "";
  EXPECT_NE(why_gpus_are_unused("auto", none, root), "") << "WSL";
  std::filesystem::remove_all(root / "usr");
  std::ofstream(root / "dev/nvidiactl") << "";
  const std::string why = why_gpus_are_unused("auto", none, root);
  EXPECT_NE(why.find("NVIDIA driver, but the run uses the CPU"), std::string::npos) << why;
  EXPECT_NE(why.find(cuda_build().libtorch), std::string::npos) << why;
  EXPECT_EQ(why_gpus_are_unused("cpu", none, root), "") << "the user asked for the CPU";
  EXPECT_EQ(why_gpus_are_unused("auto", one, root), "") << "a GPU is used";
  ASSERT_EQ(setenv("CUDA_VISIBLE_DEVICES", "", 1), 0);
  EXPECT_EQ(why_gpus_are_unused("auto", none, root), "") << "the user hides the GPUs";
  unsetenv("CUDA_VISIBLE_DEVICES");
  std::filesystem::remove_all(root);
}

// A tensor that is made without a device index is on the current device. On another device it would create a context
// that the rank does not need.
TEST(DeviceChoice, SetsTheCurrentDeviceBeforeTheFirstGroup) {
  const TrapDevices devices({"a", "b", "c", "d"});
  std::thread([&] {
    make_current(test::trap_device(3));
    const auto world = launch({.device = "cpu", .devices = &devices}, Environment{});
    EXPECT_EQ(current(), 3) << "nobody asked for another one";
    launch({.device = "cuda", .devices = &devices}, Environment{});
    EXPECT_EQ(current(), 0);
  }).join();
}

TEST(DeviceChoice, UsesTheDeviceOfTheLocalRank) {
  const TrapDevices devices({"a", "b", "c", "d"});
  const auto server = Store::tcp({.host = "127.0.0.1", .server = true});
  int taken[2] = {-1, -1};
  const auto join = [&](int rank) {
    Environment environment{.rank = rank, .size = 2, .host = "127.0.0.1", .port = server->port(), .hosted_store = true};
    const auto world = launch({.bind_cores = false, .device = "cuda", .devices = &devices}, environment);
    taken[rank] = current();
  };
  std::thread other(join, 1);
  std::thread(join, 0).join();
  other.join();
  EXPECT_EQ(taken[0], 0);
  EXPECT_EQ(taken[1], 1);
}

// The rank is bound to the core that the other rank would get if cores were assigned in order.
TEST(DeviceChoice, BindsARankToCoresOfItsDevice) {
  const std::vector<int> cores = allowed_cores();
  if (cores.size() < 2) GTEST_SKIP() << "there is one core alone";
  const std::string sysfs = testing::TempDir() + "/sysfs-of-trap";
  const auto add = [&](const char* device, int node, int core) {
    const std::string folder = concat(sysfs, "/bus/pci/devices/", device);
    std::filesystem::create_directories(folder);
    std::ofstream(folder + "/numa_node") << node << "\n";
    std::ofstream(folder + "/local_cpulist") << core << "\n";
  };
  add("a", 0, cores.back());
  add("b", 1, cores.front());
  const TrapDevices devices({"a", "b"});
  const auto server = Store::tcp({.host = "127.0.0.1", .server = true});
  const int threads = at::get_num_threads();
  std::vector<int> taken[2];
  const auto join = [&](int rank) {
    Environment environment{.rank = rank, .size = 2, .host = "127.0.0.1", .port = server->port(), .hosted_store = true};
    const auto world = launch({.device = "cuda", .devices = &devices, .sysfs = sysfs}, environment);
    taken[rank] = allowed_cores();
  };
  std::thread other(join, 1);
  std::thread(join, 0).join();
  other.join();
  at::set_num_threads(threads);
  EXPECT_EQ(taken[0], std::vector<int>{cores.back()});
  EXPECT_EQ(taken[1], std::vector<int>{cores.front()});
  std::filesystem::remove_all(sysfs);
}

}  // namespace
}  // namespace colossal::comm::device_choice_trap_test
