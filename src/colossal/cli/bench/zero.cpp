#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <mutex>
#include <string>
#include <vector>

#include "colossal/base/bytes.h"
#include "colossal/base/error.h"
#include "colossal/cli/bench/bench.h"
#include "colossal/cli/bench/table.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/data/batch_fields.h"
#include "colossal/memory/account.h"
#include "colossal/memory/chunk_store.h"
#include "colossal/models/registry.h"
#include "colossal/train/engine.h"

namespace colossal::cli {
namespace {

using comm::Phase;
using memory::Kind;

constexpr std::chrono::minutes kPatience{5};  // many ranks share few cores here: a slow rank is not stuck

/// Costs in bytes, each the maximum over the ranks.
struct Cost {
  double sent = 0, parameters = 0, gradients = 0, states = 0, peak_gathered = 0;
};

struct Workload {
  models::ModelShape shape;
  std::string precision;
  int64_t sequence;
};

run::Config config_of(const Workload& work, int64_t ranks, int64_t zero) {
  run::Config config;
  config.run.device = "cpu";
  config.parallel.data = ranks;
  config.parallel.zero = zero;
  config.parallel.chunk_mib = 0.25;
  config.precision.mode = work.precision;
  config.training.batch_size = ranks;
  config.optimizer.warmup_steps = 0;
  return config;
}

Cost measured(const Workload& work, int64_t ranks, int64_t zero, int64_t* padding) {
  Cost most;
  std::mutex mutex;
  comm::run_ranks(static_cast<int>(ranks),
                  [&](comm::World& world) {
                    at::set_num_threads(1);
                    const memory::Account account;
                    const auto engine = train::initialize(world, config_of(work, ranks, zero), work.shape);
                    const at::Tensor ids = at::zeros({1, work.sequence}, at::kLong);
                    const tensor::Batch batch = data::text_batch(ids, ids, at::arange(work.sequence).unsqueeze(0));
                    memory::Account::Usage before_update;
                    for (int step = 0; step < 2; ++step) {  // the first step has no prediction of the chunks to gather
                      world.traffic().reset();
                      engine->zero_grad();
                      engine->train_step(batch);
                      before_update = account.usage();
                      engine->step();
                    }
                    double sent = 0;
                    for (const Phase phase : {Phase::Forward, Phase::Backward, Phase::Optimizer})
                      sent += world.traffic().total("data", "", phase).bytes;
                    const std::lock_guard lock(mutex);
                    const auto largest = [](double& value, auto other) {
                      value = std::max(value, static_cast<double>(other));
                    };
                    largest(most.sent, sent);
                    largest(most.parameters, before_update.of(Kind::Parameters));
                    largest(most.gradients, before_update.of(Kind::Gradients));
                    largest(most.states, before_update.of(Kind::States));
                    largest(most.peak_gathered, engine->store().counts().peak_gathered);
                    *padding = engine->store().padding();
                  },
                  {.watchdog = kPatience});
  return most;
}

/// Returns the published costs of `parameters` parameters of `width` bytes, with two moments and, if they are narrower
/// than fp32, fp32 master weights (Rajbhandari et al. 2020, table 1 and section 7).
Cost published(double parameters, double width, double ranks, int64_t zero) {
  const double share = zero == 0 ? 1 : ranks, states = width < 4 ? 12 : 8;
  return {.sent = (zero == 3 ? 3 : 2) * parameters * width * (ranks - 1) / ranks,
          .parameters = width * parameters / (zero == 3 ? share : 1),
          .gradients = width * parameters / (zero >= 2 ? share : 1),
          .states = states * parameters / share};
}

/// Measures every stage on every number of ranks and prints a row for each.
void print_table(const Workload& work, const std::vector<int64_t>& ranks) {
  const double width = work.precision == "fp32" ? 4 : 2;
  double parameters = 0;
  comm::run_ranks(1, [&](comm::World& world) {
    parameters = static_cast<double>(train::initialize(world, config_of(work, 1, 0), work.shape)->parameters().numel());
  });
  std::printf(
      "A GPT of %.0f parameters in %s with AdamW. Each pair of columns: measured, formula; MiB, maximum over the "
      "ranks.\nSent: in a training step. Gathered: peak of parameters of other ranks. Padding: elements, not in the "
      "formulas.\n\n",
      parameters, work.precision.c_str());
  const auto pair = [](const char* title) { return BenchColumn{title, 9, 3, kMiB, true}; };
  const BenchTable table({{"ranks", 5},
                          {"zero", 4},
                          pair("sent"),
                          pair("parameters"),
                          pair("gradients"),
                          pair("states"),
                          {"gathered", 9, 3, kMiB},
                          {"padding", 8}});
  table.print_head();
  for (const int64_t count : ranks)
    for (int64_t zero = 0; zero <= 3; ++zero) {
      int64_t padding = 0;
      const Cost got = measured(work, count, zero, &padding),
                 want = published(parameters, width, static_cast<double>(count), zero);
      BenchRow row{count, zero};
      for (const auto value : {&Cost::sent, &Cost::parameters, &Cost::gradients, &Cost::states})
        row.emplace_back(Compared{got.*value, want.*value});
      row.insert(row.end(), {got.peak_gathered, padding});
      table.print_row(row);
    }
}

}  // namespace

int bench_zero(const Arguments& arguments) {
  CLI::App app(
      "Trains a small GPT for two steps at every ZeRO stage and measures each rank's memory, and its traffic in the "
      "second step.",
      "colossal bench zero");
  Workload work{{.architecture = models::built_in().at("gpt2"),
                 .vocabulary = 1000,
                 .hidden = 128,
                 .layers = 4,
                 .heads = 4,
                 .kv_heads = 4,
                 .head_dim = 32,
                 .ffn = 512,
                 .positions = 64},
                "bf16",
                16};
  std::vector<int64_t> ranks{1, 2, 4, 8};
  app.add_option("--hidden", work.shape.hidden, "width of the hidden state, a multiple of 4")
      ->capture_default_str()
      ->check(CLI::Range(4, 1 << 14));
  app.add_option("--layers", work.shape.layers, "number of transformer blocks")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  app.add_option("--vocabulary", work.shape.vocabulary, "vocabulary size")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--precision", work.precision, "precision.mode of the training")
      ->capture_default_str()
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}));
  add_ranks(app, ranks);
  parse(app, arguments);
  if (work.shape.hidden % work.shape.heads != 0)
    throw UsageError(concat("--hidden must be divisible by 4: got ", work.shape.hidden));
  work.shape.head_dim = work.shape.hidden / work.shape.heads;
  work.shape.ffn = 4 * work.shape.hidden;
  print_table(work, ranks);
  return 0;
}

}  // namespace colossal::cli
