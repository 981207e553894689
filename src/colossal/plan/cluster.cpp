#include "colossal/plan/cluster.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "colossal/base/error.h"

namespace colossal::plan {
namespace {

constexpr double kFp32OfBf16 = 1.0 / 16;  // A100: 19.5 of 312, H100: 67 of 989, without TF32
constexpr double kFp64OfFp32 = 1.0 / 2;   // A100: 9.7 of 19.5, H100: 34 of 67

/// Returns the share of the whole tensor that each rank sends.
double sent_share(Collective collective, int64_t ranks) {
  const double n = static_cast<double>(ranks), part = (n - 1) / n;
  switch (collective) {
    case Collective::AllReduce:
      return 2 * part;
    case Collective::Send:
    case Collective::Recv:
      return 1;
    case Collective::Barrier:
      return 0;
    default:
      return part;
  }
}

double steps_of_tree(int64_t ranks) { return std::ceil(std::log2(static_cast<double>(ranks))); }

/// Returns the seconds of a pipelined chain: the ends of the chain are N - 1 messages apart. More pieces shorten the
/// wait for the first piece and cost latency; the best number follows from the derivative.
double chain_seconds(double full, int64_t ranks, double latency, double bandwidth) {
  const double hops = static_cast<double>(ranks - 2), whole = full / bandwidth;
  double best = (hops + 1) * (latency + whole);
  if (hops == 0 || latency <= 0) return latency <= 0 ? whole : best;
  const double pieces = std::sqrt(hops * whole / latency);
  for (const double count : {std::floor(pieces), std::ceil(pieces)})
    if (count >= 1) best = std::min(best, (hops + count) * (latency + whole / count));
  return best;
}

/// Returns the seconds of a collective of `full` bytes among ranks that all have links of this kind.
double flat_seconds(Collective collective, double full, int64_t ranks, double latency, double bandwidth) {
  const double others = static_cast<double>(ranks - 1), whole = full / bandwidth;
  const double sent = sent_share(collective, ranks) * whole;
  switch (collective) {
    case Collective::AllReduce:
      return std::min(
          {2 * others * latency + sent, 2 * steps_of_tree(ranks) * latency + 2 * whole, latency + others * whole});
    case Collective::Broadcast:
    case Collective::Reduce:
      return std::min(steps_of_tree(ranks) * (latency + whole), chain_seconds(full, ranks, latency, bandwidth));
    case Collective::Send:
    case Collective::Recv:
      return latency + whole;
    case Collective::Barrier:
      return latency;
    default:
      return others * latency + sent;
  }
}

double first_above_zero(std::initializer_list<double> values) {
  for (const double value : values)
    if (value > 0) return value;
  return 0;
}

struct NamedNumberType {
  NumberType type;
  const char* name;
  const char* torch_name;
  int64_t bytes;
};

constexpr NamedNumberType kNumberTypes[] = {{NumberType::Fp64, "fp64", "float64", 8},
                                            {NumberType::Fp32, "fp32", "float32", 4},
                                            {NumberType::Bf16, "bf16", "bfloat16", 2},
                                            {NumberType::Fp16, "fp16", "float16", 2},
                                            {NumberType::Fp8, "fp8", "float8_e4m3fn", 1}};

}  // namespace

double sent_bytes(Collective collective, double full, int64_t ranks) { return full * sent_share(collective, ranks); }

double full_bytes(Collective collective, double sent, int64_t ranks) {
  const double part = sent_share(collective, ranks);
  return part > 0 ? sent / part : 0;
}

Cluster::Cluster(Profile profile, int64_t ranks_per_node)
    : profile_(std::move(profile)),
      ranks_per_node_(ranks_per_node > 0 ? ranks_per_node : profile_.node.devices),
      threads_(std::max<int64_t>(profile_.machine.cores / ranks_per_node_, 1)) {
  profile_.check();
  require(profile_.device.shared || ranks_per_node_ <= profile_.node.devices, "cluster", profile_.name,
          ": ranks of a node must be at most node.devices: got ", ranks_per_node_, ", devices ", profile_.node.devices);
  const ProductTable& products = profile_.products;
  const size_t points = products.threads.size() * products.m.size() * products.n.size() * products.k.size();
  for (size_t i = 0; i < products.dtypes.size(); ++i) {
    const auto begin = products.rates.begin() + static_cast<int64_t>(i * points);
    products_.emplace_back(std::vector<std::vector<double>>{products.threads, products.m, products.n, products.k},
                           std::vector<double>(begin, begin + static_cast<int64_t>(points)));
  }
  const ElementwiseTable& elementwise = profile_.elementwise;
  if (!elementwise.rates.empty())
    elementwise_.emplace(std::vector<std::vector<double>>{elementwise.threads, elementwise.bytes}, elementwise.rates);
  const AttentionTable& attention = profile_.attention;
  for (size_t i = 0; i < attention.dtypes.size(); ++i) {
    const auto begin = attention.rates.begin() + static_cast<int64_t>(i * attention.threads.size());
    attention_.emplace_back(std::vector<std::vector<double>>{attention.threads},
                            std::vector<double>(begin, begin + static_cast<int64_t>(attention.threads.size())));
  }
  const CollectiveTable& table = profile_.collectives;
  for (size_t i = 0; i < table.names.size(); ++i) {
    const auto row = [&](const std::vector<double>& values) {
      const auto begin = values.begin() + static_cast<int64_t>(i * table.ranks.size());
      return LogGrid({table.ranks}, {begin, begin + static_cast<int64_t>(table.ranks.size())});
    };
    collectives_.push_back({table.names[i], row(table.latency), row(table.bandwidth)});
  }
}

void Cluster::fail_without(const char* what, const char* line) const {
  throw Error("cluster", concat(profile_.name, ": the profile has no ", what, "; add for instance ", line));
}

double Cluster::share() const { return profile_.device.shared ? 1.0 / static_cast<double>(ranks_per_node_) : 1.0; }

int64_t Cluster::device_bytes() const {
  const int64_t free = profile_.device.memory - profile_.device.reserve;
  return profile_.device.shared ? free / ranks_per_node_ : free;
}

double Cluster::peak(NumberType type) const {
  const DeviceProfile& d = profile_.device;
  const double half = first_above_zero({d.bf16, d.fp16});
  const double single = first_above_zero({d.fp32, half * kFp32OfBf16, d.fp64});
  switch (type) {
    case NumberType::Fp64:
      return share() * first_above_zero({d.fp64, single * kFp64OfFp32});
    case NumberType::Fp32:
      return share() * single;
    case NumberType::Bf16:
      return share() * first_above_zero({d.bf16, d.fp16, single});
    case NumberType::Fp16:
      return share() * first_above_zero({d.fp16, d.bf16, single});
    case NumberType::Fp8:
      return share() * first_above_zero({d.fp8, half, single});
  }
  return share() * single;
}

RankSpan Cluster::span_of(const std::vector<int>& ranks) const {
  std::set<int64_t> nodes;
  for (const int rank : ranks) nodes.insert(rank / ranks_per_node_);
  return {static_cast<int64_t>(ranks.size()), static_cast<int64_t>(nodes.size())};
}

double Cluster::collective_seconds(Collective collective, double sent, const RankSpan& span, double sharers) const {
  if (span.ranks <= 1) return 0;
  const double full = full_bytes(collective, sent, span.ranks);
  return span.nodes <= 1 ? node_seconds(collective, full, span.ranks, sharers)
                         : nested_seconds(collective, full, span, sharers);
}

double Cluster::node_seconds(Collective collective, double full, int64_t ranks, double sharers) const {
  if (ranks <= 1) return 0;
  for (const Measured& measured : collectives_) {
    if (measured.name != to_string(collective)) continue;
    const double n = static_cast<double>(ranks), sent = sent_bytes(collective, full, ranks);
    return measured.latency.at({n}) + sent * sharers / measured.bandwidth.at({n});
  }
  const NodeProfile& node = profile_.node;
  if (node.bandwidth <= 0)
    fail_without("links inside a node", "node = { devices = 8, bandwidth = 4.0e11, latency = 4e-6 }");
  return flat_seconds(collective, full, ranks, node.latency, node.bandwidth / sharers);
}

double Cluster::network_seconds(Collective collective, double full, int64_t ranks, double sharers) const {
  const NetworkProfile& network = profile_.network;
  if (network.bandwidth <= 0)
    fail_without("links between nodes", "network = { bandwidth = 4.8e10, latency = 1.5e-5, oversubscription = 1 }");
  const double bandwidth = network.bandwidth / network.oversubscription / sharers;
  return flat_seconds(collective, full, ranks, network.latency, bandwidth);
}

double Cluster::nested_seconds(Collective collective, double full, const RankSpan& span, double sharers) const {
  // Uneven groups: the node with most ranks decides inside, the one with fewest has the most bytes of each link.
  const int64_t most = (span.ranks + span.nodes - 1) / span.nodes;
  const double piece = full / static_cast<double>(std::max<int64_t>(span.ranks / span.nodes, 1));
  const auto node = [&](Collective part) { return node_seconds(part, full, most, sharers); };
  switch (collective) {
    case Collective::AllReduce:
      return node(Collective::ReduceScatter) + network_seconds(collective, piece, span.nodes, sharers) +
             node(Collective::AllGather);
    case Collective::AllGather:
    case Collective::ReduceScatter:
      return node(collective) + network_seconds(collective, piece, span.nodes, sharers);
    case Collective::AllToAll: {  // pairs one after another: each pair exchanges a part of full / ranks
      const double part = full / static_cast<double>(span.ranks);
      const double inside = most > 1 ? node_seconds(Collective::Send, part, 2, sharers) : 0;
      return static_cast<double>(most - 1) * inside +
             static_cast<double>(span.ranks - most) * network_seconds(Collective::Send, part, 2, sharers);
    }
    case Collective::Send:
    case Collective::Recv:
      return network_seconds(collective, full, 2, sharers);
    default:
      return network_seconds(collective, full, span.nodes, sharers) + node(collective);
  }
}

double Cluster::product_seconds(double m, double n, double k, NumberType type) const {
  const double operations = 2 * m * n * k;
  if (operations <= 0) return 0;
  const auto& names = profile_.products.dtypes;
  const auto found = std::find(names.begin(), names.end(), to_string(type));
  if (found != names.end())
    return profile_.device.overhead +
           operations / products_[found - names.begin()].at({static_cast<double>(threads_), m, n, k});
  const double bytes = (m * k + k * n + m * n) * static_cast<double>(bytes_of(type));
  return profile_.device.start + profile_.device.overhead +
         std::max(operations / (profile_.device.efficiency * peak(type)),
                  bytes / (share() * profile_.device.bandwidth));
}

double Cluster::operations_seconds(double operations, NumberType type) const {
  if (operations <= 0) return 0;
  const double rate = profile_.device.efficiency * peak(type);
  return profile_.device.start + profile_.device.overhead + operations / rate;
}

double Cluster::attention_seconds(double operations, NumberType type) const {
  if (operations <= 0) return 0;
  const DeviceProfile& device = profile_.device;
  const auto& names = profile_.attention.dtypes;
  const auto found = std::find(names.begin(), names.end(), to_string(type));
  if (found != names.end())
    return device.overhead + operations / attention_[found - names.begin()].at({static_cast<double>(threads_)});
  return device.start + device.overhead +
         operations / (first_above_zero({device.attention, device.efficiency}) * peak(type));
}

double Cluster::elementwise_seconds(double bytes) const {
  if (elementwise_ && bytes > 0) {
    const double rate = elementwise_->at({static_cast<double>(threads_), bytes});
    // a measured rate has the start in it
    return profile_.device.overhead + std::max(bytes / rate, profile_.device.start);
  }
  return profile_.device.start + profile_.device.overhead + bytes / (share() * profile_.device.bandwidth);
}

double Cluster::host_copy_seconds(double bytes) const {
  if (profile_.host.bandwidth <= 0) fail_without("copies to the host", "host = { bandwidth = 2.5e10, latency = 1e-5 }");
  return profile_.host.latency + bytes / profile_.host.bandwidth;
}

double Cluster::disk_read_seconds(double bytes) const {
  if (profile_.disk.read <= 0) fail_without("disk", "disk = { read = 6e9, write = 3e9, latency = 1e-4 }");
  return profile_.disk.latency + bytes / profile_.disk.read;
}

double Cluster::disk_write_seconds(double bytes) const {
  if (profile_.disk.write <= 0) fail_without("disk", "disk = { read = 6e9, write = 3e9, latency = 1e-4 }");
  return profile_.disk.latency + bytes / profile_.disk.write;
}

const char* to_string(NumberType type) { return kNumberTypes[static_cast<int>(type)].name; }

int64_t bytes_of(NumberType type) { return kNumberTypes[static_cast<int>(type)].bytes; }

std::optional<NumberType> number_type_named(std::string_view name) {
  for (const auto& known : kNumberTypes)
    if (name == known.name || name == known.torch_name) return known.type;
  return std::nullopt;
}

NumberType number_type_of(uint8_t scalar_type) {
  switch (scalar_type) {  // the codes are part of PyTorch's file format, so they do not change
    case 5:
      return NumberType::Fp16;
    case 7:
      return NumberType::Fp64;
    case 15:
      return NumberType::Bf16;
    case 23:
    case 24:
      return NumberType::Fp8;
    default:
      return NumberType::Fp32;
  }
}

}  // namespace colossal::plan
