#include <ATen/ATen.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "colossal/base/bytes.h"
#include "colossal/base/json.h"
#include "colossal/base/json_fields.h"
#include "colossal/base/number.h"
#include "colossal/cli/bench/bench.h"
#include "colossal/cli/bench/table.h"
#include "colossal/cli/model_options.h"
#include "colossal/comm/agreement.h"
#include "colossal/infer/decoding/model_runner.h"
#include "colossal/infer/served_load.h"
#include "colossal/models/registry.h"
#include "colossal/ops/cpu.h"
#include "colossal/ops/huge_pages.h"

namespace colossal::cli {
namespace {

struct InferenceRequest {
  ModelOptions model;
  infer::EngineOptions engine;
  infer::LoadOptions load{.rate = 0};
  std::vector<int64_t> batches{1, 8};
  int64_t rounds = 3;
  std::string kernels = "auto";
  bool as_json = false;
};

/// Percentiles of seconds.
struct Latencies {
  double p50 = 0, p90 = 0, p99 = 0;

  void fields(Fields& f) { f.member("p50", p50), f.member("p90", p90), f.member("p99", p99); }
};

/// Timing of a batch size.
struct BatchTiming {
  int64_t count = 0;
  double first_token_seconds = 0, prompt_tokens_per_second = 0, tokens_per_second = 0;
  std::optional<double> of_bound{};  ///< share of the bound that memory sets; none if there is no bound

  void fields(Fields& f) {
    f.member("count", count);
    f.member("first_token_seconds", first_token_seconds);
    f.member("prompt_tokens_per_second", prompt_tokens_per_second);
    f.member("tokens_per_second", tokens_per_second);
    f.member("of_bound", of_bound);
  }
};

/// Timing of requests that arrive at random times.
struct LoadTiming {
  double requests_per_second = 0;
  int64_t requests = 0;
  double tokens_per_second = 0;
  int64_t preempted = 0;
  std::optional<Latencies> first_token_seconds, token_seconds, request_seconds;

  void fields(Fields& f) {
    f.member("requests_per_second", requests_per_second);
    f.member("requests", requests);
    f.member("tokens_per_second", tokens_per_second);
    f.member("preempted", preempted);
    f.member("first_token_seconds", first_token_seconds);
    f.member("token_seconds", token_seconds);
    f.member("request_seconds", request_seconds);
  }
};

struct InferenceTiming {
  std::string model, kernels;
  int64_t cache_bytes_per_token = 0, prompt_tokens = 0, new_tokens = 0;
  int64_t weight_bytes = 0;  ///< 0 = the weights are not packed, so no bound is known
  double bandwidth_bytes_per_second = 0, bound_steps_per_second = 0;
  std::vector<BatchTiming> sequences{};
  std::optional<LoadTiming> load{};

  void fields(Fields& f) {
    f.member("model", model);
    f.member("kernels", kernels);
    f.member("cache_bytes_per_token", cache_bytes_per_token);
    f.member("prompt_tokens", prompt_tokens);
    f.member("new_tokens", new_tokens);
    f.optional(weight_bytes == 0).member("weight_bytes", weight_bytes);
    f.optional(weight_bytes == 0).member("bandwidth_bytes_per_second", bandwidth_bytes_per_second);
    f.optional(weight_bytes == 0).member("bound_steps_per_second", bound_steps_per_second);
    f.optional(sequences.empty()).member("sequences", sequences);
    f.optional(!load).member("load", load);
  }
};

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

/// Returns the bytes per second that this rank's threads read from memory, the best of a few passes over more data than
/// caches hold. LibTorch's sum has vectors: additions one by one would take longer than memory.
double read_bandwidth() {
  const at::Tensor memory = ops::empty_in_huge_pages({int64_t{1} << 26}, at::kFloat).fill_(1);  // 256 MiB
  double best = 0;
  for (int pass = 0; pass < 8; ++pass) {
    const double start = now();
    memory.sum();
    best = std::max(best, static_cast<double>(memory.nbytes()) / (now() - start));
  }
  return best;
}

/// Timing of requests that are added together.
struct Pass {
  double first_token;  ///< seconds until all requests have a token
  double decode;       ///< tokens per second of all requests, from then until the first one ends
};

Pass measured(infer::Engine& engine, const infer::LoadOptions& load, int64_t requests, int64_t seed, int64_t words) {
  infer::LoadOptions options = load;
  options.rate = 1, options.requests = requests, options.seed = seed;
  options.prompt_tokens = 2 * load.prompt_tokens;  // the shortest prompt has half of this, and longer ones are cut
  std::vector<infer::Event> events;                // events of one step
  for (infer::Arrival& arrival : infer::random_arrivals(options, words)) {
    arrival.request.prompt.resize(static_cast<size_t>(load.prompt_tokens));
    arrival.request.options.max_tokens = load.new_tokens + 1;
    engine.add(arrival.request, [&events](const infer::Event& event) { events.push_back(event); });
  }
  std::set<int64_t> begun;
  bool all_run = false, one_ended = false;
  int64_t tokens = 0;
  const double start = now();
  double first = start, end = start;
  while (engine.has_work()) {
    events.clear();
    engine.step();
    if (one_ended) continue;
    end = now();
    for (const infer::Event& event : events) {
      begun.insert(event.id);
      one_ended = one_ended || event.finish_reason != infer::FinishReason::None;
    }
    if (all_run) tokens += static_cast<int64_t>(events.size());
    if (!all_run && static_cast<int64_t>(begun.size()) == requests) all_run = true, first = end;
  }
  return {first - start, static_cast<double>(tokens) / (end - first)};
}

/// Returns the medians of several passes.
Pass typical(infer::Engine& engine, const InferenceRequest& request, int64_t requests, int64_t words) {
  std::vector<double> first, decode;
  for (int64_t round = 0; round < request.rounds; ++round) {
    const Pass pass = measured(engine, request.load, requests, request.load.seed + round, words);
    first.push_back(pass.first_token), decode.push_back(pass.decode);
  }
  return {infer::percentile(first, 0.5), infer::percentile(decode, 0.5)};
}

std::optional<Latencies> latencies(const std::vector<double>& seconds) {
  if (seconds.empty()) return std::nullopt;
  return Latencies{infer::percentile(seconds, 0.5), infer::percentile(seconds, 0.9), infer::percentile(seconds, 0.99)};
}

/// Returns the clock of the first rank, broadcast to all ranks.
std::function<double()> shared_clock(const LoadedModel& loaded) {
  return [&loaded, start = now()] { return comm::sum(loaded.mesh.all(), loaded.speaks() ? now() - start : 0); };
}

/// Measures requests that arrive at random times, by default half as many per second as `decode`, the decoding
/// throughput in tokens per second, sustains.
LoadTiming under_load(infer::Engine& engine, const InferenceRequest& request, const LoadedModel& loaded,
                      double decode) {
  infer::LoadOptions load = request.load;
  // All ranks must use the same rate, the one measured by the first rank's clock.
  const double sustained = comm::sum(loaded.mesh.all(), loaded.speaks() ? decode : 0);
  if (load.rate == 0) load.rate = 0.5 * sustained / static_cast<double>(load.new_tokens);
  const int64_t preempted = engine.counts().preempted;
  const int64_t words = loaded.saved.model->decoding_model().shape.vocabulary;
  const infer::Served served = infer::serve(engine, infer::random_arrivals(load, words), shared_clock(loaded));
  return {.requests_per_second = load.rate,
          .requests = load.requests,
          .tokens_per_second = static_cast<double>(served.tokens) / served.seconds,
          .preempted = engine.counts().preempted - preempted,
          .first_token_seconds = latencies(served.first_token),
          .token_seconds = latencies(served.token),
          .request_seconds = latencies(served.whole)};
}

InferenceTiming results(const InferenceRequest& request, const LoadedModel& loaded) {
  const run::SavedModel& saved = loaded.saved;
  const int64_t words = saved.model->decoding_model().shape.vocabulary;
  infer::EngineOptions options = loaded.engine(request.engine);
  options.keeps_prefixes = false;  // each round must compute its prompts again
  infer::Engine engine(*saved.model, options);
  InferenceTiming result{.model = saved.model->decoding_model().shape.architecture->name,
                         .kernels = std::string(ops::name(ops::instruction_set())),
                         .cache_bytes_per_token = infer::ModelRunner::bytes_of_token(*saved.model, options.cache_dtype),
                         .prompt_tokens = request.load.prompt_tokens,
                         .new_tokens = request.load.new_tokens};
  const bool has_bound = saved.packed && saved.packed->bytes() > 0;
  if (has_bound) {
    result.weight_bytes = saved.packed->bytes();
    result.bandwidth_bytes_per_second = read_bandwidth();
    result.bound_steps_per_second = result.bandwidth_bytes_per_second / static_cast<double>(result.weight_bytes);
  }
  measured(engine, {.prompt_tokens = request.load.prompt_tokens, .new_tokens = 4}, 1, 0, words);  // warm-up
  double most = 0;
  for (const int64_t count : request.batches) {
    const Pass pass = typical(engine, request, count, words);
    const auto all_prompts = static_cast<double>(count * request.load.prompt_tokens);
    BatchTiming& timing = result.sequences.emplace_back();
    timing = {.count = count,
              .first_token_seconds = pass.first_token,
              .prompt_tokens_per_second = all_prompts / pass.first_token,
              .tokens_per_second = pass.decode};
    if (has_bound) timing.of_bound = pass.decode / result.bound_steps_per_second / static_cast<double>(count);
    most = std::max(most, pass.decode);
  }
  if (request.load.requests > 0) result.load = under_load(engine, request, loaded, most);
  return result;
}

void print(const InferenceTiming& result) {
  std::printf("%s, prompts of %lld tokens, completions of %lld, kernels %s\n", result.model.c_str(),
              static_cast<long long>(result.prompt_tokens), static_cast<long long>(result.new_tokens),
              result.kernels.c_str());
  if (result.weight_bytes > 0)
    std::printf("Each rank reads %s of weights per step, its threads %.1f GB/s from memory: at most %.1f steps/s\n",
                print_bytes(result.weight_bytes).c_str(), result.bandwidth_bytes_per_second * 1e-9,
                result.bound_steps_per_second);
  std::printf("\n");
  const BenchTable table({{"sequences", 9},
                          {"first token, s", 14, 3},
                          {"prompts, tokens/s", 17, 1},
                          {"decode, tokens/s", 16, 1},
                          {"/ bound", 8}});
  table.print_head();
  for (const BatchTiming& row : result.sequences)
    table.print_row({row.count, row.first_token_seconds, row.prompt_tokens_per_second, row.tokens_per_second,
                     row.of_bound ? fixed_text(100 * *row.of_bound, 0) + "%" : ""});
  if (!result.load) return;
  const LoadTiming& load = *result.load;
  std::printf("\n%lld requests, %.2f per second on average: %.1f tokens/s, %lld preemptions\n",
              static_cast<long long>(load.requests), load.requests_per_second, load.tokens_per_second,
              static_cast<long long>(load.preempted));
  std::printf("\n");
  const BenchTable latencies({{"seconds", -26}, {"median", 8, 3}, {"90 %", 8, 3}, {"99 %", 8, 3}});
  latencies.print_head();
  for (const auto& [seconds, name] : {std::pair{&load.first_token_seconds, "first token"},
                                      {&load.token_seconds, "each later token"},
                                      {&load.request_seconds, "whole request"}})
    if (*seconds) latencies.print_row({name, (*seconds)->p50, (*seconds)->p90, (*seconds)->p99});
}

}  // namespace

int bench_inference(const Arguments& arguments) {
  CLI::App app(
      "Measures generation: prefill and decoding, alone and batched, and the latency of requests that arrive at random "
      "times.",
      "colossal bench inference");
  InferenceRequest r;
  add_model_options(app, r.model);
  add_engine_options(app, r.model, r.engine);
  r.model.tokenizer = "none";  // ids are random; after the options, because help has no default for it
  const auto add_count = [&](const char* flag, int64_t& value, const char* help, int64_t min = 1) {
    app.add_option(flag, value, help)->capture_default_str()->check(CLI::Range(min, int64_t{1} << 30));
  };
  add_count("--prompt-tokens", r.load.prompt_tokens, "tokens of a prompt; under load the mean");
  add_count("--new-tokens", r.load.new_tokens, "tokens of a completion; under load the mean");
  app.add_option("--sequences", r.batches, "batch sizes to measure, one after another")
      ->delimiter(',')
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  add_count("--rounds", r.rounds, "passes per measurement; the median is reported");
  add_count("--requests", r.load.requests, "number of requests under load; 0 = no load", 0);
  app.add_option("--rate", r.load.rate, "mean requests per second; default: half of the decoding throughput")
      ->check(CLI::PositiveNumber);
  app.add_option("--seed", r.load.seed, "random seed of prompts and arrival times")->capture_default_str();
  app.add_option("--kernels", r.kernels,
                 "CPU kernels to use: portable, avx2, avxvnni, avx512, avx512vnni, avx512bf16 or amx; auto = the best "
                 "ones of this machine")
      ->capture_default_str();
  app.add_flag("--json", r.as_json, "print a JSON object instead of tables");
  parse(app, arguments);
  refuse_options(app, {"--tokenizer"}, "on a benchmark whose prompts are random ids");
  if (r.load.requests == 0) refuse_options(app, {"--rate"}, "with --requests 0, which measures no load");
  check_model_options(app, r.model);
  const ops::InstructionSetScope kernels(ops::instruction_set_named(r.kernels));
  Arguments words{"inference"};  // arguments of the ranks that this process starts
  words.insert(words.end(), arguments.begin(), arguments.end());
  return with_model(r.model, "bench", words, nullptr, [&](const LoadedModel& loaded) {
    const InferenceTiming result = results(r, loaded);
    if (!loaded.speaks()) return 0;
    if (r.as_json)
      std::puts(to_json_object(result).dump(2).c_str());
    else
      print(result);
    return 0;
  });
}

}  // namespace colossal::cli
