#include "colossal/comm/launch/process_settings.h"

#include <cstdlib>

namespace colossal::comm {
namespace {

constexpr char kDeviceConnections[] = "CUDA_DEVICE_MAX_CONNECTIONS", kMaxDeviceConnections[] = "32";

}  // namespace

Variables process_settings(const Variables& environment) {
  Variables settings;
  if (!environment.contains("OMP_WAIT_POLICY")) settings["GOMP_SPINCOUNT"] = "1000";
  settings[kDeviceConnections] = kMaxDeviceConnections;
  std::erase_if(settings, [&](const auto& setting) { return environment.contains(setting.first); });
  return settings;
}

void set_device_connections() { setenv(kDeviceConnections, kMaxDeviceConnections, /*overwrite=*/0); }

}  // namespace colossal::comm
