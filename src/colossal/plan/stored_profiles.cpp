// Where profiles come from: names, files, and the user's cache folder.
#include <cstdlib>
#include <filesystem>

#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/base/join.h"
#include "colossal/base/suggest.h"
#include "colossal/plan/profile.h"

namespace colossal::plan {
namespace {

constexpr int64_t kMaxProfileBytes = 16 << 20;
constexpr int64_t kDeviceGiB = int64_t{1} << 30;

// Values of the data sheets of A100-SXM4-80GB, H100-SXM5 and H200-SXM: memory, memory bandwidth, dense peaks. The
// links and latencies are the starting values of algorithms.md 13.1: what collectives reach, not what links are sold
// as. A100: NVLink 3 reaches 235 of 300 GB/s, HDR 200 about 24 of 25 GB/s. H100 and H200: NVLink 4 reaches 370 to 480
// GB/s with switches that reduce, here 400, and NDR 400 about 48 of 50 GB/s. A device has its own network card.
// Latencies: 3 to 6 us inside a node, 10 to 20 us between nodes. An operator starts in 4 to 8 us.
// `efficiency` is a starting value: the best products reach 80 to 90 % of the peak on A100, 65 to 75 % on H100, whose
// clock falls under load. fp32 is without TF32, as LibTorch computes by default.
// `attention` is that of FlashAttention-2 in forward and backward: about 0.6 of the peak on A100 (arXiv 2307.08691: up
// to 0.73 forward, 0.63 backward) and 0.35 on H100 (arXiv 2407.08608, which gives 0.6 to 0.75 for FlashAttention-3).
// The papers count 3.5 forward passes, because backward computes the scores again; recorded steps count 3. So the
// shares here are 3 / 3.5 of theirs.
// Copies to the host: 16 lanes of PCIe 4 reach about 25, of PCIe 5 about 50 GB/s. Disk: one NVMe drive.
constexpr DiskProfile kNvme{6e9, 3e9, 1e-4};

Profile a100() {
  Profile p;
  p.device = {80 * kDeviceGiB, 4 * kDeviceGiB, 2.039e12, 312e12, 312e12, 312e12, 19.5e12, 9.7e12, 0.85, 0.52, 5e-6};
  p.node = {8, 2.35e11, 4e-6};
  p.network = {2.4e10, 1.5e-5, 1};
  p.host = {2.5e10, 1e-5};
  p.disk = kNvme;
  return p;
}

Profile h100() {
  Profile p = a100();
  p.device = {80 * kDeviceGiB, 4 * kDeviceGiB, 3.35e12, 989e12, 989e12, 1979e12, 67e12, 34e12, 0.7, 0.3, 5e-6};
  p.node = {8, 4.0e11, 4e-6};
  p.network = {4.8e10, 1.5e-5, 1};
  p.host = {5e10, 1e-5};
  return p;
}

Profile h200() {
  Profile p = h100();
  p.device.memory = int64_t{141} * 1000 * 1000 * 1000;
  p.device.bandwidth = 4.8e12;
  return p;
}

// One GeForce card in a desktop. Values of NVIDIA's papers on the GA102 and AD102 architectures and of the card's data
// sheet: GA106 with 112 tensor cores at 1.777 GHz, 192 bits of GDDR6; AD102 with 16,384 cores at 2.52 GHz. Products of
// 16-bit numbers add up in fp32, at half the rate that GeForce cards have with sums in fp16; dense, without sparsity.
// fp64 is 1/64 of fp32. The share of the peak is that of A100, and attention's too, because no paper measures them.
// 16 lanes of PCIe 4. There is no link between cards: who has several writes a profile.
Profile rtx_4090() {
  Profile p;
  p.device = {24 * kDeviceGiB, kDeviceGiB, 1.008e12, 165.2e12, 165.2e12, 330.3e12, 82.6e12, 1.29e12, 0.85, 0.52, 5e-6};
  p.host = {2.5e10, 1e-5};
  p.disk = kNvme;
  return p;
}

Profile rtx_3060() {
  Profile p = rtx_4090();
  p.device = {12 * kDeviceGiB, kDeviceGiB, 3.6e11, 25.5e12, 25.5e12, 25.5e12, 12.7e12, 0.199e12, 0.85, 0.52, 5e-6};
  return p;
}

struct NamedProfile {
  const char* name;
  Profile (*make)();
};

constexpr NamedProfile kNamedProfiles[] = {
    {"a100-8x", a100}, {"h100-8x", h100}, {"h200-8x", h200}, {"rtx-3060", rtx_3060}, {"rtx-4090", rtx_4090}};

std::string environment_value(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

std::vector<std::string> named_profiles() {
  std::vector<std::string> names;
  for (const auto& named : kNamedProfiles) names.emplace_back(named.name);
  return names;
}

Profile load_profile(const std::string& path) {
  std::string text;
  try {
    text = read_file(path, kMaxProfileBytes);
  } catch (const Error& error) {
    throw Error("cluster", error.message());
  }
  return parse_profile(text, path);
}

Profile find_profile(const std::string& cluster) {
  for (const auto& named : kNamedProfiles) {
    if (cluster != named.name) continue;
    Profile profile = named.make();
    profile.name = cluster;
    return profile;
  }
  std::error_code ignored;
  if (cluster.find('/') != std::string::npos || cluster.ends_with(".toml") ||
      std::filesystem::is_regular_file(cluster, ignored))
    return load_profile(cluster);
  std::vector<std::string> known = named_profiles();
  known.emplace_back("this");
  throw Error("cluster", concat("unknown cluster `", cluster, "`", did_you_mean(cluster, known), "; known are ",
                                join(known), ", and the paths of profiles"));
}

std::string stored_profile_path() {
  const std::string cache = environment_value("XDG_CACHE_HOME"), home = environment_value("HOME");
  require(!cache.empty() || !home.empty(), "cluster",
          "no folder for the profile: neither XDG_CACHE_HOME nor HOME is set; set one, or name a file with --to");
  return (cache.empty() ? home + "/.cache" : cache) + "/colossal/profile.toml";
}

std::optional<Profile> stored_profile(const std::string& path, const Machine& machine, std::string& why) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) {
    why = concat("there is no profile at ", path);
    return std::nullopt;
  }
  try {
    Profile profile = load_profile(path);
    if (profile.machine.processor == machine.cpu && profile.machine.cores == machine.cores) return profile;
    why = concat("the profile at ", path, " is of another machine: ", profile.machine.cores, " cores of `",
                 profile.machine.processor, "`, not ", machine.cores, " of `", machine.cpu, "`");
  } catch (const Error& error) {
    why = concat("the profile cannot be used: ", error.message());
  }
  return std::nullopt;
}

}  // namespace colossal::plan
