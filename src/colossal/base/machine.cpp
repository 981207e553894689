#include "colossal/base/machine.h"

#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <set>
#include <sstream>

namespace colossal {
namespace {

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

/// Returns the number in a file, or 0 if there is none. The text "max", which cgroups write for no limit, gives 0, too.
int64_t number_in(const std::string& path) {
  std::istringstream line(first_line(path));
  int64_t number = 0;
  return line >> number ? number : 0;
}

/// Returns the value after `key:` in a file of "key: value" lines, such as /proc/meminfo.
std::string value_of(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const auto colon = line.find(':');
    if (colon == std::string::npos || line.compare(0, key.size(), key) != 0) continue;
    if (line.find_first_not_of(" \t", key.size()) != colon) continue;
    const auto start = line.find_first_not_of(" \t", colon + 1);
    return start == std::string::npos ? "" : line.substr(start);
  }
  return "";
}

int64_t kilobytes_of(const std::string& path, const std::string& key) {
  std::istringstream value(value_of(path, key));
  int64_t kilobytes = 0;
  return value >> kilobytes ? kilobytes * 1024 : 0;
}

/// Returns the folder of this process in the cgroup tree of `controller`: "" is the unified tree, "memory" the older
/// memory controller.
std::string cgroup_folder(const std::string& controller) {
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const auto first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    if (line.substr(first + 1, second - first - 1) == controller) return line.substr(second + 1);
  }
  return "/";
}

/// Returns the first line of a cgroup v2 file of this process's group. A container may not see the path of its group;
/// the function then reads the file of the root that the container sees.
std::string cgroup_line(const std::string& file) {
  const std::string own = first_line("/sys/fs/cgroup" + cgroup_folder("") + "/" + file);
  return own.empty() ? first_line("/sys/fs/cgroup/" + file) : own;
}

int64_t cgroup_memory_limit() {
  std::istringstream line(cgroup_line("memory.max"));
  int64_t limit = 0;
  if (line >> limit) return limit;
  limit = number_in("/sys/fs/cgroup/memory/memory.limit_in_bytes");
  return limit < (int64_t{1} << 60) ? limit : 0;  // cgroup v1 writes a huge number for no limit
}

int64_t cgroup_memory_used() {
  std::istringstream line(cgroup_line("memory.current"));
  int64_t used = 0;
  return line >> used ? used : number_in("/sys/fs/cgroup/memory/memory.usage_in_bytes");
}

int usable_cores() {
  cpu_set_t allowed;
  int cores = static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
  if (::sched_getaffinity(0, sizeof(allowed), &allowed) == 0) cores = CPU_COUNT(&allowed);
  std::istringstream quota(cgroup_line("cpu.max"));  // "<microseconds or max> <period>"
  double granted = 0, period = 0;
  if (quota >> granted >> period && period > 0) cores = std::min(cores, static_cast<int>(std::ceil(granted / period)));
  return std::max(cores, 1);
}

std::vector<std::string> instruction_sets() {
  std::string flags = value_of("/proc/cpuinfo", "flags");
  if (flags.empty()) flags = value_of("/proc/cpuinfo", "Features");  // Arm
  std::istringstream words(flags);
  std::set<std::string> present;
  for (std::string word; words >> word;) present.insert(word == "asimd" ? "neon" : word == "sse4_2" ? "sse4.2" : word);
  std::vector<std::string> found;
  for (const char* name : {"sse4.2",   "avx",      "f16c",     "fma",         "avx2",        "avx_vnni",    "avx512f",
                           "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile",
                           "amx_int8", "amx_bf16", "neon",     "sve",         "sve2",        "bf16",        "i8mm"}) {
    if (present.count(name)) found.push_back(name);
  }
  return found;
}

}  // namespace

Machine describe_machine() {
  Machine machine;
  machine.host = first_line("/proc/sys/kernel/hostname");
  machine.cpu = value_of("/proc/cpuinfo", "model name");
  machine.cores = usable_cores();
  machine.instruction_sets = instruction_sets();
  machine.memory_total = kilobytes_of("/proc/meminfo", "MemTotal");
  machine.swap_total = kilobytes_of("/proc/meminfo", "SwapTotal");
  machine.memory_available = kilobytes_of("/proc/meminfo", "MemAvailable");
  machine.memory_limit = cgroup_memory_limit();
  if (machine.memory_limit > 0) {
    const int64_t left = std::max<int64_t>(machine.memory_limit - cgroup_memory_used(), 0);
    machine.memory_available = std::min(machine.memory_available, left);
  }
  return machine;
}

int64_t resident_bytes() {
  std::istringstream pages(first_line("/proc/self/statm"));
  int64_t all = 0, resident = 0;
  return pages >> all >> resident ? resident * ::sysconf(_SC_PAGESIZE) : 0;
}

int64_t peak_resident_bytes() {
  rusage usage{};
  return ::getrusage(RUSAGE_SELF, &usage) == 0 ? usage.ru_maxrss * int64_t{1024} : 0;
}

}  // namespace colossal
