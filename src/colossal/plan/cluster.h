// A cluster of nodes of one kind: turns the work of a rank into seconds.
//
//   const plan::Cluster cluster(plan::find_profile("h100-8x"));
//   const plan::RankSpan data = cluster.span_of({0, 8, 16, 24});                 // four ranks on four nodes
//   cluster.collective_seconds(colossal::Collective::AllReduce, sent_bytes, data); // bytes as in StepEvent
//   cluster.product_seconds(8192, 4096, 4096, plan::NumberType::Bf16);
//
// Ranks fill nodes in order: rank r is on node r / ranks_per_node(). Times are of one operation alone. Streams that
// overlap and links that several operations share at once are the business of the simulation.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "colossal/base/collective.h"
#include "colossal/plan/log_grid.h"
#include "colossal/plan/profile.h"

namespace colossal::plan {

using colossal::to_string;

/// A type of numbers that products and messages are priced by.
enum class NumberType : uint8_t { Fp64, Fp32, Bf16, Fp16, Fp8 };

/// Returns the name in profiles: "fp64", "fp32", "bf16", "fp16", "fp8".
const char* to_string(NumberType type);
/// Returns the bytes of one element.
int64_t bytes_of(NumberType type);
/// Returns the type that a name means, in the spelling of profiles or of PyTorch ("float32"). Nothing for other names.
std::optional<NumberType> number_type_named(std::string_view name);
/// Returns the type of a c10::ScalarType, as StepEvent::dtype holds it. Integers and other types count as fp32.
NumberType number_type_of(uint8_t scalar_type);

/// Where the ranks of a group are.
struct RankSpan {
  int64_t ranks = 1;
  int64_t nodes = 1;  ///< nodes that have ranks of the group
  bool operator==(const RankSpan&) const = default;
};

/// Seconds of the work of one rank on the hardware of a profile.
///
/// Formulas: N ranks, n bytes of the whole tensor, a seconds of a message, B bytes/s.
///   all_reduce                   the least of ring 2(N-1)a + 2(N-1)/N n/B, tree 2 log2(N) a + 2n/B,
///                                direct a + (N-1)n/B
///   all_gather, reduce_scatter   (N-1)a + (N-1)/N n/B
///   all_to_all                   (N-1)a + (N-1)/N n/B
///   broadcast, reduce            the less of tree log2(N) (a + n/B), chain of c pieces (N-2+c)(a + n/(cB)) with the
///                                best c
///   send, recv                   a + n/B
///   barrier                      a
/// log2(N) is rounded up. Between nodes, each device has its own link of the network. A collective of g ranks in each
/// of M nodes therefore does its part inside the nodes first: all_reduce is reduce_scatter among g, all_reduce of n/g
/// among M, all_gather among g. The bandwidth between nodes is divided by network.oversubscription. If the profile has
/// measured a collective inside a node, its latency and bandwidth replace the formula there. all_to_all exchanges the
/// N-g parts that leave the node over the network.
///
/// Products and elementwise operators: the measured rates of the profile, interpolated; without them a roofline, the
/// longer of operations / (efficiency * peak) and bytes / bandwidth, plus the start of an operator. Attention: the
/// measured rate, else operations / (attention * peak) plus the start. Every operator takes device.overhead more.
///
/// Errors ("cluster"): a question about links, copies or disks that the profile does not have; the message names the
/// key to add. Thread safety: const members may be called from several threads.
class Cluster {
 public:
  /// `ranks_per_node` is the number of ranks of each full node; 0 = profile.node.devices. With device.shared the ranks
  /// of a node share its memory, bandwidth, rates and cores.
  /// Errors ("cluster"): more ranks than the node has devices; those of Profile::check().
  explicit Cluster(Profile profile, int64_t ranks_per_node = 0);

  const Profile& profile() const { return profile_; }
  int64_t ranks_per_node() const { return ranks_per_node_; }
  /// Returns the threads of a rank: its share of the measured cores, at least 1; 1 for profiles without cores.
  int64_t threads() const { return threads_; }
  /// Returns the bytes that a rank's tensors may take: memory less reserve, for shared devices the rank's share of it.
  int64_t device_bytes() const;
  /// Returns the peak of products in operations/s of one rank. Types that the profile does not name are derived from
  /// those that it names (DeviceProfile::fields()).
  double peak(NumberType type) const;

  /// Returns where the ranks are, by their numbers in the run. Cost: O(ranks log ranks).
  RankSpan span_of(const std::vector<int>& ranks) const;
  /// Returns the seconds of one call. `sent` is the number of bytes that a rank sends, as comm::Traffic and
  /// StepEvent::bytes count them. For recv it is the number of bytes received. `sharers` operations use the links of
  /// the rank at the same time and get equal parts of the bandwidth. A group of one rank costs nothing.
  double collective_seconds(Collective collective, double sent, const RankSpan& span, double sharers = 1) const;

  /// Returns the seconds of a product [m, k] [k, n], with factors of this type. A product without elements costs
  /// nothing.
  double product_seconds(double m, double n, double k, NumberType type) const;
  /// Returns the seconds of products whose shapes are not known, by their operations.
  double operations_seconds(double operations, NumberType type) const;
  /// Returns the seconds of attention, by the operations that StepEvent counts: without those that backward repeats.
  double attention_seconds(double operations, NumberType type) const;
  /// Returns the seconds of an elementwise operator, a norm or a copy on the device, that reads and writes `bytes`.
  double elementwise_seconds(double bytes) const;

  /// Returns the seconds of a copy between the memory of the device and that of the host.
  double host_copy_seconds(double bytes) const;
  double disk_read_seconds(double bytes) const;
  double disk_write_seconds(double bytes) const;

 private:
  double share() const;
  double node_seconds(Collective collective, double full, int64_t ranks, double sharers) const;
  double network_seconds(Collective collective, double full, int64_t ranks, double sharers) const;
  double nested_seconds(Collective collective, double full, const RankSpan& span, double sharers) const;
  [[noreturn]] void fail_without(const char* what, const char* line) const;

  Profile profile_;
  int64_t ranks_per_node_;
  int64_t threads_;
  std::vector<LogGrid> products_;   // one for each type of profile_.products
  std::vector<LogGrid> attention_;  // one for each type of profile_.attention
  std::optional<LogGrid> elementwise_;
  struct Measured {
    std::string name;
    LogGrid latency, bandwidth;
  };
  std::vector<Measured> collectives_;
};

/// Returns the bytes of the whole tensor of a collective of which each of `ranks` ranks sends `sent` bytes.
double full_bytes(Collective collective, double sent, int64_t ranks);
/// Returns the bytes that each of `ranks` ranks sends, of a collective on a tensor of `full` bytes: 2(N-1)/N of it for
/// all_reduce, all of it for send and recv, nothing for barrier, else (N-1)/N.
double sent_bytes(Collective collective, double full, int64_t ranks);

}  // namespace colossal::plan
