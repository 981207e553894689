#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/base/html.h"
#include "colossal/base/json.h"
#include "colossal/base/number.h"
#include "colossal/cli/bench/bench.h"
#include "colossal/cli/bench/table.h"
#include "colossal/infer/prompts/lines.h"
#include "colossal/infer/served_load.h"
#include "colossal/report/plot.h"
#include "colossal/serve/load_test.h"

namespace colossal::cli {
namespace {

using serve::LoadResult;

/// A duration that is measured many times.
struct MeasuredLatency {
  const char *name, *key;
  std::vector<double> LoadResult::* seconds;
};

const MeasuredLatency kMeasuredLatencies[] = {
    {"first token", "first_token_seconds", &LoadResult::first_token},
    {"between tokens", "between_tokens_seconds", &LoadResult::between_tokens},
    {"whole request", "request_seconds", &LoadResult::request},
};

double per_second(const LoadResult& result, int64_t count) {
  return result.seconds > 0 ? static_cast<double>(count) / result.seconds : 0;
}

nlohmann::ordered_json json_of_load(const LoadResult& result) {
  nlohmann::ordered_json all{{"requests", result.requests},
                             {"failed", result.failed},
                             {"seconds", result.seconds},
                             {"tokens", result.tokens},
                             {"tokens_per_second", per_second(result, result.tokens)},
                             {"requests_per_second", per_second(result, result.requests - result.failed)}};
  for (const MeasuredLatency& latency : kMeasuredLatencies) {
    const std::vector<double>& seconds = result.*latency.seconds;
    for (const auto& [name, share] : {std::pair{"p50", 0.5}, {"p95", 0.95}})
      all[latency.key][name] =
          seconds.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(infer::percentile(seconds, share));
  }
  return all;
}

const BenchTable& latency_table() {
  static const BenchTable table({{"seconds", -14}, {"median", 10, 4}, {"95 %", 10, 4}});
  return table;
}

std::vector<BenchRow> latency_rows(const LoadResult& result) {
  std::vector<BenchRow> rows;
  for (const MeasuredLatency& latency : kMeasuredLatencies) {
    const std::vector<double>& seconds = result.*latency.seconds;
    if (seconds.empty())
      rows.push_back({latency.name, "-", "-"});
    else
      rows.push_back({latency.name, infer::percentile(seconds, 0.5), infer::percentile(seconds, 0.95)});
  }
  return rows;
}

std::string summary_of_load(const LoadResult& result) {
  return concat(result.requests, " requests, ", result.failed, " failed, ", result.tokens, " tokens in ",
                fixed_text(result.seconds, 2), " s: ", fixed_text(per_second(result, result.tokens), 1), " tokens/s, ",
                fixed_text(per_second(result, result.requests - result.failed), 2), " requests/s");
}

void print_load(const LoadResult& result) {
  std::printf("%s\n\n", summary_of_load(result).c_str());
  latency_table().print_head();
  for (const BenchRow& row : latency_rows(result)) latency_table().print_row(row);
}

/// Returns the values of all percentiles as a line.
report::Plot plot_of_latency(const std::string& title, const std::vector<double>& seconds) {
  report::Series line{title, "first", {}, {}};
  for (int percent = 0; percent <= 100 && !seconds.empty(); ++percent) {
    line.x.push_back(percent);
    line.y.push_back(infer::percentile(seconds, percent * 0.01));
  }
  return {.title = title, .x_label = "percentile", .from_zero = true, .series = {std::move(line)}};
}

/// Returns the events with text per second over the time of the load, which is cut into equal parts.
report::Plot plot_of_speed(const LoadResult& result) {
  constexpr size_t kParts = 50;
  constexpr double kShort = 20;  // seconds of a load that is drawn over milliseconds, because ticks are integers
  const double width = result.seconds / kParts, unit = result.seconds < kShort ? 1e-3 : 1;
  report::Series line{"tokens per second", "first", {}, {}};
  std::vector<int64_t> counts(kParts);
  for (const double at : result.arrivals) ++counts[std::min(static_cast<size_t>(at / width), kParts - 1)];
  for (size_t part = 0; part < kParts && !result.arrivals.empty(); ++part) {
    line.x.push_back((static_cast<double>(part) + 0.5) * width / unit);
    line.y.push_back(static_cast<double>(counts[part]) / width);
  }
  return {.title = "Tokens per second, all clients",
          .x_label = unit < 1 ? "milliseconds" : "seconds",
          .from_zero = true,
          .series = {std::move(line)}};
}

std::string page_of_load(const std::string& title, const LoadResult& result) {
  const report::Plot plots[] = {
      plot_of_speed(result),
      plot_of_latency("Seconds to the first token", result.first_token),
      plot_of_latency("Seconds between tokens", result.between_tokens),
      plot_of_latency("Seconds of a request", result.request),
  };
  const std::string failure =
      result.failed > 0 ? "<p class='warn'>First failure: " + html_text(result.failure) + "</p>" : "";
  return bench_page("Load test", title, plots, summary_of_load(result),
                    failure + latency_table().html(latency_rows(result)));
}

std::vector<serve::LoadPrompt> read_load_prompts(const std::string& path, int64_t max_tokens) {
  std::vector<serve::LoadPrompt> prompts;
  for (infer::PromptLine& line : infer::read_prompts(path, {.max_tokens = max_tokens}))
    prompts.push_back({std::move(line.prompt), line.options.max_tokens});
  return prompts;
}

}  // namespace

int bench_serve(const Arguments& arguments) {
  CLI::App app(
      "Loads an OpenAI-compatible server: each client sends a completion, reads its stream and sends the next one. The "
      "environment variable COLOSSAL_API_KEY has the key, if the server demands one.",
      "colossal bench serve");
  serve::LoadTestOptions load;
  int64_t max_tokens = 128;
  std::string prompts, report;
  bool as_json = false;
  const auto add_count = [&](const char* flag, int64_t& value, const char* help, int64_t max) {
    app.add_option(flag, value, help)->capture_default_str()->check(CLI::Range(int64_t{1}, max));
  };
  app.add_option("--url", load.url, "address of the server without /v1, such as http://127.0.0.1:8000")->required();
  add_count("--clients", load.clients, "clients, each with a thread and one request at a time", 4096);
  add_count("--requests", load.requests, "requests of all clients together", 1 << 20);
  add_count("--max-tokens", max_tokens, "maximum number of tokens of an answer", 1 << 20);
  app.add_option("--prompts", prompts,
                 "file of prompts, one per line, or .jsonl with \"prompt\" and perhaps \"max_tokens\" per line, whose "
                 "other options are not sent; used in rotation. Default: a different prompt of at most 200 characters "
                 "per request");
  app.add_option("--model", load.models,
                 "name of the model or adapter that answers; repeatable, used in rotation. Default: the first of "
                 "/v1/models")
      ->expected(1)
      ->take_all();
  app.add_flag("--ignore-eos", load.ignore_eos, "answers have exactly --max-tokens tokens, if the server allows it");
  app.add_flag("--json", as_json, "print a JSON object instead of a table");
  app.add_option("--report", report, "HTML file for the table and plots");
  parse(app, arguments);
  if (const char* key = std::getenv("COLOSSAL_API_KEY")) load.key = key;
  load.prompts =
      prompts.empty() ? serve::built_in_prompts(load.requests, max_tokens) : read_load_prompts(prompts, max_tokens);

  const LoadResult result = serve::run_load(load);
  if (as_json)
    std::puts(json_of_load(result).dump(2).c_str());
  else
    print_load(result);
  if (!report.empty()) {
    const std::string clients = load.clients == 1 ? " client" : " clients";
    write_file(report, page_of_load(concat(load.url, ", ", load.clients, clients), result));
  }
  if (result.failed > 0)
    std::fprintf(stderr, "colossal: %lld of %lld requests failed; the first failure: %s\n",
                 static_cast<long long>(result.failed), static_cast<long long>(result.requests),
                 result.failure.c_str());
  return result.failed == result.requests ? 1 : 0;
}

}  // namespace colossal::cli
