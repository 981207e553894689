#include "colossal/run/calibrate.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "colossal/base/clock.h"
#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/base/machine.h"
#include "colossal/comm/agreement.h"
#include "colossal/comm/world.h"
#include "colossal/memory/device_meter.h"
#include "colossal/memory/tiers/aligned_tensor.h"
#include "colossal/memory/tiers/disk_space.h"
#include "colossal/ops/products/matmul.h"
#include "colossal/plan/cluster.h"
#include "colossal/run/operator_times.h"

namespace colossal::run {
namespace {

constexpr double kProductPart = 0.55, kElementwisePart = 0.1, kMessagePart = 0.2;  // of the time
constexpr double kAttentionPart = 0.06, kBlockPart = 0.04;
constexpr int kAttentionRows = 6;       // their lengths are 512 to 16384 tokens by default
constexpr double kReservedPart = 0.05;  // of the memory: the system, or a device's context and fragments
constexpr int64_t kMaxRepeats = 1000;
constexpr double kElementBytes = 12;  // a = b + c in fp32: two reads and a write

at::ScalarType scalar_type_of(const std::string& name) {
  const auto type = plan::number_type_named(name);
  require(type && *type != plan::NumberType::Fp8, "cluster",
          "dtypes of products must be among fp64, fp32, bf16 and "
          "fp16: got `",
          name, "`");
  switch (*type) {
    case plan::NumberType::Fp64:
      return at::kDouble;
    case plan::NumberType::Bf16:
      return at::kBFloat16;
    case plan::NumberType::Fp16:
      return at::kHalf;
    default:
      return at::kFloat;
  }
}

/// One rank's part in a calibration. All ranks make the same calls.
class Calibration {
 public:
  Calibration(comm::World& world, at::Device device, const CalibrationOptions& options)
      : world_(world), device_(device), options_(options), threads_(at::get_num_threads()) {
    const int size = world.local_size(), first = world.rank() / size * size;
    const bool consecutive = world.local_rank() == world.rank() % size;
    std::vector<int> all(world.size());
    std::iota(all.begin(), all.end(), 0);
    all_ = world.make_group("calibration", all);
    require(comm::sum(*all_, consecutive ? 0 : 1) == 0, "cluster",
            "ranks of a node must be consecutive to measure links; start them node by node");
    std::vector<int> node(size);
    std::iota(node.begin(), node.end(), first);
    node_ = world.make_group("calibration node", node);
    std::vector<int> across;
    for (int rank = world.rank() % size; rank < world.size(); rank += size) across.push_back(rank);
    across_ = world.make_group("calibration network", across);
  }

  plan::Profile measure() {
    for (const std::string& dtype : options_.dtypes) scalar_type_of(dtype);  // refuses unknown names early
    profile_.name = "calibration";
    const Machine machine = describe_machine();
    profile_.device.shared = device_.is_cpu();
    profile_.device.efficiency = 1;  // the rates are measured
    measure_starts();
    // Before large tensors. The training steps of measure_starts() have touched the code of autograd and of operators,
    // which is memory of every rank that trains.
    profile_.machine = {machine.cpu, threads_ * world_.local_size(), static_cast<int64_t>(mean(resident_bytes()))};
    measure_memory(machine);
    measure_elementwise();
    measure_products();
    measure_attention();
    measure_links();
    measure_disk();
    profile_.check();
    return profile_;
  }

 private:
  double mean(double value) { return comm::sum(*all_, value) / world_.size(); }
  double ranks_of_device() const { return device_.is_cpu() ? world_.local_size() : 1; }
  at::TensorOptions floats() const { return at::TensorOptions(device_).dtype(at::kFloat); }
  void synchronize() const {
    if (device_.is_cpu()) return;
    const c10::impl::VirtualGuardImpl guard(device_.type());
    guard.synchronizeDevice(guard.getDevice().index());
  }

  /// Returns the mean seconds of one call, while the other ranks make theirs. A call that is longer than `window` is
  /// made twice, because the first one also prepares memory and kernels.
  double seconds_of(double window, const std::function<void()>& work) {
    all_->barrier().wait();
    const auto timed = [&](int64_t count) {
      const Stopwatch watch;
      for (int64_t i = 0; i < count; ++i) work();
      synchronize();
      return watch.seconds();
    };
    const double first = timed(1);
    if (first > window) return std::min(first, timed(1));
    const auto batch = static_cast<int64_t>(std::clamp(window / 4 / std::max(first, 1e-9), 1.0, 1.0 * kMaxRepeats));
    int64_t count = 0;
    const Stopwatch all;
    do {
      timed(batch);
      count += batch;
    } while (all.seconds() < window);
    return all.seconds() / static_cast<double>(count);
  }

  /// Returns whether rank 0 has spent `seconds` since the start, so that all ranks leave out the same points.
  bool is_spent(double seconds) { return comm::sum(*all_, world_.rank() == 0 && watch_.seconds() > seconds) > 0; }

  void measure_memory(const Machine& machine) {
    int64_t bytes = machine.memory_total;
    if (machine.memory_limit > 0) bytes = std::min(bytes, machine.memory_limit);
    if (!device_.is_cpu()) bytes = memory::total_bytes(device_);
    profile_.device.memory = bytes;
    profile_.device.reserve = static_cast<int64_t>(kReservedPart * static_cast<double>(bytes));
  }

  double elementwise_seconds(double bytes, double window) {
    const int64_t numel = std::max<int64_t>(static_cast<int64_t>(bytes / kElementBytes), 1);
    const at::Tensor b = at::ones({numel}, floats()), c = at::ones({numel}, floats());
    at::Tensor a = at::empty({numel}, floats());
    return mean(seconds_of(window, [&] { at::add_out(a, b, c, 2.0); }));
  }

  void measure_elementwise() {
    const auto measurements = static_cast<double>(options_.elementwise_bytes.size() + 1);
    const double window = kElementwisePart * options_.seconds / measurements;
    plan::ElementwiseTable& table = profile_.elementwise;
    table.threads = {static_cast<double>(threads_)};
    table.bytes = options_.elementwise_bytes;
    for (const double bytes : table.bytes) table.rates.push_back(bytes / elementwise_seconds(bytes, window));
    profile_.device.bandwidth = table.rates.back() * ranks_of_device();
    const int64_t numel = std::max<int64_t>(options_.message_bytes / 4, 1);
    at::Tensor host = at::ones({numel}, at::kFloat);
    if (!device_.is_cpu()) host = host.pin_memory();
    at::Tensor copy = at::empty({numel}, floats());
    const double seconds = mean(seconds_of(window, [&] { copy.copy_(host, /*non_blocking=*/true); }));
    profile_.host = {4.0 * static_cast<double>(numel) / seconds, profile_.device.start};
  }

  /// On accelerators operators are started ahead of their kernels, so their overhead is hidden.
  void measure_starts() {
    profile_.device.start = elementwise_seconds(kElementBytes, kBlockPart / 4 * options_.seconds);
    const double overhead = operator_overhead(floats(), profile_.device.start, [&](const std::function<void()>& train) {
      return mean(seconds_of(kBlockPart * options_.seconds, train));
    });
    if (device_.is_cpu()) profile_.device.overhead = overhead;
  }

  /// Measures one shape, because recorded steps know only the operations of attention. On accelerators the row is
  /// doubled while that gains a tenth: attention of a short row takes as long as the start of its kernels.
  void measure_attention() {
    plan::AttentionTable& table = profile_.attention;
    table = {options_.dtypes, {static_cast<double>(threads_)}, {}};
    const int rows = device_.is_cpu() ? 1 : kAttentionRows;
    const double window = kAttentionPart * options_.seconds / static_cast<double>(options_.dtypes.size()) / rows;
    for (const std::string& dtype : options_.dtypes) {
      double best = 0;
      for (int64_t row = 0, tokens = options_.attention_tokens; row < rows; ++row, tokens *= 2) {
        const double rate =
            attention_rate(floats(), scalar_type_of(dtype), tokens,
                           [&](const std::function<void()>& train) { return mean(seconds_of(window, train)); });
        const bool gains = rate > 1.1 * best;
        best = std::max(best, rate);
        if (!gains) break;
      }
      table.rates.push_back(best);
    }
  }

  void measure_products() {
    const CalibrationOptions& o = options_;
    const double types = static_cast<double>(o.dtypes.size()), part = kProductPart * o.seconds / types;
    const double window = part / 2 / static_cast<double>(o.m.size() * o.n.size() * o.k.size());
    double spent = watch_.seconds();
    profile_.products = {o.dtypes, {static_cast<double>(threads_)}, o.m, o.n, o.k, {}};
    for (const std::string& dtype : o.dtypes) {
      spent += part;
      const double best = measure_products_of(scalar_type_of(dtype), window, spent) * ranks_of_device();
      plan::DeviceProfile& device = profile_.device;
      if (dtype == "fp64") device.fp64 = best;
      if (dtype == "fp32") device.fp32 = best;
      if (dtype == "bf16") device.bf16 = best;
      if (dtype == "fp16") device.fp16 = best;
    }
  }

  /// Appends the rates of one dtype, small products first. Returns the best one.
  double measure_products_of(at::ScalarType dtype, double window, double spent) {
    double rate = 0, best = 0;
    for (const double m : options_.m)
      for (const double n : options_.n)
        for (const double k : options_.k) {
          if (rate == 0 || !is_spent(spent)) {
            const at::Tensor a = at::rand({static_cast<int64_t>(m), static_cast<int64_t>(k)}, floats()).to(dtype);
            const at::Tensor b = at::rand({static_cast<int64_t>(n), static_cast<int64_t>(k)}, floats()).to(dtype);
            rate = 2 * m * n * k / mean(seconds_of(window, [&] { ops::matmul_nt(a, b); }));
          }
          best = std::max(best, rate);
          profile_.products.rates.push_back(rate);
        }
    return best;
  }

  void measure_links() {
    plan::NodeProfile& node = profile_.node;
    node.devices = device_.is_cpu() ? profile_.machine.cores : world_.local_size();
    node.bandwidth = profile_.host.bandwidth;  // of one rank: a copy in memory
    node.latency = profile_.device.start;
    const double window = kMessagePart * options_.seconds / 16;
    if (node_->size() > 1) {
      plan::CollectiveTable& table = profile_.collectives;
      table.ranks = {static_cast<double>(node_->size())};
      for (const auto collective :
           {Collective::AllReduce, Collective::AllGather, Collective::ReduceScatter, Collective::AllToAll,
            Collective::Broadcast, Collective::Reduce, Collective::Send}) {
        const auto [latency, bandwidth] = measure_link(*node_, collective, window);
        table.names.emplace_back(plan::to_string(collective));
        table.latency.push_back(latency);
        table.bandwidth.push_back(bandwidth);
      }
      node.latency = table.latency.back();
      node.bandwidth = table.bandwidth.back();
      table.names.emplace_back(plan::to_string(Collective::Recv));  // the other side of send
      table.latency.push_back(node.latency);
      table.bandwidth.push_back(node.bandwidth);
    }
    if (across_->size() > 1) {
      const auto [latency, bandwidth] = measure_link(*across_, Collective::Send, window);
      profile_.network = {bandwidth, latency, 1};
    }
  }

  /// Returns latency and bandwidth of a collective: the seconds of a message of one element for each rank, and the rest
  /// of the seconds of a large one.
  std::pair<double, double> measure_link(comm::Group& group, Collective collective, double window) {
    const int64_t n = group.size(), numel = std::max<int64_t>(options_.message_bytes / 4 / n, 2) * n;
    const double latency = message_seconds(group, collective, n, window);
    const double seconds = message_seconds(group, collective, numel, window);
    const double sent = plan::sent_bytes(collective, 4.0 * static_cast<double>(numel), n);
    return {latency, sent / (seconds > latency ? seconds - latency : seconds)};
  }

  /// Returns the mean seconds of a collective on a whole tensor of `numel` elements, a multiple of the group's size.
  double message_seconds(comm::Group& group, Collective collective, int64_t numel, double window) {
    at::Tensor x = at::zeros({numel}, floats()), y = at::zeros({numel}, floats());
    at::Tensor part = at::zeros({numel / group.size()}, floats());
    const auto call = [&] { issue(group, collective, x, y, part).wait(); };
    const auto timed = [&](int64_t count) {
      group.barrier().wait();
      const Stopwatch watch;
      for (int64_t i = 0; i < count; ++i) call();
      synchronize();
      return watch.seconds();
    };
    timed(1);
    const double once = mean(timed(1));  // the same on all ranks, so all make as many calls
    const auto count = static_cast<int64_t>(std::clamp(window / std::max(once, 1e-9), 1.0, 1.0 * kMaxRepeats));
    return mean(timed(count) / static_cast<double>(count));
  }

  /// Even ranks send to the next one. Of an odd number of ranks the last one is idle.
  static comm::Work issue(comm::Group& group, Collective collective, at::Tensor& x, at::Tensor& y, at::Tensor& part) {
    const int rank = group.rank();
    switch (collective) {
      case Collective::AllReduce:
        return group.all_reduce(x, comm::Reduce::Sum);
      case Collective::AllGather:
        return group.all_gather(x, part);
      case Collective::ReduceScatter:
        return group.reduce_scatter(part, x, comm::Reduce::Sum);
      case Collective::AllToAll:
        return group.all_to_all(y, x, {}, {});
      case Collective::Broadcast:
        return group.broadcast(x, 0);
      case Collective::Reduce:
        return group.reduce(x, 0, comm::Reduce::Sum);
      default:
        break;
    }
    if (rank % 2 == 1) return group.recv(x, rank - 1);
    return rank + 1 < group.size() ? group.send(x, rank + 1) : comm::Work();
  }

  void measure_disk() {
    double read = 0, write = 0, latency = 0;
    if (world_.rank() == 0 && !options_.disk_folder.empty()) {
      try {
        memory::DiskSpace disk(options_.disk_folder);
        const auto timed = [&](int64_t bytes, double& writing) {
          const at::Tensor tensor = memory::empty_aligned({bytes}, at::kByte).zero_();
          const memory::DiskExtent extent = disk.allocate(bytes);
          Stopwatch watch;
          disk.write(extent, tensor).wait();
          writing = watch.restart();
          disk.read(extent, tensor).wait();
          return watch.seconds();
        };
        double small_write = 0, seconds = 0;
        latency = timed(memory::kBlock, small_write);
        const double bytes = static_cast<double>(memory::whole_blocks(options_.disk_bytes));
        read = bytes / timed(memory::whole_blocks(options_.disk_bytes), seconds);
        write = bytes / seconds;
      } catch (const Error&) {  // no room or no right to write: predictions without a disk need none
        read = write = latency = 0;
      }
    }
    profile_.disk = {comm::sum(*all_, read), comm::sum(*all_, write), comm::sum(*all_, latency)};
  }

  comm::World& world_;
  const at::Device device_;
  const CalibrationOptions& options_;
  const int64_t threads_;
  const Stopwatch watch_;
  std::shared_ptr<comm::Group> all_, node_, across_;
  plan::Profile profile_;
};

}  // namespace

plan::Profile calibrate(comm::World& world, at::Device device, const CalibrationOptions& options) {
  const at::NoGradGuard no_grad;
  return Calibration(world, device, options).measure();
}

plan::Profile measure_roughly() {
  constexpr double kSeconds = 0.3;
  constexpr int64_t kNumel = int64_t{1} << 25;  // 128 MiB, far larger than caches
  const at::NoGradGuard no_grad;
  const Machine machine = describe_machine();
  const auto best_seconds = [](const std::function<void()>& work) {
    double best = kInfinity;
    for (const Stopwatch all; best == kInfinity || all.seconds() < kSeconds;) {
      const Stopwatch one;
      work();
      best = std::min(best, one.seconds());
    }
    return best;
  };
  const auto add_seconds = [&](int64_t numel) {
    const at::Tensor b = at::ones({numel}), c = at::ones({numel});
    at::Tensor a = at::empty({numel});
    return best_seconds([&] { at::add_out(a, b, c, 2.0); });
  };
  plan::Profile profile;
  profile.name = "this machine";
  plan::DeviceProfile& device = profile.device;
  device.start = add_seconds(1);
  device.overhead = operator_overhead(at::kFloat, device.start, best_seconds);
  profile.machine = {machine.cpu, machine.cores, resident_bytes()};  // before large tensors
  device.shared = true;
  device.efficiency = 1;
  device.memory = machine.memory_total;
  if (machine.memory_limit > 0) device.memory = std::min(device.memory, machine.memory_limit);
  device.reserve = static_cast<int64_t>(kReservedPart * static_cast<double>(device.memory));
  device.fp32 = ops::matmul_peak(at::kFloat, at::kCPU, kSeconds);
  device.bf16 = ops::matmul_peak(at::kBFloat16, at::kCPU, kSeconds);
  device.bandwidth = kElementBytes * static_cast<double>(kNumel) / add_seconds(kNumel);
  device.attention = std::min(
      1.0, attention_rate(at::kFloat, at::kFloat, CalibrationOptions().attention_tokens, best_seconds) / device.fp32);
  profile.node = {machine.cores, device.bandwidth / 4, device.start};
  profile.host = {device.bandwidth / 2, device.start};
  profile.check();
  return profile;
}

ClusterChoice choose_cluster(const std::string& cluster, bool on_gpus) {
  if (cluster != "this") return {plan::find_profile(cluster), ""};
  std::string why;
  if (auto profile = plan::stored_profile(plan::stored_profile_path(), describe_machine(), why)) return {*profile, ""};
  require(!on_gpus, "cluster", "the GPUs of this machine must be measured before a run on them is predicted, because ",
          why, "; run `colossal plan --calibrate` once, or set run.device = \"cpu\"");
  return {measure_roughly(),
          concat("times are rough, because ", why, "; `colossal plan --calibrate` measures this machine once")};
}

void store_profile(const plan::Profile& profile, const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path();
  if (!folder.empty()) create_folder(folder);
  write_file(path, plan::profile_to_toml(profile));
}

}  // namespace colossal::run
