// Profiles: what the hardware of a cluster can do, as TOML that a user writes or `colossal plan --calibrate` measures.
//
//   const plan::Profile profile = plan::find_profile("h100-8x");      // or the path of a file
//   write_file("mine.toml", plan::profile_to_toml(profile));                  // reads back equal
//   plan::Cluster(profile).product_seconds(4096, 4096, 4096, plan::NumberType::Bf16);
//
// A user's profile needs three lines (docs/explanation/clusters.md). plan/cluster.h turns a profile into seconds.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "colossal/base/fields.h"
#include "colossal/base/machine.h"
#include "colossal/plan/failures.h"

namespace colossal::plan {

/// The newest format of profiles that this version reads.
inline constexpr int64_t kProfileFormat = 1;

/// One device. Rates are peaks of a data sheet or the best that a calibration measured; 0 = not known.
struct DeviceProfile {
  int64_t memory = 0;   ///< bytes
  int64_t reserve = 0;  ///< bytes that tensors cannot have: context, libraries, fragments
  double bandwidth = 0;
  double bf16 = 0, fp16 = 0, fp8 = 0, fp32 = 0, fp64 = 0;
  double efficiency = 0.7;
  double attention = 0;  ///< share of the peak that attention reaches; 0 = that of products
  double start = 0;
  double overhead = 0;  ///< seconds that an operator takes besides its kernel
  bool shared = false;

  void fields(Fields& f);
};

struct NodeProfile {
  int64_t devices = 1;
  double bandwidth = 0;
  double latency = 0;

  void fields(Fields& f);
};

struct NetworkProfile {
  double bandwidth = 0;
  double latency = 0;
  double oversubscription = 1;

  void fields(Fields& f);
};

/// Copies between the memory of a device and that of its host.
struct HostProfile {
  double bandwidth = 0;
  double latency = 0;

  void fields(Fields& f);
};

struct DiskProfile {
  double read = 0, write = 0;
  double latency = 0;

  void fields(Fields& f);
};

/// The machine on which a profile was measured.
struct MachineProfile {
  std::string processor;
  int64_t cores = 0;     ///< cores that the calibration could use; 0 = the profile was not measured
  int64_t resident = 0;  ///< bytes of a rank that trains, without its tensors: program, libraries

  void fields(Fields& f);
};

/// Rates of matrix products [m, k] [k, n] over a grid, each measured with cores / threads ranks at work.
struct ProductTable {
  std::vector<std::string> dtypes;
  std::vector<double> threads, m, n, k;
  std::vector<double> rates;  ///< operations/s by dtype, threads, m, n, k; k fastest

  void fields(Fields& f);
};

/// Rates of elementwise operators over the bytes that they read and write, measured like ProductTable.
struct ElementwiseTable {
  std::vector<double> threads, bytes;
  std::vector<double> rates;  ///< bytes/s by threads, bytes; bytes fastest

  void fields(Fields& f);
};

/// Rates of causal attention, forward and backward together, by the operations that StepEvent counts, measured like
/// ProductTable.
struct AttentionTable {
  std::vector<std::string> dtypes;
  std::vector<double> threads;
  std::vector<double> rates;  ///< operations/s by dtype, threads; threads fastest

  void fields(Fields& f);
};

/// Latency and bandwidth of each collective among ranks of one node: seconds = latency + sent bytes / bandwidth.
struct CollectiveTable {
  std::vector<std::string> names;  ///< as comm::to_string() writes them
  std::vector<double> ranks;
  std::vector<double> latency, bandwidth;  ///< by name, ranks; ranks fastest

  void fields(Fields& f);
};

struct Profile {
  int64_t format = kProfileFormat;
  std::string name;  ///< for messages: "h100-8x", or the path of the file; not a key
  DeviceProfile device;
  NodeProfile node;
  NetworkProfile network;
  HostProfile host;
  DiskProfile disk;
  Failures failures;
  MachineProfile machine;
  ProductTable products;
  ElementwiseTable elementwise;
  AttentionTable attention;
  CollectiveTable collectives;

  void fields(Fields& f);
  /// Throws if the profile cannot predict anything. Errors ("cluster"): no memory, bandwidth or rate of the device; a
  /// reserve that leaves no memory; several devices in a node without the bandwidth between them; a table whose lists
  /// do not fit each other. The messages name the profile and the key.
  void check() const;
};

/// Reads a profile from TOML. `name` is the name of the file in messages. Errors ("cluster"): the text is not TOML; a
/// format that is newer than kProfileFormat; an unknown key, a wrong type or a value out of range, with its line; the
/// errors of Profile::check().
Profile parse_profile(const std::string& toml, const std::string& name);
/// Reads a profile from a file. Errors ("cluster"): those of parse_profile(); the file cannot be read.
Profile load_profile(const std::string& path);
/// Returns the profile as TOML, which parse_profile() reads back. Sections without values are left out.
std::string profile_to_toml(const Profile& profile);

/// Returns the names that find_profile() knows: a100-8x, h100-8x, h200-8x, rtx-3060, rtx-4090.
std::vector<std::string> named_profiles();
/// Returns the profile of a name, or of a file if `cluster` has a slash, ends in .toml or is the path of a file. The
/// name `this` is not known here, because it may need a measurement (run/calibrate.h). Errors ("cluster"): an unknown
/// name, with the nearest; those of load_profile().
Profile find_profile(const std::string& cluster);

/// Returns the path of this user's profile: $XDG_CACHE_HOME/colossal/profile.toml, else ~/.cache/colossal/profile.toml.
/// Errors ("cluster"): neither variable is set.
std::string stored_profile_path();
/// Returns the profile at `path` if it was measured on a machine with this processor and number of cores. Otherwise
/// returns nothing and writes the reason to `why`. A file that cannot be read is a reason, too.
std::optional<Profile> stored_profile(const std::string& path, const Machine& machine, std::string& why);

/// Joins profiles of one machine that were measured with different thread counts. The result has the tables of all of
/// them, and the other values of the profile with the most ranks, the last in the list. Errors ("cluster"): the list is
/// empty, or the profiles differ in their grids.
Profile merge_profiles(const std::vector<Profile>& profiles);

}  // namespace colossal::plan
