#include <ATen/Parallel.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "colossal/base/bytes.h"
#include "colossal/base/error.h"
#include "colossal/base/machine.h"
#include "colossal/base/number.h"
#include "colossal/cli/become.h"
#include "colossal/cli/local_world.h"
#include "colossal/cli/plan.h"
#include "colossal/comm/launch/device.h"
#include "colossal/comm/launch/environment.h"
#include "colossal/comm/launch/local_ranks.h"
#include "colossal/plan/profile.h"
#include "colossal/run/calibrate.h"

namespace colossal::cli {
namespace {

struct CalibrationWishes {
  std::string to;
  std::string device = "auto";
  double seconds = 90;  // a start of ranks takes one or two seconds more
  int64_t timeout = 60;
  int64_t threads = 0;
};

/// A file that is removed at the end.
struct PartFile {
  std::string path;
  explicit PartFile(std::string name) : path(std::move(name)) {}
  ~PartFile() {
    std::error_code ignored;
    std::filesystem::remove(path, ignored);
  }
  PartFile(const PartFile&) = delete;
  PartFile& operator=(const PartFile&) = delete;
};

std::string folder_of(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path();
  return folder.empty() ? "." : folder;
}

/// Measures as one rank of a run and returns on all ranks after rank 0 has written the profile.
int calibrate_as_rank(const CalibrationWishes& wishes) {
  return with_ranks(1, Arguments(), [&] {
    const std::string device = comm::choose_device(wishes.device, 0).is_cpu() ? "cpu" : "cuda";
    const auto world = join_ranks(wishes.timeout, device);
    if (wishes.threads > 0) at::set_num_threads(static_cast<int>(wishes.threads));
    run::CalibrationOptions options;
    options.seconds = wishes.seconds;
    options.disk_folder = folder_of(wishes.to);
    const auto profile = run::calibrate(*world, comm::choose_device(device, world->local_rank()), options);
    if (world->rank() == 0) run::store_profile(profile, wishes.to);
    return 0;
  });
}

/// Starts `ranks` local ranks that measure and write wishes.to. Returns their exit status. The threads of a rank are an
/// option, because OMP_NUM_THREADS or a quota would give several numbers of ranks the same threads.
int calibrate_with(int64_t ranks, const CalibrationWishes& wishes) {
  const long seconds = std::lround(wishes.seconds);
  say(concat("measuring with ", ranks, ranks == 1 ? " rank" : " ranks", " for about ", seconds, " s"));
  return comm::run_local_ranks(
      {.ranks = static_cast<int>(ranks),
       .command = {this_program(), "plan", "--calibrate", "--to", wishes.to, "--device", wishes.device, "--seconds",
                   concat(wishes.seconds), "--timeout", concat(wishes.timeout), "--threads", concat(wishes.threads)},
       .report = say});
}

std::string of_rate(double rate, const char* unit) { return concat(fixed_text(rate / 1e9, 1), " ", unit); }

void print_profile(const plan::Profile& profile, const std::string& path) {
  const auto row = [](const char* name, const std::string& value) { std::printf("%-22s%s\n", name, value.c_str()); };
  row("processor", concat(profile.machine.processor, ", ", profile.machine.cores, " cores"));
  for (const auto& [name, rate] : {std::pair("matmul fp32", profile.device.fp32), {"matmul bf16", profile.device.bf16}})
    if (rate > 0) row(name, of_rate(rate, "GFLOP/s"));
  row("memory bandwidth", of_rate(profile.device.bandwidth, "GB/s"));
  row("start of an operator", concat(profile.device.start * 1e6, " us"));
  row("between ranks", concat(of_rate(profile.node.bandwidth, "GB/s"), ", ", profile.node.latency * 1e6, " us"));
  if (const auto& attention = profile.attention; !attention.rates.empty())
    row("attention", concat(of_rate(attention.rates.back(), "GFLOP/s"), " in ", attention.dtypes.back()));
  if (profile.network.bandwidth > 0)
    row("between nodes",
        concat(of_rate(profile.network.bandwidth, "GB/s"), ", ", profile.network.latency * 1e6, " us"));
  const std::string read = of_rate(profile.disk.read, "GB/s"), written = of_rate(profile.disk.write, "GB/s");
  row("disk", profile.disk.read > 0 ? concat(read, " read, ", written, " written")
                                    : "not measured: the folder of the profile takes no scratch file");
  row("overhead of operators", concat(profile.device.overhead * 1e6, " us"));
  row("a rank without tensors", readable_bytes(profile.machine.resident));
  row("profile", path);
}

}  // namespace

std::vector<int64_t> calibrated_ranks(int64_t cores) {
  std::vector<int64_t> counts;
  for (int64_t ranks = 1; ranks <= std::min<int64_t>(cores, 128); ++ranks)
    if (cores % ranks == 0 && (counts.empty() || ranks >= 2 * counts.back())) counts.push_back(ranks);
  return counts;
}

int plan_calibrate(const Arguments& arguments) {
  CLI::App app("Measures this machine and stores a profile that predictions use.", "colossal plan --calibrate");
  CalibrationWishes wishes;
  bool calibrates = true;
  app.add_flag("--calibrate", calibrates, "measure, in place of a prediction");
  app.add_option("--to", wishes.to, "file of the profile; default: profile.toml in the user's cache folder");
  app.add_option("--device", wishes.device, "device to measure")
      ->capture_default_str()
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}));
  app.add_option("--seconds", wishes.seconds, "time to measure for, in all")
      ->capture_default_str()
      ->check(CLI::Range(0.01, 3600.0));
  app.add_option("--threads", wishes.threads, "threads of a rank under a launcher; 0 = those that it gave the rank")
      ->capture_default_str()
      ->check(CLI::Range(0, 65536));
  add_timeout(app, wishes.timeout);
  parse(app, arguments);

  if (wishes.to.empty()) wishes.to = plan::stored_profile_path();
  if (comm::read_environment(comm::process_variables()).launcher != comm::Launcher::None)
    return calibrate_as_rank(wishes);

  const Machine machine = describe_machine();
  const bool on_cpu = comm::choose_device(wishes.device, 0).is_cpu();
  const std::vector<int64_t> counts =
      on_cpu ? calibrated_ranks(machine.cores) : std::vector<int64_t>{comm::cuda_devices().count()};
  std::vector<plan::Profile> profiles;
  for (const int64_t ranks : counts) {
    const PartFile part(concat(wishes.to, ".ranks-", ranks, ".toml"));
    CalibrationWishes of_part = wishes;
    of_part.to = part.path;
    of_part.seconds = wishes.seconds / static_cast<double>(counts.size());
    of_part.threads = std::max<int64_t>(machine.cores / ranks, 1);
    if (const int status = calibrate_with(ranks, of_part); status != 0) return status;
    profiles.push_back(plan::load_profile(part.path));
  }
  plan::Profile merged = plan::merge_profiles(profiles);
  merged.machine.cores = machine.cores;  // a quota may grant less than the cores that ranks are bound to
  run::store_profile(merged, wishes.to);
  print_profile(merged, wishes.to);
  return 0;
}

}  // namespace colossal::cli
