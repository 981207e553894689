// What a rank must know about the machine it runs on: who shares memory with it, how peers reach it, which cores are
// its own.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace colossal::comm {

/// Equal on two ranks exactly when they can share memory, which they hand to each other over a socket (Handover): boot
/// of the system, network namespace, user namespace, user, and the host's name, because copies of a virtual machine
/// agree in the others. `name` stands for all of these.
std::string host_identity(const std::string& name);

/// Whether `host` names this host on every host: "127.0.0.1" and its like, "::1", "localhost".
bool is_loopback(const std::string& host);

/// Address of this host's interface on the way to `host`:`port`; when that is the loopback one and the run has several
/// hosts, the first other IPv4 address. Errors: throws Error("launch", ...) when `host` has no address.
std::string local_address(const std::string& host, int port, bool several_hosts);

/// Cores that this process may use.
std::vector<int> allowed_cores();
int installed_cores();

/// The share of `cores` of local rank r of n: contiguous, as even as it gets; with fewer cores than ranks, one core
/// each in turn.
std::vector<int> share_of_cores(const std::vector<int>& cores, int r, int n);

/// Returns the cores of `cores` that belong to the NUMA node of the device at `pci_id` ("0000:3b:00.0", letters of
/// either case). The kernel reports the node under `sysfs`. Returns no cores if it reports none.
std::vector<int> cores_near(const std::vector<int>& cores, const std::string& pci_id, const std::string& sysfs);

/// The share of local rank r where ranks compute on GPUs, `gpus[i]` being the bus address of local rank i's: of the
/// cores near its own, which it shares with the ranks whose GPUs are on that node; within them as above. As above
/// altogether where one of the GPUs is near none of `cores`, or its place is not known.
std::vector<int> share_of_cores(const std::vector<int>& cores, int r, const std::vector<std::string>& gpus,
                                const std::string& sysfs);

/// Binds the calling thread, and those it starts from now on.
void bind_to_cores(const std::vector<int>& cores);

/// A hash that all builds and processes agree on (FNV-1a), for names.
uint64_t stable_hash(const std::string& text);

}  // namespace colossal::comm
