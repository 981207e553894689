#include "colossal/comm/launch/host.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>

#include "colossal/base/error.h"

namespace colossal::comm {
namespace {

std::string numeric(const sockaddr* address, socklen_t length) {
  char text[NI_MAXHOST] = "";
  getnameinfo(address, length, text, sizeof text, nullptr, 0, NI_NUMERICHOST);
  return text;
}

std::string first_outside_address() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return "";
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, &freeifaddrs);
  for (const ifaddrs* entry = list; entry; entry = entry->ifa_next) {
    const bool usable = entry->ifa_addr && entry->ifa_addr->sa_family == AF_INET && (entry->ifa_flags & IFF_UP) &&
                        !(entry->ifa_flags & IFF_LOOPBACK);
    if (usable) return numeric(entry->ifa_addr, sizeof(sockaddr_in));
  }
  return "";
}

/// Connects a datagram socket, which sends no data but makes the kernel pick the interface.
std::string address_towards(const addrinfo& target) {
  const int descriptor = socket(target.ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (descriptor < 0) return "";
  sockaddr_storage own{};
  socklen_t length = sizeof own;
  const bool known = connect(descriptor, target.ai_addr, target.ai_addrlen) == 0 &&
                     getsockname(descriptor, reinterpret_cast<sockaddr*>(&own), &length) == 0;
  close(descriptor);
  return known ? numeric(reinterpret_cast<const sockaddr*>(&own), length) : "";
}

/// Returns the namespace of that kind in which this process runs.
std::string own_namespace(const std::string& kind) {
  struct stat status{};
  if (stat(("/proc/self/ns/" + kind).c_str(), &status) != 0) return "-";
  return concat(status.st_dev, ":", status.st_ino);
}

}  // namespace

std::string host_identity(const std::string& name) {
  if (!name.empty()) return name;
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id") >> std::ws, boot);
  return concat(host, " ", boot, " ", own_namespace("net"), " ", own_namespace("user"), " ", geteuid());
}

bool is_loopback(const std::string& host) {
  in_addr number{};
  const bool is_v4 = inet_pton(AF_INET, host.c_str(), &number) == 1;  // "127.example.org" is an ordinary name
  return (is_v4 && ntohl(number.s_addr) >> 24 == 127) || host == "::1" || host == "localhost";
}

std::string local_address(const std::string& host, int port, bool several_hosts) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* list = nullptr;
  const int failure = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
  require(failure == 0, "launch", "the rendezvous host \"", host, "\" has no address: ", gai_strerror(failure),
          "; set MASTER_ADDR to a name or number that all hosts can resolve");
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(list, &freeaddrinfo);
  std::string address;
  for (const addrinfo* entry = list; entry && address.empty(); entry = entry->ai_next)
    address = address_towards(*entry);
  if (several_hosts && (address.empty() || is_loopback(address))) address = first_outside_address();
  return address.empty() ? "127.0.0.1" : address;
}

std::vector<int> allowed_cores() {
  cpu_set_t set;
  std::vector<int> cores;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  }
  return cores;
}

int installed_cores() { return static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)); }

std::vector<int> share_of_cores(const std::vector<int>& cores, int r, int n) {
  const int count = static_cast<int>(cores.size());
  if (count == 0) return {};
  if (count < n) return {cores[r % count]};
  return {cores.begin() + count * r / n, cores.begin() + count * (r + 1) / n};
}

std::vector<int> cores_near(const std::vector<int>& cores, const std::string& pci_id, const std::string& sysfs) {
  std::string address = pci_id;  // because CUDA writes capital letters, the kernel small ones
  for (char& letter : address) letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  const std::string device = concat(sysfs, "/bus/pci/devices/", address);
  int node = -1;
  std::ifstream(device + "/numa_node") >> node;
  if (node < 0) return {};                        // no node: the kernel's list would hold all cores
  std::ifstream list(device + "/local_cpulist");  // "0-15,64-79"
  std::vector<int> near;
  for (std::string run; std::getline(list, run, ',');) {
    int first = 0, last = 0;
    const int numbers = std::sscanf(run.c_str(), "%d-%d", &first, &last);
    if (numbers < 1) return {};
    if (numbers == 1) last = first;
    std::copy_if(cores.begin(), cores.end(), std::back_inserter(near),
                 [&](int core) { return core >= first && core <= last; });
  }
  std::sort(near.begin(), near.end());
  return near;
}

std::vector<int> share_of_cores(const std::vector<int>& cores, int r, const std::vector<std::string>& gpus,
                                const std::string& sysfs) {
  std::vector<std::vector<int>> near;
  for (const std::string& gpu : gpus) near.push_back(cores_near(cores, gpu, sysfs));
  const auto ranks = static_cast<int>(gpus.size());
  if (std::any_of(near.begin(), near.end(), [](const auto& own) { return own.empty(); }))
    return share_of_cores(cores, r, ranks);
  const auto own = near.begin() + r;
  return share_of_cores(*own, static_cast<int>(std::count(near.begin(), own, *own)),
                        static_cast<int>(std::count(near.begin(), near.end(), *own)));
}

void bind_to_cores(const std::vector<int>& cores) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (int core : cores) CPU_SET(core, &set);
  if (!cores.empty())
    sched_setaffinity(0, sizeof set, &set);  // some containers refuse this: the thread stays unbound, which only costs
                                             // speed
}

uint64_t stable_hash(const std::string& text) {
  uint64_t hash = 14695981039346656037ull;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ull;
  return hash;
}

}  // namespace colossal::comm
