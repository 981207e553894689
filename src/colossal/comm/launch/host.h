// Facts about the machine that a rank runs on: which ranks share its memory, how peers reach it, which cores it may
// use.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace colossal::comm {

/// Returns a text that is equal on two ranks exactly if they can share memory, which they pass to each other over a
/// socket (Handover). The text holds the boot of the system, the network namespace, the user namespace, the user and
/// the host's name. The name is needed because copies of a virtual machine agree in the others. A non-empty `name`
/// replaces all of these.
std::string host_identity(const std::string& name);

/// Returns true if `host` means the local host on every host: "127.0.0.1" and the like, "::1", "localhost".
bool is_loopback(const std::string& host);

/// Returns the address of this host's interface on the way to `host`:`port`. If that is the loopback interface and the
/// run has several hosts, returns the first other IPv4 address. Errors: throws Error("launch", ...) if `host` has no
/// address.
std::string local_address(const std::string& host, int port, bool several_hosts);

/// Returns the cores that this process may use.
std::vector<int> allowed_cores();
int installed_cores();

/// Returns the share of `cores` of local rank r of n. Shares are contiguous and as even as possible. With fewer cores
/// than ranks, each rank gets one core, in rotation.
std::vector<int> share_of_cores(const std::vector<int>& cores, int r, int n);

/// Returns the cores of `cores` that belong to the NUMA node of the device at `pci_id` ("0000:3b:00.0", letters of
/// either case). The kernel reports the node under `sysfs`. Returns no cores if it reports none.
std::vector<int> cores_near(const std::vector<int>& cores, const std::string& pci_id, const std::string& sysfs);

/// Returns the share of local rank r if ranks compute on GPUs; `gpus[i]` is the bus address of local rank i's GPU. The
/// share is taken from the cores near that GPU, split as above among the ranks whose GPUs are on that NUMA node. If
/// one of the GPUs is near none of `cores`, or its node is not known, splits all cores as above.
std::vector<int> share_of_cores(const std::vector<int>& cores, int r, const std::vector<std::string>& gpus,
                                const std::string& sysfs);

/// Binds the calling thread, and the threads that it starts afterwards, to `cores`.
void bind_to_cores(const std::vector<int>& cores);

/// Returns a hash of `text` that is the same in all builds and processes (FNV-1a), for names.
uint64_t stable_hash(const std::string& text);

}  // namespace colossal::comm
