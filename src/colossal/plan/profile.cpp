#include "colossal/plan/profile.h"

#include <algorithm>

#include "colossal/base/collective.h"
#include "colossal/base/config.h"
#include "colossal/base/error.h"
#include "colossal/base/join.h"
#include "colossal/base/suggest.h"
#include "colossal/plan/log_grid.h"

namespace colossal::plan {
namespace {

constexpr double kLeastRate = 1;  // of anything per second: zero would make times infinite

/// Returns an error of the config reader as one of a profile. Its last words point to `colossal help config`, which
/// does not list the keys of profiles.
Error of_profile(const Error& error) {
  const std::string help = "; `colossal help config` lists them all";
  std::string message = error.message();
  if (const size_t at = message.find(help); at != std::string::npos)
    message.replace(at, help.size(), "; docs/explanation/clusters.md lists the keys of a profile");
  return Error("cluster", message);
}

void check_profile_format(const ConfigDocument& document, const std::string& name) {
  const auto found = document.values().find("format");
  if (found == document.values().end()) return;
  const auto* format = std::get_if<int64_t>(&found->second.value);
  require(format == nullptr || *format <= kProfileFormat, "cluster", found->second.where, ": `format` must be at most ",
          kProfileFormat, ", the newest that this version reads: got ", format == nullptr ? 0 : *format,
          "; update colossal, or measure ", name, " again with `colossal plan --calibrate`");
}

/// Runs the checks of a table. Its errors get the profile and the section.
template <class Check>
void check_profile_table(const Profile& profile, const char* section, const Check& check) {
  try {
    check();
  } catch (const Error& error) {
    throw Error("cluster", concat(profile.name, ": [", section, "] ", error.message()));
  }
}

/// Refuses a name of a table that is not among `known`.
void check_known(const std::string& name, const std::vector<std::string>& known) {
  if (std::find(known.begin(), known.end(), name) != known.end()) return;
  throw Error("cluster", concat("names must be among ", join(known), ": got `", name, "`", did_you_mean(name, known)));
}

/// Returns the coordinates of an axis of names: 1, 2, ... Refuses a name that is not among `known`.
std::vector<double> name_axis(const std::vector<std::string>& names, const std::vector<std::string>& known) {
  std::vector<double> axis;
  for (const std::string& name : names) {
    check_known(name, known);
    axis.push_back(static_cast<double>(axis.size() + 1));
  }
  return axis;
}

std::vector<std::string> collective_names() {
  std::vector<std::string> names;
  for (int code = 0; code <= static_cast<int>(colossal::Collective::Barrier); ++code)
    names.emplace_back(to_string(static_cast<colossal::Collective>(code)));
  return names;
}

void check_profile_tables(const Profile& profile) {
  const std::vector<std::string> types{"fp64", "fp32", "bf16", "fp16", "fp8"};
  if (const auto& t = profile.products; !t.dtypes.empty() || !t.rates.empty())
    check_profile_table(profile, "products",
                        [&] { LogGrid({name_axis(t.dtypes, types), t.threads, t.m, t.n, t.k}, t.rates); });
  if (const auto& t = profile.elementwise; !t.bytes.empty() || !t.rates.empty())
    check_profile_table(profile, "elementwise", [&] { LogGrid({t.threads, t.bytes}, t.rates); });
  if (const auto& t = profile.attention; !t.dtypes.empty() || !t.rates.empty())
    check_profile_table(profile, "attention", [&] { LogGrid({name_axis(t.dtypes, types), t.threads}, t.rates); });
  if (const auto& t = profile.collectives; !t.names.empty() || !t.bandwidth.empty())
    check_profile_table(profile, "collectives", [&] {
      const std::vector<double> names = name_axis(t.names, collective_names());
      LogGrid({names, t.ranks}, t.latency);
      LogGrid({names, t.ranks}, t.bandwidth);
    });
}

}  // namespace

void DeviceProfile::fields(Fields& f) {
  f.bytes("memory", memory, "memory of one device", 1);
  f.bytes("reserve", reserve, "part of the memory that tensors cannot have");
  f.number("bandwidth", bandwidth, "bytes/s", "reads and writes of the device's memory", kLeastRate);
  f.number("bf16", bf16, "operations/s", "peak of products in bf16; 0 = that of fp16, else of fp32", 0);
  f.number("fp16", fp16, "operations/s", "peak of products in fp16; 0 = that of bf16", 0);
  f.number("fp8", fp8, "operations/s", "peak of products in fp8; 0 = that of bf16", 0);
  f.number("fp32", fp32, "operations/s", "peak of products in fp32; 0 = a sixteenth of bf16", 0);
  f.number("fp64", fp64, "operations/s", "peak of products in fp64; 0 = half of fp32", 0);
  f.number("efficiency", efficiency, "", "share of the peak that large products reach", 1e-3, 1);
  f.number("attention", attention, "", "share of the peak that attention reaches; 0 = that of products", 0, 1);
  f.number("start", start, "seconds", "cost of starting one operator", 0);
  f.number("overhead", overhead, "seconds", "time of an operator besides its kernel, such as autograd (CPUs)", 0);
  f.flag("shared", shared, "all numbers are of the machine, and its ranks share them (CPUs)");
}

void NodeProfile::fields(Fields& f) {
  f.integer("devices", devices, "devices", "devices of one node; with device.shared the most ranks", 1, 65536);
  f.number("bandwidth", bandwidth, "bytes/s", "link of a device to the others of its node, one direction", kLeastRate);
  f.number("latency", latency, "seconds", "time of one message without bytes", 0);
}

void NetworkProfile::fields(Fields& f) {
  f.number("bandwidth", bandwidth, "bytes/s", "link of one device to other nodes, one direction", kLeastRate);
  f.number("latency", latency, "seconds", "time of one message without bytes", 0);
  f.number("oversubscription", oversubscription, "", "factor by which the links above the leaf switches are too few",
           1);
}

void HostProfile::fields(Fields& f) {
  f.number("bandwidth", bandwidth, "bytes/s", "copies between device and host, one direction", kLeastRate);
  f.number("latency", latency, "seconds", "time to start a copy", 0);
}

void DiskProfile::fields(Fields& f) {
  f.number("read", read, "bytes/s", "reads of large blocks", kLeastRate);
  f.number("write", write, "bytes/s", "writes of large blocks", kLeastRate);
  f.number("latency", latency, "seconds", "time of one small request", 0);
}

void MachineProfile::fields(Fields& f) {
  f.text("processor", processor, "model name of the measured processor");
  f.integer("cores", cores, "cores", "cores that the calibration could use; 0 = not measured");
  f.bytes("resident", resident, "memory of a rank that trains, without its tensors: program, libraries");
}

void ProductTable::fields(Fields& f) {
  f.texts("dtypes", dtypes, "types of the factors: bf16, fp16, fp32, fp64");
  f.numbers("threads", threads, "threads", "thread counts of a rank, ascending", 1);
  f.numbers("m", m, "rows", "rows of the result, ascending", 1);
  f.numbers("n", n, "columns", "columns of the result, ascending", 1);
  f.numbers("k", k, "elements", "length of the sums, ascending", 1);
  f.numbers("rates", rates, "operations/s", "measured rates by dtype, threads, m, n, k; k fastest", kLeastRate);
}

void ElementwiseTable::fields(Fields& f) {
  f.numbers("threads", threads, "threads", "thread counts of a rank, ascending", 1);
  f.numbers("bytes", bytes, "bytes", "bytes that an operator reads and writes, ascending", 1);
  f.numbers("rates", rates, "bytes/s", "measured rates by threads, bytes; bytes fastest", kLeastRate);
}

void AttentionTable::fields(Fields& f) {
  f.texts("dtypes", dtypes, "types of queries, keys and values: bf16, fp16, fp32, fp64");
  f.numbers("threads", threads, "threads", "thread counts of a rank, ascending", 1);
  f.numbers("rates", rates, "operations/s", "measured rates by dtype, threads; threads fastest", kLeastRate);
}

void CollectiveTable::fields(Fields& f) {
  f.texts("names", names, "collectives: all_reduce, all_gather, ...");
  f.numbers("ranks", ranks, "ranks", "sizes of the groups, ascending", 2);
  f.numbers("latency", latency, "seconds", "time without bytes, by name and ranks; ranks fastest", 1e-12);
  f.numbers("bandwidth", bandwidth, "bytes/s", "bytes that a rank sends, by name and ranks; ranks fastest", kLeastRate);
}

void Profile::fields(Fields& f) {
  f.integer("format", format, "", "format of this file", 1, kProfileFormat);
  f.section("device", device, "one device");
  f.section("node", node, "links inside a node");
  f.section("network", network, "links between nodes");
  f.section("host", host, "copies between device and host");
  f.section("disk", disk, "disk of a node");
  f.section("failures", failures, "failures of devices");
  f.section("machine", machine, "machine that was measured");
  f.section("products", products, "measured matrix products");
  f.section("elementwise", elementwise, "measured elementwise operators");
  f.section("attention", attention, "measured attention");
  f.section("collectives", collectives, "measured collectives inside a node");
}

void Profile::check() const {
  require(device.memory > 0, "cluster", name,
          ": `device.memory` is missing; write the memory of a device, such as \"80GiB\"");
  require(device.reserve < device.memory, "cluster", name, ": `device.reserve` must be less than device.memory: got ",
          device.reserve, " of ", device.memory, " bytes");
  require(device.bandwidth > 0, "cluster", name,
          ": `device.bandwidth` is missing; write the bytes per second of the device's memory, such as 3.35e12");
  require(device.bf16 + device.fp16 + device.fp32 + device.fp64 > 0, "cluster", name,
          ": no rate of products is given; write operations per second, such as bf16 = 989e12 in [device]");
  require(node.devices == 1 || node.bandwidth > 0, "cluster", name, ": `node.bandwidth` is missing; a node has ",
          node.devices, " devices, so write the bytes per second between them");
  check_profile_tables(*this);
}

Profile parse_profile(const std::string& toml, const std::string& name) {
  Profile profile;
  try {
    const auto document = ConfigDocument::parse(toml, name);
    check_profile_format(document, name);
    document.read(profile);
  } catch (const Error& error) {
    if (error.component() != "config") throw;
    throw of_profile(error);
  }
  profile.name = name;
  profile.check();
  return profile;
}

std::string profile_to_toml(const Profile& profile) {
  Profile copy = profile;
  return fields_to_toml([&copy](Fields& f) {
    f.integer("format", copy.format, "", "", 1, kProfileFormat);
    f.section("device", copy.device, "");
    if (copy.node.bandwidth > 0) f.section("node", copy.node, "");
    if (copy.network.bandwidth > 0) f.section("network", copy.network, "");
    if (copy.host.bandwidth > 0) f.section("host", copy.host, "");
    if (copy.disk.read > 0 && copy.disk.write > 0) f.section("disk", copy.disk, "");
    f.section("failures", copy.failures, "");
    if (copy.machine.cores > 0) f.section("machine", copy.machine, "");
    if (!copy.products.rates.empty()) f.section("products", copy.products, "");
    if (!copy.elementwise.rates.empty()) f.section("elementwise", copy.elementwise, "");
    if (!copy.attention.rates.empty()) f.section("attention", copy.attention, "");
    if (!copy.collectives.bandwidth.empty()) f.section("collectives", copy.collectives, "");
  });
}

namespace {

/// Returns the attention of all parts, which ascend by threads. Empty if a part has none.
AttentionTable merged_attention(const std::vector<const Profile*>& parts) {
  AttentionTable merged{.dtypes = parts.front()->attention.dtypes};
  for (const Profile* part : parts) {
    if (part->attention.rates.empty()) return {};
    require(part->attention.dtypes == merged.dtypes, "cluster",
            "merged profiles must have the same types of attention: ", part->name, " differs");
    merged.threads.push_back(part->attention.threads.at(0));
  }
  for (size_t dtype = 0; dtype < merged.dtypes.size(); ++dtype)
    for (const Profile* part : parts) merged.rates.push_back(part->attention.rates.at(dtype));
  return merged;
}

}  // namespace

Profile merge_profiles(const std::vector<Profile>& profiles) {
  require(!profiles.empty(), "cluster", "merging needs at least 1 profile: got 0");
  Profile merged = profiles.back();
  std::vector<const Profile*> parts;
  for (const auto& profile : profiles) parts.push_back(&profile);
  std::sort(parts.begin(), parts.end(),
            [](const Profile* a, const Profile* b) { return a->products.threads.at(0) < b->products.threads.at(0); });
  ProductTable& products = merged.products;
  ElementwiseTable& elementwise = merged.elementwise;
  products.threads = elementwise.threads = {};
  products.rates = elementwise.rates = {};
  for (const Profile* part : parts) {
    const auto& p = part->products;
    require(p.dtypes == products.dtypes && p.m == products.m && p.n == products.n && p.k == products.k &&
                part->elementwise.bytes == elementwise.bytes,
            "cluster", "merged profiles must have the same grids: ", part->name, " differs");
    products.threads.push_back(p.threads[0]);
    elementwise.threads.push_back(part->elementwise.threads.at(0));
    elementwise.rates.insert(elementwise.rates.end(), part->elementwise.rates.begin(), part->elementwise.rates.end());
  }
  const size_t points = products.m.size() * products.n.size() * products.k.size();
  for (size_t dtype = 0; dtype < products.dtypes.size(); ++dtype)
    for (const Profile* part : parts) {
      const auto begin = part->products.rates.begin() + static_cast<int64_t>(dtype * points);
      products.rates.insert(products.rates.end(), begin, begin + static_cast<int64_t>(points));
    }
  merged.attention = merged_attention(parts);
  CollectiveTable& collectives = merged.collectives;
  const std::vector<std::string> names = collectives.names;
  std::vector<const Profile*> several;  // by number of ranks, which falls as the threads of a rank grow
  for (auto part = parts.rbegin(); part != parts.rend(); ++part)
    if (!(*part)->collectives.ranks.empty()) several.push_back(*part);
  collectives.ranks = collectives.latency = collectives.bandwidth = {};
  for (const Profile* part : several) collectives.ranks.push_back(part->collectives.ranks.at(0));
  for (size_t i = 0; i < names.size(); ++i)
    for (const Profile* part : several) {
      collectives.latency.push_back(part->collectives.latency.at(i));
      collectives.bandwidth.push_back(part->collectives.bandwidth.at(i));
    }
  for (const Profile* part : parts) {
    merged.device.bandwidth = std::max(merged.device.bandwidth, part->device.bandwidth);
    merged.device.fp32 = std::max(merged.device.fp32, part->device.fp32);
    merged.device.bf16 = std::max(merged.device.bf16, part->device.bf16);
    merged.device.overhead = std::max(merged.device.overhead, part->device.overhead);
    merged.machine.resident = std::max(merged.machine.resident, part->machine.resident);
  }
  merged.check();
  return merged;
}

}  // namespace colossal::plan
