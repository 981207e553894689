#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <torch/version.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <string>

#include "colossal/base/bytes.h"
#include "colossal/base/clock.h"
#include "colossal/base/cuda_build.h"
#include "colossal/base/join.h"
#include "colossal/base/machine.h"
#include "colossal/base/number.h"
#include "colossal/base/version.h"
#include "colossal/cli/commands.h"
#include "colossal/ops/cpu.h"
#include "colossal/ops/products/matmul.h"

namespace colossal::cli {
namespace {

constexpr double kMeasureSeconds = 0.3;

void row(const char* name, const std::string& value) { std::printf("%-22s%s\n", name, value.c_str()); }

/// Returns the shortest time of one call in seconds, over kMeasureSeconds of calls after a warm-up call.
template <class Work>
double best_seconds(const Work& work) {
  work();
  double best = 1e9;
  const Stopwatch all;
  do {
    const Stopwatch one;
    work();
    best = std::min(best, one.seconds());
  } while (all.seconds() < kMeasureSeconds);
  return best;
}

std::string matmul_peak(at::ScalarType dtype, at::Device device) {
  return fixed_text(ops::matmul_peak(dtype, device, kMeasureSeconds) / 1e9, 0) + " GFLOP/s";
}

/// Measures a = b + 2 c over arrays far larger than any cache: two reads and one write per element.
std::string memory_bandwidth() {
  constexpr int64_t kNumel = int64_t{1} << 25;  // 128 MiB each
  const at::Tensor b = at::ones({kNumel}), c = at::ones({kNumel});
  at::Tensor a = at::empty({kNumel});
  const double seconds = best_seconds([&] { at::add_out(a, b, c, 2.0); });
  return fixed_text(3.0 * 4.0 * static_cast<double>(kNumel) / seconds / 1e9, 1) + " GB/s";
}

const char* library_name(ops::MatmulLibrary library) { return library == ops::MatmulLibrary::Mkl ? "MKL" : "oneDNN"; }

void print_machine() {
  const Machine machine = describe_machine();
  const std::string sets = join(machine.instruction_sets, " ");
  row("host", machine.host);
  row("processor", machine.cpu.empty() ? "unknown" : machine.cpu);
  row("cores", std::to_string(machine.cores) + " usable");
  row("instruction sets", sets.empty() ? "unknown" : sets);
  row("kernels use", std::string(ops::name(ops::general_set(ops::best_instruction_set()))));
  row("packed weights", ops::describe_best());
  row("memory", readable_bytes(machine.memory_total) + ", " + readable_bytes(machine.memory_available) + " available" +
                    (machine.memory_limit > 0 ? ", limited to " + readable_bytes(machine.memory_limit) : ""));
}

void print_peaks() {
  const auto choice = ops::matmul_choice();
  row("threads", std::to_string(at::get_num_threads()));
  row("matmul fp32", matmul_peak(at::kFloat, at::kCPU) + " (forward " + library_name(choice.nt) + ", input gradient " +
                         library_name(choice.nn) + ", weight gradient " + library_name(choice.tn) + ")");
  row("matmul bf16", matmul_peak(at::kBFloat16, at::kCPU));
  row("memory bandwidth", memory_bandwidth());
  if (!at::hasCUDA()) return;
  row("matmul fp32, cuda", matmul_peak(at::kFloat, at::kCUDA));
  row("matmul bf16, cuda", matmul_peak(at::kBFloat16, at::kCUDA));
}

}  // namespace

int info(const Arguments& arguments) {
  CLI::App app("Shows what this machine and this build support.", "colossal info");
  bool quick = false;
  app.add_flag("--no-measure", quick, "skip the measurement of peaks (about 2 s)");
  parse(app, arguments);

  const at::NoGradGuard no_grad;
  row("colossal", version());
  row("libtorch", TORCH_VERSION);
  const auto devices = at::hasCUDA() ? at::detail::getCUDAHooks().deviceCount() : 0;
  row("cuda", devices > 0 ? std::to_string(devices) + " device(s)" : "none usable");
  row("cuda build", cuda_build().libtorch.empty() ? "libtorch_cuda.so is linked" : cuda_build().libtorch);
  if (cuda_build().libtorch.empty()) {
    row("nccl, cuda graphs", cuda_build().headers.empty() ? "compiled" : cuda_build().headers);
    row("our cuda kernels", cuda_build().kernels.empty() ? "compiled and linked" : cuda_build().kernels);
  }
  print_machine();
  std::fflush(stdout);
  if (!quick) print_peaks();
  return 0;
}

}  // namespace colossal::cli
