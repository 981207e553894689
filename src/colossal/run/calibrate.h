// Measures what this machine can do, as a profile for predictions (plan/profile.h).
//
//   const plan::Profile profile = run::calibrate(*world, at::kCPU, {.seconds = 30, .disk_folder = "/scratch"});
//   const run::ClusterChoice choice = run::choose_cluster("this");      // the stored profile, or rough measurements
//   plan::Cluster(choice.profile).elementwise_seconds(1 << 20);
#pragma once
#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <vector>

#include "colossal/plan/profile.h"

namespace colossal::comm {
class World;
}

namespace colossal::run {

struct CalibrationOptions {
  std::vector<std::string> dtypes{"fp32", "bf16"};  ///< types of products, in the names of profiles
  std::vector<double> m{1, 16, 128, 512, 2048};     ///< grid of products [m, k] [k, n]; each list ascends
  std::vector<double> n{256, 1024, 4096}, k{256, 1024, 4096};
  /// bytes that elementwise operators read and write; the last one must not fit into caches
  std::vector<double> elementwise_bytes{12 << 10, 192 << 10, 3 << 20, 48 << 20, 192 << 20};
  /// tokens of the row on which attention is measured; on accelerators of the shortest row
  int64_t attention_tokens = 512;
  int64_t message_bytes = 16 << 20;  ///< bytes of the large message of each collective
  int64_t disk_bytes = 64 << 20;     ///< bytes of the file on the disk
  double seconds = 30;               ///< time to aim at; points that no time is left for take the rate before them
  std::string disk_folder;           ///< folder on the disk to measure; empty = no disk
};

/// Measures with all ranks of `world` at work, so that they compete for caches, memory and links as in a run: products,
/// elementwise operators, attention of one causal shape, collectives inside a node, messages between nodes, copies to
/// the host, the disk (rank 0 alone), the overhead of operators in training, and the resident memory of this process
/// after it has trained a model of a few numbers. Ranks of a node must be consecutive. A rank has
/// at::get_num_threads() threads, which become the only thread count of the tables. On the CPU the profile is of the
/// machine and `device.shared`.
///
/// Collective among all ranks; returns the same profile on each of them, with means over the ranks. A disk that cannot
/// be used is left out of the profile. Memory: operands of the largest product, and three times message_bytes.
/// Errors ("cluster"): ranks of a node are not consecutive; a dtype has an unknown name.
plan::Profile calibrate(comm::World& world, at::Device device, const CalibrationOptions& options);

/// Measures the CPU of this machine in about two seconds, with the measurements of `colossal info`: peaks of products
/// in fp32 and bf16, memory bandwidth, and the start of an operator; and with its overhead and the share of the peak of
/// fp32 that attention reaches. Links between ranks are estimated: a message costs
/// the start of an operator, and its bytes are read and written twice.
plan::Profile measure_roughly();

struct ClusterChoice {
  plan::Profile profile;
  std::string note;  ///< message for the user if times are rough, with the reason and the remedy; empty = none
};

/// Returns the profile that `--cluster` names. `this` is the stored profile if it is of this processor and number of
/// cores, else measure_roughly(), with a note. With `on_gpus` the run uses GPUs of this machine, which
/// measure_roughly() does not measure.
/// Errors ("cluster"): those of plan::find_profile(); `on_gpus` without a stored profile.
ClusterChoice choose_cluster(const std::string& cluster, bool on_gpus = false);

/// Writes the profile to `path` and creates its folder. Errors ("file"): the folder or file cannot be written.
void store_profile(const plan::Profile& profile, const std::string& path);

}  // namespace colossal::run
