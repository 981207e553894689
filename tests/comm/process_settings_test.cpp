#include "colossal/comm/launch/process_settings.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace colossal::test::process_settings_test {
namespace {

using comm::process_settings;
using comm::Variables;

TEST(ProcessSettings, AddWhatIsNotSet) {
  EXPECT_EQ(process_settings({{"HOME", "/"}}),
            (Variables{{"GOMP_SPINCOUNT", "1000"}, {"CUDA_DEVICE_MAX_CONNECTIONS", "32"}}));
}

TEST(ProcessSettings, LeaveSettingsOfTheUser) {
  EXPECT_TRUE(process_settings({{"GOMP_SPINCOUNT", ""}, {"CUDA_DEVICE_MAX_CONNECTIONS", "1"}}).empty());
  EXPECT_EQ(process_settings({{"OMP_WAIT_POLICY", "active"}}), (Variables{{"CUDA_DEVICE_MAX_CONNECTIONS", "32"}}));
}

TEST(ProcessSettings, SetDeviceConnectionsOnce) {
  const char* const name = "CUDA_DEVICE_MAX_CONNECTIONS";
  const char* const before = std::getenv(name);
  const std::string value = before ? before : "";
  unsetenv(name);
  comm::set_device_connections();
  EXPECT_STREQ(std::getenv(name), "32");
  setenv(name, "8", 1);
  comm::set_device_connections();
  EXPECT_STREQ(std::getenv(name), "8");
  before ? setenv(name, value.c_str(), 1) : unsetenv(name);
}

}  // namespace
}  // namespace colossal::test::process_settings_test
